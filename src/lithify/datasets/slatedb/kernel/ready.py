"""A check whether this machine has the kernel's machine code. It is quick to import: it does not import the
compiler."""

from __future__ import annotations

from collections.abc import Mapping

from lithify.kernel import fingerprint

KERNEL = "slatedb"


def is_compiled(environ: Mapping[str, str]) -> bool:
    """Return whether the whole kernel is compiled."""
    return fingerprint.is_compiled(environ, KERNEL)

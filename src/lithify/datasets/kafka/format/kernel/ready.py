"""Checks whether this machine has the kernel's compiled code. Quick to import: no compiler."""

from __future__ import annotations

from collections.abc import Mapping

from lithify.kernel import fingerprint

KERNEL = "kafka"


def is_compiled(environ: Mapping[str, str]) -> bool:
    """Return whether nothing is left to compile."""
    return fingerprint.is_compiled(environ, KERNEL)

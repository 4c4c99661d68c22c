"""Where this machine's code of the kernels is kept, and whether it is there. Quick to import: no compiler.

The name of the folder holds a hash of all kernel sources, of the versions of Python, numba and llvmlite, and
of the processor and its features. Who has compiled everything (`warm_up`) leaves a mark in it.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from lithify.base.permissions import why_unsafe
from lithify.base.usercache import cache_folder

_PACKAGE = Path(__file__).parents[1]


def _sources() -> list[Path]:
    """Every module that holds compiled code for others: these, and those of the kinds."""
    return sorted([*_PACKAGE.glob("kernel/*.py"), *_PACKAGE.glob("datasets/*/kernel/*.py")])


def fingerprint() -> str:
    """A hash of everything that machine code depends on."""
    import llvmlite.binding

    digest = hashlib.sha256()
    for source in _sources():
        digest.update(source.relative_to(_PACKAGE).as_posix().encode() + b"\0" + source.read_bytes())
    features: str = llvmlite.binding.get_host_cpu_features().flatten()
    facts = (
        sys.version,
        version("numba"),
        version("llvmlite"),
        platform.machine(),
        llvmlite.binding.get_host_cpu_name(),
        features,
    )
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()[:20]


def kernel_folder(environ: Mapping[str, str]) -> Path:
    """Where the code is, or will be; `RuntimeError` when the user has no place for caches."""
    return cache_folder(environ) / f"kernel-{fingerprint()}"


def is_compiled(environ: Mapping[str, str], what: str) -> bool:
    """Whether of this kernel nothing is left to compile. When that cannot be found out, there is."""
    try:
        mark = kernel_folder(environ) / _mark(what)
        return mark.exists() and why_unsafe(mark) is None
    except (OSError, RuntimeError):
        return False


def mark_compiled(folder: str | None, what: str) -> None:
    """This kernel is compiled. Without the mark people are only told once too often that it is not."""
    if folder is not None:
        with suppress(OSError):
            (Path(folder) / _mark(what)).touch()


def _mark(what: str) -> str:
    return f"all-of-{what}-is-compiled"

"""The folder of this machine's compiled kernels, and whether it is complete. Importing it is quick.

The folder's name has a hash of all kernel sources, the versions of Python, numba and llvmlite, and the
processor and its features. `warm_up` leaves a mark in the folder after compiling everything.
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
_COMPILER = b"lithify.kernel.cache"


def _sources() -> list[Path]:
    """Return all modules with compiled code of this package: those in folders `kernel`, and single modules of
    the kinds' `format`."""
    kernels = _PACKAGE.rglob("kernel/*.py")
    formats = (path for path in _PACKAGE.glob("datasets/*/format/*.py") if _COMPILER in path.read_bytes())
    return sorted([*kernels, *formats])


def fingerprint() -> str:
    """Return a hash of everything that machine code depends on."""
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
    """Return the folder of the machine code, which may not exist. Raise `RuntimeError` if the user has no
    cache folder."""
    return cache_folder(environ) / f"kernel-{fingerprint()}"


def is_compiled(environ: Mapping[str, str], what: str) -> bool:
    """Return whether the whole kernel is compiled; false if that cannot be determined."""
    try:
        mark = kernel_folder(environ) / _mark(what)
        return mark.exists() and why_unsafe(mark) is None
    except (OSError, RuntimeError):
        return False


def mark_compiled(folder: str | None, what: str) -> None:
    """Mark this kernel as compiled. Without the mark users only see a needless notice."""
    if folder is not None:
        with suppress(OSError):
            (Path(folder) / _mark(what)).touch()


def _mark(what: str) -> str:
    return f"all-of-{what}-is-compiled"

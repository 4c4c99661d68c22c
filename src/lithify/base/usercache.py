"""The user's cache folder.

Entries for one version (of Lithify's kernel, of Java, of Spark) are useless once that version is gone. Each
use of an entry sets its time of modification; entries unused for `KEEP_UNUSED_S` are removed. An entry is
renamed first and checked again, so that a process that starts to use it at that moment gets it back; at worst
it creates the entry again.

Entries are executed, so a folder that other users could write is not used (`lithify.base.permissions`): each
use creates or checks its own, and an `OSError` says why it cannot be used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lithify.base.permissions import make_private

CACHE_VARIABLE = "LITHIFY_CACHE_DIR"
KEEP_UNUSED_S = 30 * 24 * 3600
_REMOVED = ".removed-"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return `LITHIFY_CACHE_DIR`, else `lithify` in the XDG cache folder."""
    if own := environ.get(CACHE_VARIABLE):
        return Path(own)
    shared = environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else _home() / ".cache") / "lithify"


def _home() -> Path:
    """Return the user's home folder; `/` for a user without one, such as a container's numeric user, as
    containers set it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def write_atomically(path: Path, data: bytes, mode: int) -> None:
    """Create or replace a file atomically, even with regard to crashes. Raise `PermissionError` if other
    users could write to its folder."""
    make_private(path.parent)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        staged.chmod(mode)
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def mark_used(path: Path) -> None:
    """Mark `path` as used, so that it is not removed for a while."""
    with suppress(OSError):
        os.utime(path)


def remove_unused(folder: Path, pattern: str, now_s: float) -> None:
    """Remove the files and folders in `folder` that match and are unused for long. Failures are harmless: the
    next process tries again."""
    for path in (*folder.glob(pattern), *folder.glob(f"{_REMOVED}*")):
        with suppress(OSError):
            if _is_unused(path, now_s):
                _remove(path, now_s)


def _remove(path: Path, now_s: float) -> None:
    doomed = path.with_name(f"{_REMOVED}{os.getpid()}-{path.name}")
    path.rename(doomed)
    if not _is_unused(doomed, now_s):
        doomed.rename(path)
    elif doomed.is_dir():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def _is_unused(path: Path, now_s: float) -> bool:
    return path.stat().st_mtime < now_s - KEEP_UNUSED_S

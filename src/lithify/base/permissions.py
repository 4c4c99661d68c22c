"""Checks whether other users of this machine can change files at a path.

Compiled kernels are pickles, a class archive is code of the JVM, and a scratch folder has secrets and
sockets: Lithify uses such a folder only if no user but its own, and root, can change anything in it. So,
from the root of the file system down to the path itself, with symbolic links resolved:

1. Every folder belongs to this user or to root.
2. No folder can be written by others or by a group, unless its sticky bit lets others only add to it, as in
   `/tmp`; the path itself has no such exception.
3. Folders below one that no other user can enter are safe.

`make_private` creates missing folders, for this user alone.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH


def why_unsafe(path: Path, *, may_be_shared: bool = False) -> str | None:
    """Return why other users could change the files at `path`, in one sentence; `None` if they cannot, or if
    it does not exist. `may_be_shared`: others may add to the folder itself, as to `/tmp`. Raise `OSError` if
    it cannot be read."""
    user, whole = os.geteuid(), path.resolve()
    for place in (*reversed(whole.parents), whole):
        try:
            found = place.lstat()
        except FileNotFoundError:
            return None
        if found.st_uid not in (user, _ROOT):
            return f"{place} belongs to another user (number {found.st_uid})"
        is_sticky = bool(found.st_mode & stat.S_ISVTX) and (place != whole or may_be_shared)
        if found.st_mode & _OTHERS_WRITE and not is_sticky:
            return f"{place} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
        if not found.st_mode & _OTHERS_ENTER:
            return None
    return None


def check_private(path: Path, *, may_be_shared: bool = False) -> Path:
    """Return the path with symbolic links resolved. Raise `PermissionError` if other users could change the
    files there."""
    why = why_unsafe(path, may_be_shared=may_be_shared)
    if why is not None:
        raise PermissionError(errno.EPERM, why)
    return path.resolve()


def check_contents(folder: Path) -> None:
    """Raise `PermissionError` if anything in the folder belongs to another user or can be changed by one."""
    for path in folder.rglob("*"):
        owner = path.lstat().st_uid
        if owner not in (os.geteuid(), _ROOT):
            raise PermissionError(errno.EPERM, f"{path} belongs to another user (number {owner})")
        check_private(path)


def make_private(folder: Path, *, may_be_shared: bool = False) -> Path:
    """Create the folder and its missing parents, for this user alone; see `check_private`."""
    missing = []
    for place in (folder, *folder.parents):
        if place.exists():
            break
        missing.append(place)
    check_private(folder, may_be_shared=may_be_shared)
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    return check_private(folder, may_be_shared=may_be_shared)

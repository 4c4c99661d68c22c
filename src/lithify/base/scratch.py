"""Temporary folders that are removed even if their process is killed.

1. A scratch folder is `lithify-…` in the system's temporary folder, with mode 0700. It contains a marker,
   which its process keeps locked; the kernel releases the lock when the process ends in any way.
2. The marker gets its name only after it is locked, so an unlocked marker means that its process has ended.
3. Before a scratch folder is created, those of the same user with an unlocked marker are removed: everything
   but the marker, then the marker, then the folder. A folder without a marker is never removed.
4. If other users can rename entries of the system's temporary folder, no scratch folder is created: they
   could replace it (`lithify.base.permissions`).
5. A child process that inherits `lock` keeps the folder while it lives.

Invariant: a folder is not removed if it has no marker, belongs to another user, is reached through a symbolic
link, or its process may be alive. Failures to remove are harmless: the next creation tries again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from lithify.base.errors import Refused
from lithify.base.permissions import why_unsafe

PREFIX = "lithify-"
MARKER = ".lithify-scratch"


class Scratch:
    """A temporary folder of this process. Removed when closed, or when the process ends normally."""

    def __init__(self) -> None:
        """Raise `Refused` if other users could change its contents."""
        parent = Path(tempfile.gettempdir())
        if (why := why_unsafe(parent, may_be_shared=True)) is not None:
            raise Refused(
                f"no temporary folder can be created in {parent}: {why}; set TMPDIR to a folder that only "
                "this user can write, or one with the sticky bit (chmod 1777)"
            )
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            lock = _mark(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self.lock = lock
        """The file descriptor that keeps the folder, in this process and in children that inherit it."""
        self._close = weakref.finalize(self, _close, self.path, lock, os.getpid())

    @property
    def is_open(self) -> bool:
        """Return whether the folder still exists."""
        return self._close.alive

    def close(self) -> None:
        """Remove the folder and its contents. May be called again."""
        self._close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose processes have ended."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _taken(Path(entry.path)) as is_ours:
                    if is_ours:
                        _remove(Path(entry.path))


def _mark(folder: Path) -> int:
    """Put a locked marker into the folder. Return the file descriptor that holds the lock."""
    staged = folder / f"{MARKER}.staged"
    lock = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        staged.rename(folder / MARKER)
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def _taken(folder: Path) -> Iterator[bool]:
    """Lock a folder's marker. Yield whether the folder belongs to this user and its process has ended."""
    marker = folder / MARKER
    lock = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, named = os.fstat(lock), marker.lstat()
        users = {held.st_uid, folder.lstat().st_uid}
        yield users == {os.getuid()} and (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARKER:
                Path(entry.path).unlink()
    (folder / MARKER).unlink()
    folder.rmdir()


def _close(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has this object too
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)

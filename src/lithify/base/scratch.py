"""Temporary folders that do not stay behind for ever when their process is killed.

1. A scratch folder is `lithify-…` in the system's temporary folder, for its owner's eyes only (0700). In
   it lies a marker, which its process keeps locked for as long as it lives; the kernel lets go of the
   lock with the process, however that ends.
2. The marker gets its name once it is locked. So a marker that nobody has locked means that its process
   is gone.
3. Who makes a scratch folder first removes those of the same user whose marker is not locked: everything
   but the marker, then the marker, then the folder. A folder without a marker is nobody's to remove.
4. Where other users can rename what is in the system's temporary folder, no scratch folder is made: they
   could put their own in its place (`lithify.base.permissions`).
5. A process that was started with `lock` keeps the folder as well: nobody removes it while that lives.

Invariant: nothing is removed that has no marker of ours, belongs to somebody else, is reached through a
symbolic link, or whose process may be alive. Failures to remove do no harm: the next one tries again.
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
    """A temporary folder of this process. Removed when closed, or when the process ends in order."""

    def __init__(self) -> None:
        """`Refused` when others could change what is in it."""
        parent = Path(tempfile.gettempdir())
        if (why := why_unsafe(parent, may_be_shared=True)) is not None:
            raise Refused(
                f"no temporary folder can be made in {parent}: {why}; let TMPDIR name a folder that only "
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
        """The file descriptor that keeps the folder, in this process and in those that inherit it."""
        self._close = weakref.finalize(self, _close, self.path, lock, os.getpid())

    @property
    def is_open(self) -> bool:
        """Whether the folder is still there."""
        return self._close.alive

    def close(self) -> None:
        """Remove the folder and what is in it. May be called again."""
        self._close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose processes are gone."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _taken(Path(entry.path)) as is_ours:
                    if is_ours:
                        _remove(Path(entry.path))


def _mark(folder: Path) -> int:
    """Put a locked marker into the folder; what holds the lock."""
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
    """Whether the folder is this user's and its process is gone; nobody else removes it meanwhile."""
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
    if os.getpid() == owner:  # a child that was forked has this object too
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)

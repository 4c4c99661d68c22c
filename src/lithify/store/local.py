"""The local file system as an object store.

The store is rooted at `/`: the key `var/db/x` is the file `/var/db/x`. It uses system calls directly, because
an upload must be staged, published and made durable in a known order, and ranges are read straight into the
caller's buffer.

An object is written in these steps:

1. Write the bytes to a staging name, `<name>#<digits>`, in the object's folder; create the folder if it is
   missing.
2. Sync the staged file to the disk.
3. Publish it under its name by `link` (`create`: the kernel lets exactly one of all callers win) or by
   `rename` (everything that may replace).
4. Sync the folder, and only then return.

Invariants: a final name always shows a complete object, even if processes are killed. Acknowledged objects
survive a power cut, those of the streaming writer too: a durable manifest must never name an output that is
not durable, so `commit` syncs. (That costs little: `direct.DirectFile` does not leave the bytes of a large
object in the page cache.) A deletion may not survive one: only garbage is deleted, what lies behind a
boundary, and holds and leases, which expire if they come back. A killed process may leave staging names,
which are never listed.

A range read opens and closes the file, for about 10 µs: an open descriptor would continue to show a replaced
object.

The file system has no conditional overwrite, so `replace` compares and renames under an advisory lock on the
staging name `<name>#0`. This is exact among Lithify's processes, but does not stop `put` or a foreign program
from overwriting the object at the same moment. A process that waits for the lock longer than
`MAX_LOCK_WAIT_S` fails. The lock file is deleted with the object, by the process that holds the lock then. So
a process that has acquired the lock checks that its file still exists, and otherwise locks the present file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.direct import DirectFile
from lithify.store.keys import check_key, is_leftover_name, is_object_name, unstaged
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore, check_range

MAX_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.002
_STAGING_DIGITS = 18
_MS_NS = 1_000_000
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStore:
    """Objects as files below `root`; only tests use another root than `/`."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root).absolute()
        self._folder = str(self._root).rstrip("/") + "/"

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def get(self, key: str) -> bytes:
        return self.get_with_meta(key)[0]

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        with _failures("get", key), self._path(key).open("rb") as file:
            # The file of an inode never changes, so content and metadata belong together.
            return file.read(), _meta(key, os.fstat(file.fileno()))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        # Checked before memory is allocated.
        missing = offset + length - self.head(key).size
        if missing > 0:
            raise _too_short(key, min(missing, length), offset + length)
        with _failures("get", key):
            fd = os.open(self._name(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(fd, length, offset)
            finally:
                os.close(fd)
        if len(data) == length:  # short only for very long ranges
            return data
        rest = bytearray(length - len(data))
        self.get_range_into(key, offset + len(data), memoryview(rest))
        return data + rest

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        check_range(key, offset, target.nbytes)
        rest = target.cast("B")
        with _failures("get", key):
            fd = os.open(self._name(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                while rest:
                    count = os.preadv(fd, [rest], offset)
                    if not count:
                        raise _too_short(key, len(rest), offset + len(rest))
                    rest = rest[count:]
                    offset += count
            finally:
                os.close(fd)

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        return memoryview(self.get_range(key, offset, length))

    def head(self, key: str) -> ObjectMeta:
        with _failures("head", key):
            path = self._path(key)
            if path.is_dir():
                raise IsADirectoryError
            return _meta(key, path.stat())

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = prefix.strip("/")
        with _failures("list", folder or "/"):
            yield from self._walk(self._root / folder, f"{folder}/" if folder else "", is_object_name)

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        return self.list(prefix)

    def folder(self, prefix: str) -> FolderListing:
        folder = prefix.strip("/")
        begin = f"{folder}/" if folder else ""
        folders, objects = [], []
        with _failures("list", folder or "/"):
            for name, is_folder in _names_in(self._root / folder):
                if is_folder:
                    folders.append(begin + name)
                elif is_object_name(begin + name):
                    with suppress(FileNotFoundError):
                        objects.append(_meta(begin + name, (self._root / folder / name).stat()))
        return FolderListing(tuple(folders), tuple(objects))

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str:
        path = self._path(key)
        with _write_failures("create", key):
            stage, etag = _stage(path, data)
            try:
                os.link(stage, path)
            finally:
                stage.unlink()
            _sync_folder(path.parent)
            return etag

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with _write_failures("put", key):
            _publish(_stage(path, data)[0], path)

    def copy(self, source: str, key: str) -> bool:
        return False

    def replace(self, key: str, data: bytes, etag: str) -> str:
        path = self._path(key)
        with _write_failures("replace", key), _lock(path):
            before = path.stat() if path.exists() else None
            if before is None or _etag(before) != etag:
                raise PreconditionFailed(f"replace {key}: its etag is no longer {etag}")
            # Inode numbers are reused; the time keeps etags unique.
            stage, new_etag = _stage(path, data, after_ns=before.st_mtime_ns)
            _publish(stage, path)
            return new_etag

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _write_failures("delete", key):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # a remaining lock file is harmless
            _remove_lock(path)

    def open_writer(self, key: str, part_bytes: int | None = None) -> LocalWriter:
        return LocalWriter(key, self._path(key))

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = prefix.strip("/")
        with _failures("list", folder or "/"):
            yield from self._walk(self._root / folder, f"{folder}/" if folder else "", is_leftover_name)

    def delete_staged(self, key: str) -> None:
        if not is_leftover_name(key):
            raise StoreError(f"{key!r} is not a staging name")
        path = self._path(unstaged(key)).with_name(key.rpartition("/")[2])
        with _write_failures("delete", key):
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return Path(self._name(key))

    def _name(self, key: str) -> str:
        """Return the path as text, for calls made for every megabyte: making a `Path` takes longer than
        opening it."""
        return f"{self._folder}{check_key(key)}"

    def _walk(self, folder: Path, prefix: str, wanted: Callable[[str], bool]) -> Iterator[ObjectMeta]:
        for name, is_folder in _names_in(folder):
            if is_folder:
                yield from self._walk(folder / name, f"{prefix}{name}/", wanted)
            elif wanted(name):
                # It may have been deleted since the listing.
                with suppress(FileNotFoundError):
                    yield _meta(prefix + name, (folder / name).stat())


def _names_in(folder: Path) -> list[tuple[str, bool]]:
    """Return the names in a folder in key order, and whether each is a folder; nothing if the folder is
    missing."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda one: f"{one[0]}/" if one[1] else one[0])


class LocalWriter:
    """Streams into a staged file. `commit` syncs it, renames it and syncs the folder."""

    def __init__(self, key: str, path: Path) -> None:
        self._key = key
        self._path = path
        with _write_failures("write", key):
            fd, self._stage = _open_stage(path)
            self._file = DirectFile(fd)

    def write(self, data: bytes | memoryview) -> None:
        if self._file.closed:
            raise StoreError(f"write {self._key}: the upload is closed")
        with _write_failures("write", self._key):
            self._file.write(data)

    def give(self, data: memoryview) -> None:
        self.write(data)

    def commit(self) -> None:
        if self._file.closed:
            raise StoreError(f"commit {self._key}: the upload is closed")
        with _write_failures("commit", self._key):
            self._file.sync_and_close()
            _publish(self._stage, self._path)

    def abort(self) -> None:
        with _write_failures("abort", self._key):
            self._file.close()
            self._stage.unlink(missing_ok=True)

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _too_short(key: str, missing: int, end: int) -> StoreError:
    return StoreError(f"get {key}: it ends {missing} bytes before {end}")


def _meta(key: str, stat: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, stat.st_size, stat.st_mtime_ns // 1_000_000, _etag(stat))


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _stage(path: Path, data: bytes, after_ns: int = 0) -> tuple[Path, str]:
    """Write a synced staging file that was modified later than `after_ns`. Return it and its etag, which
    stays the same under the final name."""
    fd, stage = _open_stage(path)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            # The file system gives the time, because ages are computed by its clock, not by this process's.
            # That clock stands still for milliseconds; the random part tells two writes apart.
            written_ns = os.fstat(file.fileno()).st_mtime_ns
            written_ns = max(written_ns - written_ns % _MS_NS + secrets.randbelow(_MS_NS), after_ns + 1)
            os.utime(file.fileno(), ns=(written_ns, written_ns))
            os.fsync(file.fileno())
            etag = _etag(os.fstat(file.fileno()))
    except BaseException:
        stage.unlink()
        raise
    return stage, etag


def _open_stage(path: Path) -> tuple[int, Path]:
    """Create a file under a staging name of `path`, and open it for writing."""
    stage = path.with_name(f"{path.name}#{secrets.randbelow(10**_STAGING_DIGITS) + 1}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(stage, flags, 0o666), stage
    except FileNotFoundError:
        _make_folder(path.parent)
        return os.open(stage, flags, 0o666), stage


def _publish(stage: Path, path: Path) -> None:
    """Rename durably, replacing any existing object."""
    try:
        stage.replace(path)
    except BaseException:
        stage.unlink()
        raise
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    _make_folder(path.parent)
    ends_s = time.monotonic() + MAX_LOCK_WAIT_S
    while True:
        fd = os.open(_lock_of(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for(fd, path, ends_s)
            if _is_there(fd, path):
                yield
                return
        finally:
            os.close(fd)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}#0")


def _is_there(fd: int, path: Path) -> bool:
    """Return whether an open file is still the lock file of `path`."""
    try:
        return os.path.samestat(os.fstat(fd), _lock_of(path).stat())
    except FileNotFoundError:
        return False


def _remove_lock(path: Path) -> None:
    """Delete the lock file of `path` unless another process holds the lock. Raise `OSError` if it is missing
    or cannot be deleted."""
    fd = os.open(_lock_of(path), os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(fd, path):
            _lock_of(path).unlink()
    finally:
        os.close(fd)


def _wait_for(fd: int, path: Path, ends_s: float) -> None:
    """Take the advisory lock of an open file. It is held for milliseconds, unless its holder is suspended."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends_s:
                raise StoreError(
                    f"replace {path}: another process has held its lock for {MAX_LOCK_WAIT_S:g} s; if that "
                    "process is suspended, resume or end it"
                ) from None
        time.sleep(_LOCK_PAUSE_S)


@contextmanager
def _failures(verb: str, key: str) -> Iterator[None]:
    """Convert the system's errors while reading into ours."""
    try:
        yield
    except _MISSING as error:
        raise ObjectNotFound(f"{verb} {key}: no such object") from error
    except OSError as error:
        raise StoreError(f"{verb} {key}: {error}") from error


@contextmanager
def _write_failures(verb: str, key: str) -> Iterator[None]:
    """Convert the system's errors while writing into ours."""
    try:
        yield
    except FileExistsError as error:
        if verb == "create":
            raise ObjectExists(f"create {key}: it exists already") from error
        raise StoreError(f"{verb} {key}: {error}") from error
    except OSError as error:
        raise StoreError(f"{verb} {key}: {error}") from error


def real_key(store: ObjectStore, key: str) -> str:
    """Return the key without symbolic links, if the store is the local file system."""
    is_on_disk = store.url == "file:///"
    return os.path.realpath(f"/{key}").strip("/") if is_on_disk else key

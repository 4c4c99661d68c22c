"""A table's files, accessed by Lithify's own requests to a store.

PyArrow requests the length of a file before it reads it, reads one piece after the other, and sends four
requests to write the smallest file: the start of the upload, its part, its end, and the length again. In a
remote store each costs a round trip. So Lithify accesses files like this:

1. Metadata files are read completely, by one request. A data file of known size (`opened`) is read from its
   end, where the footer is, or completely if it is small and its rows are needed, also by one request. A
   wrong size is detected, because the end is not that of such a file; then the store is asked for the
   size.
2. A longer read is split into several concurrent requests.
3. A file of up to `HELD_BYTES` is held in memory while it is written, and written by one PUT when it is
   closed. If a file that must not be overwritten has the same bytes, it is this one: the response to a first
   attempt may have been lost. The parts of a larger file are sent while its writer continues; an unfinished
   file does not exist.
4. Recently read and written metadata files are cached (`Recent`): their content never changes under a name.
   Callers drop files that cannot be decoded from the cache, so that a repaired file is read again.

Errors are those of the store; only "not found" and "exists already" are converted to those that PyIceberg's
callers expect.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyiceberg.io import InputFile, OutputFile

from lithify.base.concurrency import all_of
from lithify.base.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable
from lithify.store.objects import ObjectStore, ObjectWriter

MIB = 1024 * 1024
TAIL_BYTES = 64 * 1024
"""The bytes read from the end of other files; most footers are smaller."""
PART_BYTES = 8 * MIB
MAX_PARTS_AT_ONCE = 8
HELD_BYTES = 8 * MIB
MAX_RECENT_BYTES = 16 * MIB
_MAX_CONFLICTS = 10
_METADATA = (".json", ".avro")
_LASTING = (".json",)
"""Suffixes of files that are cached when they are read; for manifests, the entries are cached instead
(`listing`)."""
_LAST_BYTES = (b"PAR1", b"PARE", b"PFA1")
"""Of Parquet and Puffin files."""
_ORC = b"ORC"


class Recent:
    """A cache of metadata files by location, with least-recently-used eviction. Thread-safe."""

    def __init__(self, max_bytes: int = MAX_RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> bytes | None:
        with self._lock:
            data = self._kept.get(location)
            if data is not None:
                self._kept.move_to_end(location)
            return data

    def keep(self, location: str, data: bytes) -> None:
        self.forget(location)
        with self._lock:
            self._kept[location] = data
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                _, forgotten = self._kept.popitem(last=False)
                self._bytes -= len(forgotten)

    def forget(self, location: str) -> None:
        with self._lock:
            self._bytes -= len(self._kept.pop(location, b""))

    def forget_all(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0


class StoredFile(InputFile, OutputFile):
    """A file of an object store."""

    def __init__(self, location: str, store: ObjectStore, key: str, recent: Recent) -> None:
        super().__init__(location)
        self._store = store
        self._key = key
        self._recent = recent

    def __len__(self) -> int:
        data = self._recent.get(self.location)
        if data is not None:
            return len(data)
        with self._known_errors():
            return self._store.head(self._key).size

    def exists(self) -> bool:
        try:
            self._store.head(self._key)
        except ObjectNotFound:
            return False
        return True

    def open(self, seekable: bool = True) -> Any:
        if self.location.endswith(_METADATA):
            return io.BytesIO(self._metadata())
        return StoredReads(self.location, self._store, self._key, len(self))

    def opened(self, size: int, whole_bytes: int) -> Any:
        """Open a Parquet, ORC or Puffin file of this expected size, with its end read already, or all of it
        if it has at most `whole_bytes`."""
        is_whole = size <= max(whole_bytes, TAIL_BYTES)
        start = 0 if is_whole else size - TAIL_BYTES
        try:
            with self._known_errors():
                data = read_parts(self._store, self._key, start, size - start)
        except StoreUnavailable:
            raise
        except StoreError:
            return self.open()  # which raises the error, if the size is not the cause
        if bytes(data[-4:]) not in _LAST_BYTES and bytes(data[-4:-1]) != _ORC:
            return self.open()
        if is_whole:
            return pa.BufferReader(data)
        return StoredReads(self.location, self._store, self._key, size, data)

    def _metadata(self) -> bytes:
        data = self._recent.get(self.location)
        if data is None:
            with self._known_errors():
                data = self._store.get(self._key)
            if self.location.endswith(_LASTING):
                self._recent.keep(self.location, data)
        return data

    def create(self, overwrite: bool = False) -> Any:
        return StoredWriting(self, overwrite)

    def to_input_file(self) -> InputFile:
        return self

    def delete(self) -> None:
        """Delete the file, even if it does not exist."""
        self._recent.forget(self.location)
        self._store.delete(self._key)

    def put(self, data: bytes, overwrite: bool) -> None:
        """Write the whole file."""
        if overwrite:
            self._recent.forget(self.location)
            self._store.put(self._key, data)
        else:
            self._create(data)
        if self.location.endswith(_METADATA):
            self._recent.keep(self.location, data)

    def _create(self, data: bytes) -> None:
        for _ in range(_MAX_CONFLICTS):
            try:
                self._store.create(self._key, data)
                return
            except ObjectExists as error:
                try:
                    found = self._store.get(self._key)
                except ObjectNotFound:
                    continue  # S3 also reports this during another request for the object
                if found != data:  # else it may be the result of a first attempt
                    raise FileExistsError(self.location) from error
                return
        raise StoreError(
            f"create {self._key}: it conflicts with other requests, {_MAX_CONFLICTS} times in a row"
        )

    def upload(self, overwrite: bool) -> ObjectWriter:
        """Return a writer for a large file."""
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        self._recent.forget(self.location)
        return self._store.open_writer(self._key)

    @contextmanager
    def _known_errors(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            raise FileNotFoundError(self.location) from error


class StoredReads(io.RawIOBase):
    """A data file that is read in pieces."""

    def __init__(
        self, location: str, store: ObjectStore, key: str, size: int, tail: memoryview | None = None
    ) -> None:
        super().__init__()
        self.location = location
        self._store = store
        self._key = key
        self._size = size
        self._at = 0
        self._tail = tail if tail is not None else memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        data = self._fetch(self._at, length)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def _fetch(self, offset: int, length: int) -> bytes:
        in_tail = offset - (self._size - len(self._tail))
        if in_tail >= 0:
            return bytes(self._tail[in_tail : in_tail + length])
        return bytes(read_parts(self._store, self._key, offset, length))


def read_parts(store: ObjectStore, key: str, offset: int, length: int) -> memoryview:
    """Read a range of an object, in several concurrent requests if it is long."""
    if length <= PART_BYTES:
        return memoryview(store.get_range(key, offset, length))
    target = memoryview(bytearray(length))

    def read(start: int) -> None:
        store.get_range_into(key, offset + start, target[start : start + PART_BYTES])

    all_of((partial(read, start) for start in range(0, length, PART_BYTES)), MAX_PARTS_AT_ONCE)
    return target


class StoredWriting:
    """A file that is held in memory until it is closed, or uploaded in parts if it is too large. It exists,
    completely, once it is closed, and not at all if its writer failed."""

    closed = False

    def __init__(self, file: StoredFile, overwrite: bool) -> None:
        self._file = file
        self._overwrite = overwrite
        self._held = bytearray()
        self._written_bytes = 0
        self._upload: ObjectWriter | None = None
        self._is_abandoned = False

    def tell(self) -> int:
        return self._written_bytes

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing; nothing is visible before the file is closed."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._is_abandoned:
            return view.nbytes
        if self.closed:
            raise ValueError(f"write to {self._file.location}, which is closed")
        if self._upload is None and len(self._held) + view.nbytes <= HELD_BYTES:
            self._held += view
        else:
            if self._upload is None:
                self._upload = self._file.upload(self._overwrite)
                self._upload.write(bytes(self._held))
                self._held = bytearray()
            self._upload.write(bytes(view))
        self._written_bytes += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._upload is None:
            self._file.put(bytes(self._held), self._overwrite)
        else:
            self._upload.commit()

    def abandon(self, error: BaseException | None = None) -> None:
        """Discard the file; later writes are discarded too, since PyArrow writes when it releases an
        unfinished file."""
        self.closed = self._is_abandoned = True
        if self._upload is not None:
            self._upload.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon(error)

    def __del__(self) -> None:
        """Discard the file if it was never closed."""
        if not self.closed:
            self.abandon()

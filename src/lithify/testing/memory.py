"""An object store in a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.keys import check_key
from lithify.store.objects import FolderListing, ObjectMeta, check_range, folder_of


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    meta: ObjectMeta


class MemoryStore:
    """A store in a dictionary, with modification times from `clock`.

    Every write gives a new etag, even for the same bytes. With `keeps_put_ids=False` it drops put ids, as the
    local file system does.
    """

    def __init__(self, clock: Clock | None = None, *, keeps_put_ids: bool = True) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._keeps_put_ids = keeps_put_ids
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._writes = 0

    @property
    def url(self) -> str:
        return "memory://lithify-testing"

    def get(self, key: str) -> bytes:
        return self._read(key).data

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        found = self._read(key)
        return found.data, found.meta

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        data = self._read(key).data[offset : offset + length]
        if len(data) < length:
            raise StoreError(f"get {key}: it has no {length} bytes at {offset}")
        return data

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        target.cast("B")[:] = self.get_range(key, offset, target.nbytes)

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        return memoryview(self.get_range(key, offset, length))

    def head(self, key: str) -> ObjectMeta:
        return self._read(key).meta

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        with self._lock:
            found = [self._objects[key].meta for key in sorted(self._objects) if key.startswith(folder)]
        return iter(found)

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        return self.list(prefix)

    def folder(self, prefix: str) -> FolderListing:
        return folder_of(prefix, self.list(prefix))

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str:
        with self._lock:
            if check_key(key) in self._objects:
                raise ObjectExists(f"create {key}: it exists already")
            return self._write(key, data, put_id)

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self._write(check_key(key), data)

    def copy(self, source: str, key: str) -> bool:
        self.put(key, self._read(source).data)
        return True

    def replace(self, key: str, data: bytes, etag: str) -> str:
        with self._lock:
            found = self._objects.get(check_key(key))
            if found is None or found.meta.etag != etag:
                raise PreconditionFailed(f"replace {key}: its etag is no longer {etag}")
            return self._write(key, data)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def open_writer(self, key: str, part_bytes: int | None = None) -> MemoryWriter:
        return MemoryWriter(self, check_key(key))

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        return iter(())

    def delete_staged(self, key: str) -> None:
        raise StoreError(f"{key!r}: this store has no staging names")

    def _read(self, key: str) -> _Object:
        with self._lock:
            found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectNotFound(f"get {key}: no such object")
        return found

    def _write(self, key: str, data: bytes, put_id: str | None = None) -> str:
        self._writes += 1
        etag = f'"{self._writes}"'
        kept = put_id if self._keeps_put_ids else None
        meta = ObjectMeta(key, len(data), self._clock.now_ms(), etag, kept)
        self._objects[key] = _Object(bytes(data), meta)
        return etag


class MemoryWriter:
    """Collects the bytes and writes them on `commit`."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        if self._data is None:
            raise StoreError(f"write {self._key}: the upload is closed")
        self._data += data

    def give(self, data: memoryview) -> None:
        self.write(data)

    def commit(self) -> None:
        if self._data is None:
            raise StoreError(f"commit {self._key}: the upload is closed")
        self._store.put(self._key, bytes(self._data))
        self._data = None

    def abort(self) -> None:
        self._data = None

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

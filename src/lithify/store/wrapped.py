"""A store around another one, with a single hook for all calls."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from lithify.base.errors import StoreError
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore, ObjectWriter

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store or of one of its writers."""

    method: str
    """Name of the protocol's method; for a writer `write`, `commit` or `abort`."""
    key: str
    bytes_sent: int = 0
    bytes_asked: int = 0
    """Size of `get_range_into`'s target, or of `get_buffer`'s answer."""


class WrappedStore:
    """Forwards all calls to `inner`. Subclasses override `around`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        """Run `action`, which is `call` on the inner store. May be called from several threads."""
        return action()

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str) -> bytes:
        return self.around(Call("get", key), lambda: self.inner.get(key))

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        return self.around(Call("get_with_meta", key), lambda: self.inner.get_with_meta(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.around(Call("get_range", key), lambda: self.inner.get_range(key, offset, length))

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        call = Call("get_range_into", key, bytes_asked=target.nbytes)
        self.around(call, lambda: self.inner.get_range_into(key, offset, target))

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        call = Call("get_buffer", key, bytes_asked=length)
        return self.around(call, lambda: self.inner.get_buffer(key, offset, length))

    def head(self, key: str) -> ObjectMeta:
        return self.around(Call("head", key), lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        # List completely, so that all requests happen within the call.
        return iter(self.around(Call("list", prefix), lambda: builtins.list(self.inner.list(prefix))))

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        return self.around(Call("list", prefix), lambda: self.inner.stream(prefix))

    def folder(self, prefix: str) -> FolderListing:
        return self.around(Call("list", prefix), lambda: self.inner.folder(prefix))

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        return self.around(Call("create", key, len(data)), lambda: self.inner.create(key, data, put_id))

    def put(self, key: str, data: bytes) -> None:
        self.around(Call("put", key, len(data)), lambda: self.inner.put(key, data))

    def copy(self, source: str, key: str) -> bool:
        return self.around(Call("copy", key), lambda: self.inner.copy(source, key))

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        return self.around(Call("replace", key, len(data)), lambda: self.inner.replace(key, data, etag))

    def delete(self, key: str) -> None:
        self.around(Call("delete", key), lambda: self.inner.delete(key))

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        return iter(
            self.around(Call("list_staged", prefix), lambda: builtins.list(self.inner.list_staged(prefix)))
        )

    def delete_staged(self, key: str) -> None:
        self.around(Call("delete_staged", key), lambda: self.inner.delete_staged(key))

    def open_writer(self, key: str, part_bytes: int | None = None) -> WrappedWriter:
        inner = self.around(Call("open_writer", key), lambda: self.inner.open_writer(key, part_bytes))
        return WrappedWriter(self, key, inner)


class WrappedWriter:
    """Forwards a writer's calls through the store's `around`."""

    def __init__(self, store: WrappedStore, key: str, inner: ObjectWriter) -> None:
        self._store = store
        self._key = key
        self._inner = inner
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self._store.around(Call("write", self._key, size), lambda: self._inner.write(data))

    def give(self, data: memoryview) -> None:
        self._store.around(Call("write", self._key, data.nbytes), lambda: self._inner.give(data))

    def commit(self) -> None:
        self._store.around(Call("commit", self._key), self._inner.commit)
        self._open = False

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._store.around(Call("abort", self._key), self._inner.abort)

    def __enter__(self) -> WrappedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


READS = frozenset(
    {"get", "get_with_meta", "get_range", "get_range_into", "get_buffer", "head", "list", "list_staged"}
)
"""Methods of a store that write nothing."""


class ReadOnlyStore(WrappedStore):
    """Forwards reads; raises `StoreError` for all other calls before anything is sent."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method in READS:
            return action()
        raise StoreError(f"{call.method} {call.key}: nothing may be written here (--read-only)")

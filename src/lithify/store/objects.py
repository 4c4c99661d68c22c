"""The object store as a small protocol.

Everything Lithify keeps lives in objects of one store. A store is rooted (at a bucket, or at the
root of a file system); keys are relative to that root, have no leading slash and use `/`.

Invariants every implementation keeps:

1. An object appears under its name whole or not at all, whatever crashes.
2. `create` succeeds for exactly one of any number of concurrent callers.
3. Listing and reading are consistent with completed writes.
4. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

_LOCAL_SCHEMES = ("file:", "memory:")


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a listing or a head says of an object."""

    key: str
    size: int
    """Bytes."""
    last_modified_ms: int
    """Wall-clock milliseconds, by the store's clock."""
    etag: str | None
    """What `replace` expects; only `head`, `get_with_meta`, `create` and `replace` promise one."""
    put_id: str | None = None
    """The `put_id` given to `create`; only from `get_with_meta`, and only if the store keeps it."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What lies directly in a folder."""

    folders: tuple[str, ...]
    """Keys of the folders in it, without a closing slash."""
    objects: tuple[ObjectMeta, ...]


class ObjectWriter(Protocol):
    """A streaming upload. The object appears under its name only on `commit`."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. They must stay as they are until the writer's next call returns: a writer may
        read them meanwhile."""
        ...

    def give(self, data: memoryview) -> None:
        """Append bytes that nobody changes any more: they need not be copied."""
        ...

    def commit(self) -> None:
        """Publish the object under its key (replacing one of the same key)."""
        ...

    def abort(self) -> None:
        """Throw the upload away; harmless after `commit`."""
        ...

    def __enter__(self) -> ObjectWriter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort unless committed."""
        ...


class ObjectStore(Protocol):
    """A rooted object store. Failures are `lithify.base.errors.StoreError` and its subclasses."""

    @property
    def url(self) -> str:
        """The URL of the root, from which a task on another machine opens the same store."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object; `ObjectNotFound` when there is none."""
        ...

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        """The whole object and its metadata, read in one request."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`. A shorter object is a `StoreError`."""
        ...

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`. A shorter object is a `StoreError`."""
        ...

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, as they have arrived: in memory of their own, which nobody changes.
        A shorter object is a `StoreError`."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Metadata of one object; `ObjectNotFound` when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Objects whose key lies under the folder `prefix` (with or without its closing slash), in
        key order. Objects in sub-folders are included. Staging names are never listed."""
        ...

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        """The same objects, asked for as they are taken, so that any number of them fits into memory. In any
        order, each once."""
        ...

    def folder(self, prefix: str) -> FolderListing:
        """What lies directly in the folder `prefix`."""
        ...

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        """Write the object if none of that key exists, else `ObjectExists`. The answer is its etag.

        A `StoreError` of another class may mean that the write landed and only the answer was lost,
        and so may `ObjectExists` where the store repeats lost requests by itself. `put_id` is kept
        beside the object (as user metadata, at most 64 letters and digits; the local file system
        keeps none) so that `lithify.store.versions` can settle that by reading back.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write the object, replacing one of the same key atomically."""
        ...

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        """Overwrite the object if its etag is still `etag`, else `PreconditionFailed`. The answer is its new
        etag."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object; deleting a missing one is no error."""
        ...

    def open_writer(self, key: str, part_bytes: int | None = None) -> ObjectWriter:
        """Start a streaming upload of a large object. Behind a network it is sent in requests of `part_bytes`
        each, 5 MiB or more, or of as many as the store finds right."""
        ...

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        """By staging name, what is being written under the folder `prefix`, and what killed writers
        left there. Only the local file system has any."""
        ...

    def delete_staged(self, key: str) -> None:
        """Delete what `list_staged` gave; no error when it is gone. Its writer, if alive, fails."""
        ...


def folder_of(prefix: str, objects: Iterable[ObjectMeta]) -> FolderListing:
    """What lies directly in a folder, told from all that lies anywhere in it (pure)."""
    begin = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    folders: dict[str, None] = {}
    direct = []
    for meta in objects:
        name, slash, _ = meta.key.removeprefix(begin).partition("/")
        if slash:
            folders[begin + name] = None
        else:
            direct.append(meta)
    return FolderListing(tuple(folders), tuple(direct))


def is_local(store: ObjectStore) -> bool:
    """Whether the store answers without waiting for a network."""
    return store.url.startswith(_LOCAL_SCHEMES)

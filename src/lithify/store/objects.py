"""The object store as a small protocol.

All of Lithify's state lies in objects of a store. A store is rooted (at a bucket, or at the root of a file
system); keys are relative to that root, have no leading slash and use `/`.

Every implementation guarantees:

1. An object appears under its name as a whole or not at all, even after a crash.
2. `create` succeeds for exactly one of any number of concurrent callers.
3. Listing and reading are consistent with completed writes.
4. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from lithify.base.errors import StoreError

_LOCAL_SCHEMES = ("file:", "memory:")


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's metadata, from a listing or a HEAD request."""

    key: str
    size: int
    """Bytes."""
    last_modified_ms: int
    """Wall-clock milliseconds, by the store's clock."""
    etag: str | None
    """The argument for `replace`; guaranteed only from `head`, `get_with_meta`, `create` and `replace`."""
    put_id: str | None = None
    """The `put_id` given to `create`; only from `get_with_meta`, and only if the store has user metadata."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The direct children of a folder."""

    folders: tuple[str, ...]
    """Keys of its subfolders, without a closing slash."""
    objects: tuple[ObjectMeta, ...]


class ObjectWriter(Protocol):
    """A streaming upload. The object appears under its name only on `commit`."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. The caller must not change them before the writer's next call has returned."""
        ...

    def give(self, data: memoryview) -> None:
        """Append bytes that are never changed any more, so that the writer need not copy them."""
        ...

    def commit(self) -> None:
        """Publish the object under its key, replacing any object there."""
        ...

    def abort(self) -> None:
        """Discard the upload; has no effect after `commit`."""
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
        """Read the whole object. Raise `ObjectNotFound` if there is none."""
        ...

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        """Read the whole object and its metadata in one request."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`. Raise `StoreError` if the object is shorter."""
        ...

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`. Raise `StoreError` if the object is shorter."""
        ...

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        """Read `length` bytes from `offset` into new memory, without copying them again. Raise `StoreError`
        if the object is shorter."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Read the metadata of one object. Raise `ObjectNotFound` if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """List the objects under the folder `prefix` (with or without its closing slash) and its subfolders,
        in key order. Staging names are never listed."""
        ...

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        """List the same objects page by page, as the caller consumes them, so that memory does not limit
        their number. Each object once, in any order."""
        ...

    def folder(self, prefix: str) -> FolderListing:
        """List the direct children of the folder `prefix`."""
        ...

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        """Create the object and return its etag. Raise `ObjectExists` if the key exists.

        After any other `StoreError` the object may have been created, with only the answer lost; the same is
        true of `ObjectExists` if the store repeats lost requests by itself. `put_id` (at most 64 letters and
        digits) is stored as user metadata, so that `lithify.store.versions` can find out by reading the
        object back; the local file system has no user metadata.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write the object, atomically replacing any object there."""
        ...

    def copy(self, source: str, key: str) -> bool:
        """Let the store itself copy an object to `key`, replacing any object there. Return whether it can;
        if not, nothing was done. Raise `ObjectNotFound` if there is no such object."""
        ...

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        """Overwrite the object if its etag is still `etag`, and return the new etag. Raise
        `PreconditionFailed` otherwise."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object; deleting a missing one is no error."""
        ...

    def open_writer(self, key: str, part_bytes: int | None = None) -> ObjectWriter:
        """Start a streaming upload of a large object. Behind a network it is sent in requests of `part_bytes`
        each, 5 MiB or more, or of as many as the store finds right."""
        ...

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        """List staged files under the folder `prefix`, by staging name: those being written, and those left
        by killed writers. Only the local file system has any."""
        ...

    def delete_staged(self, key: str) -> None:
        """Delete a file from `list_staged`; a missing one is no error. If its writer is alive, it fails."""
        ...


def folder_of(prefix: str, objects: Iterable[ObjectMeta]) -> FolderListing:
    """Derive the direct children of a folder from all objects under it (pure)."""
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
    """Return whether the store answers without a network."""
    return store.url.startswith(_LOCAL_SCHEMES)


MAX_OFFSET = (1 << 62) - 1


def check_range(key: str, offset: int, length: int) -> None:
    """Raise `StoreError` if no object can have these bytes."""
    if offset < 0 or length < 0 or offset + length > MAX_OFFSET:
        raise StoreError(f"get {key}: no object has {length} bytes at {offset}")

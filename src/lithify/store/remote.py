"""Object stores behind a network (S3, GCS, Azure), and obstore's own in-memory one.

obstore is the Rust `object_store` library that SlateDB uses too; this module adapts it to the protocol and
its errors to ours.

- obstore sends each request once; `lithify.store.resilience.requests` retries connection failures, including
  those in the bodies of answers. A repeated create can raise `ObjectExists` although its first try succeeded;
  `put_id` is stored as user metadata to detect this.
- `lithify.store.multipart` streams large objects. obstore itself retries the parts of an upload, for as long
  as other requests are retried; likewise an object too large to be sent before a connection counts as silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore

from lithify.base.errors import (
    NotServed,
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from lithify.store.keys import check_key, is_staging_name
from lithify.store.multipart import IN_FLIGHT_BYTES, MultipartWriter
from lithify.store.objects import FolderListing, ObjectMeta, check_range
from lithify.store.resilience.causes import failure_of, not_served, right_for, said_by
from lithify.store.resilience.hedging import GotOn
from lithify.store.resilience.pace import UploadPace
from lithify.store.resilience.requests import Direct
from lithify.store.resilience.retries import RequestFailure

if TYPE_CHECKING:
    from obstore import GetOptions, UpdateVersion
    from obstore.store import ObjectStore as Backend

MAX_QUICK_BYTES = 4 * 1024 * 1024
"""Even a slow connection transfers this much before it counts as silent."""
PUT_ID_METADATA = "lithifyputid"
"""Name of the user metadata for `put_id`; letters only, as Azure requires."""
_CONFLICT = "409 Conflict"
_MAX_CONFLICTS = 10
"""S3 answers with a conflict when another write to the object ends at that moment, and asks to retry."""
PAGE = 10_000
"""Objects of a listing held in memory at once."""
FIRST_PAGE = 1_000
"""Size of the first page, for callers that need only a few; most stores return this many per request."""
MAX_COPIED_BYTES = 512 << 20
"""A store sends nothing while it copies; a larger object would take so long that the connection counts as
silent."""
PROBE_KEY = "lithify/is-the-store-back"
"""Requested to probe the store; the object does not exist."""


class ObstoreStore:
    """An obstore store rooted at a bucket."""

    def __init__(
        self,
        url: str,
        backend: Backend,
        requests: Direct | None = None,
        uploads: Callable[[], Backend] | None = None,
        pace: UploadPace | None = None,
    ) -> None:
        """`uploads` returns the backend of writers if that differs; `pace` is the measured pace of their
        parts."""
        self._url = url
        self._backend = backend
        self._requests = requests if requests is not None else Direct()
        self._uploads = uploads if uploads is not None else lambda: backend
        self._pace = pace if pace is not None else UploadPace()
        # Google's conditional writes go by the object's generation, all others' by its etag.
        self._goes_by_version = isinstance(backend, GCSStore)

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        return self.get_with_meta(key)[0]

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        def read(got_on: GotOn) -> tuple[bytes, ObjectMeta]:
            with _failures("get", key):
                answer = obstore.get(self._backend, check_key(key))
                got_on()
                put_id = answer.attributes.get(PUT_ID_METADATA)
                return answer.bytes().to_bytes(), self._meta(answer.meta, put_id)

        return self._requests.read_on(read)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        return self._range(key, offset, length).to_bytes() if length else b""

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        check_range(key, offset, target.nbytes)
        if target.nbytes:
            # Copied here, not in the request, which may continue after another try was faster.
            target.cast("B")[:] = memoryview(self._range(key, offset, target.nbytes))

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        check_range(key, offset, length)
        return memoryview(self._range(key, offset, length)) if length else memoryview(b"")

    def head(self, key: str) -> ObjectMeta:
        def read() -> ObjectMeta:
            with _failures("head", key):
                return self._meta(obstore.head(self._backend, check_key(key)))

        return self._requests.read(read)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = prefix.strip("/")

        def read(got_on: GotOn) -> list[ObjectMeta]:
            metas: list[ObjectMeta] = []
            with _failures("list", folder or "/"):
                # Chunks of one object cost no more, and report every page, however short.
                for chunk in obstore.list(self._backend, folder or None, chunk_size=1):
                    got_on()
                    metas.extend(map(self._meta, chunk))
            return metas

        found = self._requests.read_on(read)
        # Directory buckets of S3 do not list in key order.
        return iter(sorted((meta for meta in found if not is_staging_name(meta.key)), key=attrgetter("key")))

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = prefix.strip("/")
        last: str | None = None
        size = FIRST_PAGE

        def read(got_on: GotOn) -> tuple[list[ObjectMeta], bool]:
            page: list[ObjectMeta] = []
            with _failures("list", folder or "/"):
                for chunk in obstore.list(self._backend, folder or None, offset=last, chunk_size=1):
                    got_on()
                    page.extend(map(self._meta, chunk))
                    if len(page) >= size and page[-1].size:
                        return page, False
            return page, True

        is_over = False
        while not is_over:
            page, is_over = self._requests.read_on(read)
            # A folder marker (`x/`) is listed as `x`, after `x-1`. So only objects with content show the
            # order and the position, and a page never ends with a possible marker.
            keys = [meta.key for meta in page if meta.size]
            if keys != sorted(keys) or (last is not None and keys and keys[0] <= last):
                if last is not None:
                    raise StoreError(f"list {folder or '/'}: the store does not list in key order")
                yield from self.list(prefix)
                return
            yield from (meta for meta in page if not is_staging_name(meta.key))
            last, size = keys[-1] if keys else last, PAGE

    def folder(self, prefix: str) -> FolderListing:
        folder = prefix.strip("/")

        def read() -> FolderListing:
            with _failures("list", folder or "/"):
                found = obstore.list_with_delimiter(self._backend, folder or None)
                objects = (self._meta(meta) for meta in found["objects"])
                return FolderListing(
                    tuple(sorted(key.strip("/") for key in found["common_prefixes"])),
                    tuple(meta for meta in objects if not is_staging_name(meta.key)),
                )

        return self._requests.read(read)

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        attributes = {} if put_id is None else {PUT_ID_METADATA: put_id}

        def write() -> str | None:
            # The store may report a conflict by 412 or by 409.
            with _failures("create", key):
                backend = self._writing(data)
                return self._etag(
                    obstore.put(backend, check_key(key), data, mode="create", attributes=attributes)
                )

        return self._requests.write(write, len(data))

    def put(self, key: str, data: bytes) -> None:
        def write() -> None:
            with _failures("put", key):
                obstore.put(self._writing(data), check_key(key), data, use_multipart=False)

        self._requests.write(write, len(data))

    def copy(self, source: str, key: str) -> bool:
        if self.head(source).size > MAX_COPIED_BYTES:
            return False

        def write() -> None:
            with _failures("copy", source):
                obstore.copy(self._backend, check_key(source), check_key(key))

        self._requests.write(write)
        return True

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        conflicts, is_conflict = 0, False

        def write() -> str | None:
            nonlocal conflicts, is_conflict
            is_conflict = False
            with _failures("replace", key):
                backend = self._writing(data)
                mode: UpdateVersion = {"version": etag} if self._goes_by_version else {"e_tag": etag}
                try:
                    return self._etag(obstore.put(backend, check_key(key), data, mode=mode))
                except AlreadyExistsError as error:
                    conflicts, is_conflict = conflicts + 1, True
                    text = f"replace {key}: {_CONFLICT}: another write is under way"
                    if conflicts == _MAX_CONFLICTS:
                        raise PreconditionFailed(text) from error
                    raise StoreUnavailable(text, _CONFLICT) from error

        try:
            return self._requests.write(write, len(data))
        except StoreUnavailable as error:
            if is_conflict:
                raise PreconditionFailed(str(error)) from error
            raise

    def delete(self, key: str) -> None:
        def write() -> None:
            with _failures("delete", key):
                obstore.delete(self._backend, check_key(key))

        with suppress(ObjectNotFound):
            self._requests.write(write)

    def open_writer(self, key: str, part_bytes: int | None = None) -> MultipartWriter:
        watch = self._requests.watch(IN_FLIGHT_BYTES, self._pace.patience_s)
        return MultipartWriter(key, self._uploads, _failures, watch, self, self._pace, part_bytes)

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        return iter(())

    def delete_staged(self, key: str) -> None:
        raise StoreError(f"{key!r}: this store has no staging names")

    def _writing(self, data: bytes) -> Backend:
        return self._backend if len(data) <= MAX_QUICK_BYTES else self._uploads()

    def _range(self, key: str, offset: int, length: int) -> obstore.Bytes:
        def read(got_on: GotOn) -> obstore.Bytes:
            with _failures("get", key):
                options: GetOptions = {"range": (offset, offset + length)}
                answer = obstore.get(self._backend, check_key(key), options=options)
                got_on()
                return answer.bytes()

        data = self._requests.read_on(read, length)
        if len(data) != length:
            raise StoreError(f"get {key}: it ends {length - len(data)} bytes before {offset + length}")
        return data

    def _meta(self, meta: obstore.ObjectMeta, put_id: str | None = None) -> ObjectMeta:
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectMeta(meta["path"], meta["size"], modified_ms, self._etag(meta), put_id)

    def _etag(self, answer: obstore.ObjectMeta | obstore.PutResult) -> str | None:
        if self._goes_by_version:
            return answer["version"]
        etag = answer["e_tag"]
        # A proxy that compresses makes the etag weak, and a weak etag overwrites nothing; the store has the
        # strong one. If the store itself has none, its proof fails (`lithify.store.proof`).
        return None if etag is None else etag.removeprefix("W/")


def probe(backend: Backend) -> None:
    """Request a missing object. Raise `StoreUnavailable` if the store does not answer."""
    with suppress(ObjectNotFound), _failures("head", PROBE_KEY):
        obstore.head(backend, PROBE_KEY)


@contextmanager
def _failures(verb: str, key: str) -> Iterator[None]:
    """Convert obstore's errors into ours, with the key and the beginning of the cause."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFound(f"{verb} {key}: no such object") from error
    except AlreadyExistsError as error:
        raise ObjectExists(f"{verb} {key}: it exists already") from error
    except PreconditionError as error:
        # A 412 to a create is never about an etag.
        kind = ObjectExists if verb == "create" else PreconditionFailed
        raise kind(f"{verb} {key}: another process was faster") from error
    except (BaseError, OSError, ValueError) as error:
        lacking = not_served(error, verb)
        if lacking is not None:
            raise NotServed(f"{verb} {key}: {lacking}") from error
        said = said_by(error)
        failure, cause = failure_of(error)
        if failure is RequestFailure.LASTING:
            raise StoreError(f"{verb} {key}: {said}{right_for(error, verb)}") from error
        text = f"{verb} {key}: {said}" if cause in said else f"{verb} {key}: {cause}: {said}"
        raise StoreUnavailable(text, cause, is_doubtful=failure is RequestFailure.DOUBTFUL) from error

"""Object stores behind a network (S3, GCS, Azure), and obstore's own in-memory one.

obstore is the Rust `object_store` library that SlateDB uses too; this file only fits it to the
protocol and its errors to ours.

- It repeats requests that failed on the way, by itself, a finite number of times and for a finite
  time. A create that it repeats can answer `ObjectExists` although the first try landed; `put_id`
  travels as user metadata so that this can be told. An answer that broke off in its middle it does
  not always ask for again (never for a list), so that is done here.
- Large objects are streamed by `lithify.store.multipart`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore

from lithify.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.keys import check_key, is_staging_name
from lithify.store.multipart import MultipartWriter
from lithify.store.objects import ObjectMeta
from lithify.store.ranges import check_range

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

PUT_ID_METADATA = "lithifyputid"
"""Name of the user metadata that carries `put_id`; letters only, as Azure demands."""
_MAX_CAUSE_CHARS = 500
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Before each time that an answer which broke off is asked for again."""
_BROKE_OFF = "response body"
"""obstore says no more of why."""

_T = TypeVar("_T")


class ObstoreStore:
    """A store of obstore's that is rooted at a bucket."""

    def __init__(self, url: str, backend: Backend) -> None:
        self._url = url
        self._backend = backend
        # Google's conditional writes go by the object's generation, all others' by its etag.
        self._goes_by_version = isinstance(backend, GCSStore)

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        return self.get_with_meta(key)[0]

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        def read() -> tuple[bytes, ObjectMeta]:
            answer = obstore.get(self._backend, check_key(key))
            put_id = answer.attributes.get(PUT_ID_METADATA)
            return answer.bytes().to_bytes(), self._meta(answer.meta, put_id)

        return _whole("get", key, read)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        return self._range(key, offset, length).to_bytes() if length else b""

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        check_range(key, offset, target.nbytes)
        if target.nbytes:
            target.cast("B")[:] = memoryview(self._range(key, offset, target.nbytes))

    def head(self, key: str) -> ObjectMeta:
        with _failures("head", key):
            return self._meta(obstore.head(self._backend, check_key(key)))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = prefix.strip("/")

        def read() -> list[ObjectMeta]:
            chunks = obstore.list(self._backend, folder or None)
            return [self._meta(item) for chunk in chunks for item in chunk]

        found = _whole("list", folder or "/", read)
        # Not every store lists in key order (directory buckets of S3 do not).
        return iter(sorted((meta for meta in found if not is_staging_name(meta.key)), key=attrgetter("key")))

    def create(self, key: str, data: bytes, put_id: str | None = None) -> None:
        attributes = {} if put_id is None else {PUT_ID_METADATA: put_id}
        # A conflict is a conflict, whether the store says so by 412 or by 409.
        with _failures("create", key):
            obstore.put(self._backend, check_key(key), data, mode="create", attributes=attributes)

    def put(self, key: str, data: bytes) -> None:
        with _failures("put", key):
            obstore.put(self._backend, check_key(key), data, use_multipart=False)

    def replace(self, key: str, data: bytes, etag: str) -> None:
        with _failures("replace", key):
            if self._goes_by_version:
                obstore.put(self._backend, check_key(key), data, mode={"version": etag})
            else:
                obstore.put(self._backend, check_key(key), data, mode={"e_tag": etag})

    def delete(self, key: str) -> None:
        try:
            with _failures("delete", key):
                obstore.delete(self._backend, check_key(key))
        except ObjectNotFound:
            return

    def open_writer(self, key: str) -> MultipartWriter:
        return MultipartWriter(key, self._backend, _failures)

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        return iter(())

    def delete_staged(self, key: str) -> None:
        raise StoreError(f"{key!r}: this store has no staging names")

    def _range(self, key: str, offset: int, length: int) -> obstore.Bytes:
        data = _whole(
            "get", key, lambda: obstore.get_range(self._backend, check_key(key), start=offset, length=length)
        )
        if len(data) != length:
            raise StoreError(f"get {key}: it ends {length - len(data)} bytes before {offset + length}")
        return data

    def _meta(self, meta: obstore.ObjectMeta, put_id: str | None = None) -> ObjectMeta:
        etag = meta["version"] if self._goes_by_version else meta["e_tag"]
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectMeta(meta["path"], meta["size"], modified_ms, etag, put_id)


def _whole(verb: str, key: str, read: Callable[[], _T]) -> _T:
    """What `read` gives, asked for again while the answer breaks off."""
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            with _failures(verb, key):
                return read()
        except StoreError as error:
            pause_s = next(pauses_s, None) if _BROKE_OFF in str(error) else None
            if pause_s is None:
                raise
        time.sleep(pause_s)


@contextmanager
def _failures(verb: str, key: str) -> Iterator[None]:
    """Turn obstore's errors into ours, with the key and the start of the cause."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFound(f"{verb} {key}: no such object") from error
    except AlreadyExistsError as error:
        raise ObjectExists(f"{verb} {key}: it exists already") from error
    except PreconditionError as error:
        # Some stores answer 412 to a create, which then never is about an etag.
        kind = ObjectExists if verb == "create" else PreconditionFailed
        raise kind(f"{verb} {key}: another party was faster") from error
    except (BaseError, OSError, ValueError) as error:
        cause = str(error).partition("\n\nDebug source")[0][:_MAX_CAUSE_CHARS]
        raise StoreError(f"{verb} {key}: {cause}") from error

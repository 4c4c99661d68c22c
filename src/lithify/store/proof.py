"""Proof that a store guarantees what the protocol requires, before the first write to a place.

A *place* is a folder of Lithify's own: of a dataset, a fleet, a group. Two guarantees are tested (`examine`)
with an object of a random name below `probes/`, which is deleted afterwards:

1. *Create-if-absent* (S3: `If-None-Match: *`). An existing object is not created again and does not change.
   Otherwise two processes could publish the same version, and the work of one would be lost.
2. *Conditional overwrite* (S3: `If-Match`). An object is overwritten by the ETag of its last write, which the
   store returns for writes and reads; not by an older ETag, and not after the object is deleted. Leases,
   holds, groups and garbage collection depend on it.

`ProvedStore` tests them before the first modifying call. Reads need no proof, so a plan or a status works
with any store and with read-only credentials. A successful proof is recorded in the place as `proof.json`, so
that later processes need only one read. The record names the store, and its time by the store's clock must
agree with the object's modification time. So it is not valid in a copy of the bucket, moved or restored: the
copy has a later modification time, and that store is tested again.

- Two concurrent processes use separate objects, and write the same record.
- A process that dies during the proof leaves its object and no record. Later proofs delete objects older than
  an hour.
- A test that cannot be made (the store is away, or writing is denied) proves nothing and is not recorded.
- This machine's file system and memory need no proof, because Lithify's own code accesses them (`proved`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from lithify.base.errors import (
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UnfitStore,
)
from lithify.base.ids import Ids
from lithify.base.jsonvalues import UNDECODABLE, whole_number
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectStore, is_local
from lithify.store.wrapped import READS, Call, WrappedStore

CREATE, OVERWRITE = "create-if-absent", "conditional overwrite"
PROBES = "probes"
MEMORY = "proof.json"
REQUIREMENTS = 1
"""Changes when tests are added: older records are invalid then."""
LEFTOVER_MS = 3_600_000
"""The process of a probe of this age has ended."""
MAX_APART_MS = 300_000
"""Maximum time from the end of a proof to the write of its record, both by the store's clock."""
MAX_MS = (1 << 63) - 1
_WHOLE_SECOND_MS = 1_000
_FIRST, _SECOND, _THIRD = b"probe", b"twice", b"again"
_NO_ETAG = "the store returns no etag, which is needed to overwrite an object"

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of testing one guarantee of a store."""

    check: str
    says: str
    do: str = ""
    """Advice if the guarantee does not hold; empty if it does."""
    at_ms: int = 0
    """Time of the test by the store's clock, if known."""

    @property
    def is_kept(self) -> bool:
        return not self.do


def examine(store: ObjectStore, key: str) -> Iterator[Verdict]:
    """Test both guarantees with a new object at `key`, and delete it. Raise `StoreError` if it cannot be
    written, or the store does not answer."""
    try:
        yield _try_create(store, key)
        yield _try_overwrite(store, key)
    finally:
        with suppress(StoreError):  # permission to delete is a separate matter
            store.delete(key)


def probe_key(folder: str, ids: Ids) -> str:
    """Return a new key for `examine`."""
    return join(folder, PROBES, f"{ids.uuid().hex}.probe")


def sweep(store: ObjectStore, folder: str, now_ms: int) -> None:
    """Delete the probes of dead processes in a place; `now_ms` is by the store's clock."""
    with suppress(StoreError):
        probes = list(store.list(join(folder, PROBES)))
        for meta in probes:
            if now_ms - meta.last_modified_ms > LEFTOVER_MS:
                store.delete(meta.key)


# Guarantees


def _try_create(store: ObjectStore, key: str) -> Verdict:
    do = "use a store that has conditional writes (S3: If-None-Match), or enable them"
    try:
        store.create(key, _FIRST)
    except StoreUnavailable:
        raise
    except ObjectExists:
        if not _is_there(store, key):  # else only the answer to a first try was lost
            return Verdict(CREATE, "the store reports that a new object exists already", do)
    except StoreError as error:
        _put_instead(store, key, error)
        return Verdict(CREATE, f"creating an object only if absent does not work here: {error}", do)
    try:
        store.create(key, _SECOND)
    except StoreUnavailable:
        raise
    except ObjectExists:
        return Verdict(CREATE, "an existing object is not created again")
    except StoreError as error:
        return Verdict(CREATE, f"creating an object only if absent does not work here: {error}", do)
    return Verdict(
        CREATE,
        "the store overwrote an object that should be created only if absent, so two processes could publish "
        "the same version, and the commit of one of them would be lost",
        "do not write to this store, with Lithify or with SlateDB; use a store that has conditional writes "
        "(S3: If-None-Match), or enable them",
    )


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        return store.get(key) == _FIRST
    except ObjectNotFound:
        return False


def _put_instead(store: ObjectStore, key: str, error: StoreError) -> None:
    """Write the object without a condition; if that fails too, raise the error of the create."""
    try:
        store.put(key, _FIRST)
    except StoreUnavailable:
        raise
    except StoreError:
        raise error from None


def _try_overwrite(store: ObjectStore, key: str) -> Verdict:
    try:
        fault, at_ms = _fault_of_overwriting(store, key)
    except StoreUnavailable:
        raise
    except StoreError as error:
        fault, at_ms = f"conditional overwrites do not work here: {error}", 0
    if not fault:
        return Verdict(OVERWRITE, "an object is overwritten only with its current etag", at_ms=at_ms)
    return Verdict(
        OVERWRITE,
        fault,
        "leases, holds and garbage collection need conditional overwrites with strong etags (S3: If-Match); "
        "use a store that has them, and no proxy that changes etags",
    )


def _fault_of_overwriting(store: ObjectStore, key: str) -> tuple[str, int]:
    """Return the store's fault with the object at `key`, empty if none, and the object's time."""
    first = store.get_with_meta(key)[1].etag
    if first is None:
        return _NO_ETAG, 0
    written = None
    with suppress(PreconditionFailed, ObjectNotFound):  # perhaps only the answer to a first try was lost
        written = store.replace(key, _THIRD, first)
    data, meta = store.get_with_meta(key)
    if data != _THIRD:
        return (
            f"the store refuses an overwrite with the etag that it returned ({first[:80]}); its etags may be "
            "weak"
        ), 0
    if meta.etag is None:
        return _NO_ETAG, 0
    if meta.etag == first:
        return f"the store gives two different contents of an object the same etag ({first[:80]})", 0
    if not _is_refused(store, key, first):
        return "the store overwrote an object despite a wrong etag", 0
    if written is not None and written != meta.etag:
        return (
            f"the store returns one etag when an object is written ({written[:80]}) and another when it is "
            f"read ({meta.etag[:80]})"
        ), 0
    try:
        store.delete(key)
    except StoreUnavailable:
        raise
    except StoreError:
        return "", meta.last_modified_ms  # without deletion, the last test is not possible
    if not _is_refused(store, key, meta.etag):
        return "the store wrote a deleted object although an etag was given", 0
    return "", meta.last_modified_ms


def _is_refused(store: ObjectStore, key: str, etag: str) -> bool:
    """Return whether an overwrite by a stale etag is refused."""
    try:
        store.replace(key, _FIRST, etag)
    except (PreconditionFailed, ObjectNotFound):
        return True
    return False


# The record


class ProvedStore(WrappedStore):
    """Forwards all calls, after the store is proved for the place `folder`. Raises `UnfitStore` before any
    change if a guarantee does not hold."""

    def __init__(self, inner: ObjectStore, folder: str, ids: Ids) -> None:
        super().__init__(inner)
        self._folder = folder
        self._ids = ids
        self._is_proved = False
        self._proving = threading.Lock()

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if not self._is_proved and call.method not in READS:
            with self._proving:
                self._prove()
        return action()

    def _prove(self) -> None:
        if not self._is_proved and not self._is_remembered():
            self._remember(self._proved_ms())
        self._is_proved = True

    def _is_remembered(self) -> bool:
        try:
            data, meta = self.inner.get_with_meta(join(self._folder, MEMORY))
        except ObjectNotFound:
            return False
        try:
            known = json.loads(data)
            proved_ms = whole_number(known["proved_ms"], most=MAX_MS)
            is_of_here = (known["store"], known["requirements"]) == (self.url, REQUIREMENTS)
        except UNDECODABLE:
            return False
        return is_of_here and -_WHOLE_SECOND_MS <= meta.last_modified_ms - proved_ms <= MAX_APART_MS

    def _proved_ms(self) -> int:
        """Prove the store. Return the time of the proof by the store's clock."""
        now_ms = 0
        for verdict in examine(self.inner, probe_key(self._folder, self._ids)):
            if not verdict.is_kept:
                place = url_of(self.url, self._folder)
                raise UnfitStore(f"{place}: {verdict.says}; nothing else was written; {verdict.do}")
            now_ms = max(now_ms, verdict.at_ms)
        sweep(self.inner, self._folder, now_ms)
        return now_ms

    def _remember(self, proved_ms: int) -> None:
        known = {"store": self.url, "requirements": REQUIREMENTS, "proved_ms": proved_ms}
        self.inner.put(join(self._folder, MEMORY), json.dumps(known).encode())


def proved(store: ObjectStore, folder: str, ids: Ids) -> ObjectStore:
    """Return the store for a place, proved before its first write unless it is local."""
    return store if is_local(store) else ProvedStore(store, folder, ids)


def unproved(store: ObjectStore) -> ObjectStore:
    """Return the store without a proof, for the doctor, which reports each finding separately."""
    return store.inner if isinstance(store, ProvedStore) else store

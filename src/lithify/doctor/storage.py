"""Whether the object store keeps what the protocol rests on.

With a probe object under `lithify/doctor/`, which is removed again:

1. It can be created, and creating it once more is refused (create-if-absent): else two coordinators
   could both publish the same version, and one commit would be lost.
2. An overwrite with a wrong etag is refused: leases, holds, groups and garbage collection rest on it.
3. The store's clock and this machine's agree. Leases, heartbeats and members are judged by the store's alone.
4. It can be deleted. So are probes that a doctor who was killed has left behind, an hour later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lithify.clock import Clock
from lithify.compaction.finding import Finding, ok, problem, warning
from lithify.errors import ObjectExists, PreconditionFailed, StoreError
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_SKEW_MS = 2_000
"""A tenth of what would disturb a heartbeat timeout of 20 s."""
LEFTOVER_MS = 3_600_000
_WRITE = (
    "grant this user read, write, list and delete below the database's folder (S3: s3:GetObject, "
    "s3:PutObject, s3:DeleteObject, s3:ListBucket)"
)


def check_storage(store: ObjectStore, folder: str, clock: Clock, ids: Ids) -> Iterator[Finding]:
    """Write, read and delete the probe."""
    key = join(folder, "doctor", f"{ids.uuid().hex}.probe")
    try:
        store.create(key, b"probe")
    except StoreError as error:
        with suppress(StoreError):  # it may have come into being all the same
            store.delete(key)
        yield problem("write", f"nothing can be written below {store.url}: {error}", _WRITE)
        return
    yield ok("write", "objects can be created")
    try:
        yield _check_create(store, key)
        yield _check_replace(store, f"{key.removesuffix('.probe')}-etag.probe")
        yield _check_clock(store, key, clock)
    finally:
        yield _check_delete(store, key)
        _sweep(store, join(folder, "doctor"), clock.now_ms())


def _check_create(store: ObjectStore, key: str) -> Finding:
    try:
        store.create(key, b"twice")
    except ObjectExists:
        return ok("create-if-absent", "an object that exists is not created again")
    except StoreError as error:
        return problem(
            "create-if-absent",
            f"creating an object only if absent does not work here: {error}",
            "use a store that has conditional writes (S3: If-None-Match), or enable them",
        )
    return problem(
        "create-if-absent",
        "the store overwrote an object that was to be created only if absent: two processes could publish "
        "the same version, and what one of them committed would be lost",
        "do not write to databases in this store, with Lithify or with SlateDB; use one that has "
        "conditional writes (S3: If-None-Match)",
    )


def _check_replace(store: ObjectStore, key: str) -> Finding:
    do = (
        "leases, holds and garbage collection need conditional overwrites (S3: If-Match); use a store that "
        "has them"
    )
    try:
        store.put(key, b"probe")
        store.replace(key, b"wrong", "not-its-etag")
    except PreconditionFailed:
        return ok("conditional overwrite", "an overwrite with a wrong etag is refused")
    except StoreError as error:
        return problem("conditional overwrite", f"conditional overwrites do not work here: {error}", do)
    finally:
        with suppress(StoreError):  # told by the check of deletions
            store.delete(key)
    return problem("conditional overwrite", "the store overwrote an object in spite of a wrong etag", do)


def _check_clock(store: ObjectStore, key: str, clock: Clock) -> Finding:
    before_ms = clock.now_ms()
    try:
        store.put(key, b"time")
        written_ms = store.head(key).last_modified_ms
    except StoreError as error:
        return problem("clock", f"an object that was just written cannot be read: {error}", _WRITE)
    # Some stores keep whole seconds only: what was written in this second may seem to be older.
    early_ms = before_ms // 1000 * 1000 - written_ms
    late_ms = written_ms - clock.now_ms()
    skew_ms = max(early_ms, late_ms, 0)
    if skew_ms <= MAX_SKEW_MS:
        return ok("clock", "the store's clock and this machine's agree")
    word = "ahead of" if late_ms < early_ms else "behind"
    return warning(
        "clock",
        f"this machine's clock is {skew_ms / 1000:.1f} s {word} the store's",
        "synchronise it (NTP): ids and times of what is written here are off by as much; beside SlateDB's "
        "coordinator, a worker whose clock is behind by more than the heartbeat timeout loses its work",
    )


def _sweep(store: ObjectStore, folder: str, now_ms: int) -> None:
    with suppress(StoreError):
        old = [meta.key for meta in store.list(folder) if now_ms - meta.last_modified_ms > LEFTOVER_MS]
        for key in old:
            store.delete(key)


def _check_delete(store: ObjectStore, key: str) -> Finding:
    try:
        store.delete(key)
    except StoreError as error:
        return problem("delete", f"{key} cannot be deleted: {error}", _WRITE)
    return ok("delete", "objects can be deleted")

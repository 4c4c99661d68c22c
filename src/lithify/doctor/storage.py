"""Checks whether the object store guarantees what the protocol requires.

They use a probe object, which they delete at the end:

1. The store keeps both promises that every run proves before its first write (`lithify.store.proof`):
   create-if-absent and conditional overwrites.
2. The store's clock and this machine's agree. Leases, heartbeats and members are judged by the store's alone.
3. Objects can be listed and deleted. Probes that a killed process has left are deleted an hour later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lithify.base.clock import Clock
from lithify.base.errors import StoreError
from lithify.base.ids import Ids
from lithify.protocol.finding import Finding, advice, ok, problem, warning
from lithify.store.objects import ObjectStore
from lithify.store.proof import examine, probe_key, sweep, unproved
from lithify.store.times import store_now_ms

MAX_SKEW_MS = 2_000
"""A tenth of the skew that disturbs a heartbeat timeout of 20 s."""
_WRITE = (
    "grant this user read, write, list and delete below the database's folder (S3: s3:GetObject, "
    "s3:PutObject, s3:DeleteObject, s3:ListBucket)"
)


def check_storage(store: ObjectStore, folder: str, clock: Clock, ids: Ids) -> Iterator[Finding]:
    """Yield the findings of writing, reading, listing and deleting the probe."""
    store, key = unproved(store), probe_key(folder, ids)
    try:
        verdicts = list(examine(store, key))
    except StoreError as error:
        with suppress(StoreError):  # the write may have taken effect
            store.delete(key)
        yield problem("write", f"nothing can be written below {store.url}: {error}", advice(error, _WRITE))
        return
    yield ok("write", "objects can be created")
    for verdict in verdicts:
        if verdict.is_kept:
            yield ok(verdict.check, verdict.says)
        else:
            yield problem(verdict.check, verdict.says, verdict.do)
    try:
        yield _check_clock(store, key, clock)
        yield _check_list(store, key.rpartition("/")[0])
    finally:
        yield _check_delete(store, key, folder)


def _check_clock(store: ObjectStore, key: str, clock: Clock) -> Finding:
    before_ms = clock.now_ms()
    try:
        store.put(key, b"time")
        written_ms = store.head(key).last_modified_ms
    except StoreError as error:
        return problem(
            "clock", f"an object that was just written cannot be read: {error}", advice(error, _WRITE)
        )
    # Some stores keep whole seconds only, so that an object may seem up to a second too old.
    early_ms = before_ms // 1000 * 1000 - written_ms
    late_ms = written_ms - clock.now_ms()
    skew_ms = max(early_ms, late_ms, 0)
    if skew_ms <= MAX_SKEW_MS:
        return ok("clock", "the store's clock and this machine's agree")
    word = "ahead of" if late_ms < early_ms else "behind"
    return warning(
        "clock",
        f"this machine's clock is {skew_ms / 1000:.1f} s {word} the store's",
        "synchronise it (NTP): ids and times that this machine writes are off by as much; under SlateDB's "
        "coordinator, a worker whose clock is behind by more than the heartbeat timeout loses its work",
    )


def _check_delete(store: ObjectStore, key: str, folder: str) -> Finding:
    with suppress(StoreError):
        sweep(store, folder, store_now_ms(store, key))
    try:
        store.delete(key)
    except StoreError as error:
        return problem("delete", f"{key} cannot be deleted: {error}", advice(error, _WRITE))
    return ok("delete", "objects can be deleted")


def _check_list(store: ObjectStore, folder: str) -> Finding:
    try:
        next(store.list(folder), None)
    except StoreError as error:
        return problem("list", f"objects below {folder} cannot be listed: {error}", advice(error, _WRITE))
    return ok("list", "objects can be listed")

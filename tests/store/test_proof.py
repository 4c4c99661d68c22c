"""A store is proved before the first write of a place, once, and the proof is remembered there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from lithify.base.errors import ObjectExists, StoreError, StoreUnavailable, UnfitStore
from lithify.base.ids import RandomIds
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.proof import LEFTOVER_MS, MAX_APART_MS, ProvedStore, proved
from lithify.store.times import StoreTime
from lithify.testing import CountingStore, ManualClock, MemoryStore, WrappedStore
from lithify.testing.faulty import Crash, FaultyStore

PLACE, KEY, MEMORY = "db/lithify", "db/lithify/ledger/1", "db/lithify/proof.json"


def at(store: ObjectStore) -> ProvedStore:
    """The store as a process sees it that begins now."""
    return ProvedStore(store, PLACE, RandomIds())


def keys(store: ObjectStore) -> list[str]:
    return [meta.key for meta in store.list("")]


class Odd(WrappedStore):
    """A store that is wrong in one way."""

    def __init__(self, way: str, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.way = way

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        if self.way == "no create":
            raise StoreError("501 Not Implemented")
        if self.way == "creates anything":
            self.inner.put(key, data)
            return self.inner.head(key).etag
        if self.way == "creates nothing":
            raise ObjectExists(key)
        return self.inner.create(key, data, put_id)

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        if self.way == "no replace":
            raise StoreError("501 Not Implemented")
        if self.way == "replaces anything" or (self.way == "replaces what is gone" and key not in keys(self)):
            self.inner.put(key, data)
            return self.inner.head(key).etag
        if self.way == "weak etags":
            etag = f"W/{etag}"
        written = self.inner.replace(
            key, data, etag if self.way != "one etag" else self.inner.head(key).etag or ""
        )
        return "other" if self.way == "two etags" else written

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        data, meta = self.inner.get_with_meta(key)
        etag = {"no etags": None, "one etag": "always"}.get(self.way, meta.etag)
        return data, ObjectMeta(key, meta.size, meta.last_modified_ms, etag)


WAYS = {
    "no create": "creating an object only if absent does not work here: 501 Not Implemented",
    "creates anything": "the store overwrote an object that should be created only if absent",
    "creates nothing": "reports that a new object exists already",
    "no replace": "conditional overwrites do not work here: 501 Not Implemented",
    "replaces anything": "the store overwrote an object despite a wrong etag",
    "replaces what is gone": "the store wrote a deleted object",
    "weak etags": "refuses an overwrite with the etag that it returned",
    "no etags": "returns no etag",
    "one etag": "gives two different contents of an object the same etag",
    "two etags": "returns one etag when an object is written (other) and another",
}
WRITES: dict[str, Callable[[ObjectStore], object]] = {
    "create": lambda store: store.create(KEY, b"x"),
    "put": lambda store: store.put(KEY, b"x"),
    "replace": lambda store: store.replace(KEY, b"x", "etag"),
    "delete": lambda store: store.delete(KEY),
    "open_writer": lambda store: store.open_writer(KEY),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_breaks_a_promise_is_refused_before_the_first_write(way: str) -> None:
    inner = MemoryStore()
    inner.put(KEY, b"there")
    store = at(Odd(way, inner))
    for write in WRITES.values():
        with pytest.raises(UnfitStore) as refused:
            write(store)
        assert str(refused.value).startswith("memory://lithify-testing/db/lithify: ")
        assert WAYS[way] in str(refused.value)
        assert "nothing else was written; " in str(refused.value)
    assert keys(inner) == [KEY]
    assert store.get(KEY) == b"there"


@pytest.mark.parametrize("write", WRITES)
def test_any_write_waits_for_the_proof_and_no_read_does(write: str) -> None:
    counting = CountingStore(MemoryStore())
    counting.inner.put(KEY, b"x")
    store = at(counting)
    store.get(KEY)
    store.get_with_meta(KEY)
    store.head(KEY)
    list(store.list("db"))
    list(store.stream("db"))
    store.folder("db")
    assert keys(counting.inner) == [KEY]
    try:
        WRITES[write](store)
    except StoreError:
        assert write in ("create", "replace")
    assert MEMORY in keys(counting.inner)


def test_a_proof_is_remembered_in_the_place() -> None:
    inner = MemoryStore()
    at(inner).put(KEY, b"x")
    faulty = FaultyStore.scripted(inner, faults={})
    later = at(faulty)
    later.put(KEY, b"y")
    later.put(KEY, b"z")
    assert [(call.method, call.key) for call in faulty.calls] == [
        ("get_with_meta", MEMORY),
        ("put", KEY),
        ("put", KEY),
    ]
    assert keys(inner) == [KEY, MEMORY]
    with pytest.raises(UnfitStore):  # another place of the same store has none
        ProvedStore(Odd("replaces anything", inner), "other", RandomIds()).put("other/x", b"")


def test_a_memory_that_was_copied_to_another_store_proves_nothing() -> None:
    clock = ManualClock()
    here = MemoryStore(clock)
    at(here).put(KEY, b"x")
    clock.advance_s(MAX_APART_MS / 1000 + 1)
    there = MemoryStore(clock)
    for key in keys(here):
        there.put(key, here.get(key))
    with pytest.raises(UnfitStore):
        at(Odd("replaces anything", there)).put(KEY, b"y")
    at(here).put(KEY, b"y")
    at(there).put(KEY, b"y")
    assert json.loads(there.get(MEMORY))["proved_ms"] == clock.now_ms()


@pytest.mark.parametrize(
    "memory",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"store": "memory://lithify-testing", "requirements": 1}',
        b'{"store": "memory://lithify-testing", "requirements": 1, "proved_ms": 1e999}',
        b'{"store": "memory://lithify-testing", "requirements": 1, "proved_ms": "NOW"}',
        b'{"store": "memory://lithify-testing", "requirements": 1, "proved_ms": 9223372036854775807}',
        b'{"store": "memory://lithify-testing", "requirements": 2, "proved_ms": NOW}',
        b'{"store": "memory://other", "requirements": 1, "proved_ms": NOW}',
        b"\xff\xfe",
    ],
)
def test_a_memory_that_says_nothing_of_this_store_proves_nothing(memory: bytes) -> None:
    clock = ManualClock()
    inner = MemoryStore(clock)
    inner.put(MEMORY, memory.replace(b"NOW", b"%d" % clock.now_ms()))
    with pytest.raises(UnfitStore):
        at(Odd("replaces anything", inner)).put(KEY, b"x")
    at(inner).put(KEY, b"x")
    assert json.loads(inner.get(MEMORY))["store"] == "memory://lithify-testing"


def test_a_process_that_dies_in_the_middle_leaves_nothing_that_counts() -> None:
    rehearsal = FaultyStore.scripted(MemoryStore(), faults={})
    at(rehearsal).put(KEY, b"x")
    assert len(rehearsal.calls) > 8
    for number in range(1, len(rehearsal.calls) + 1):
        for after in (False, True):
            clock = ManualClock()
            inner = MemoryStore(clock)
            with pytest.raises(Crash):
                at(FaultyStore.crash_at(inner, number=number, after=after)).put(KEY, b"x")
            left = [key for key in keys(inner) if key not in (KEY, MEMORY)]
            assert all(key.startswith("db/lithify/probes/") for key in left)
            if MEMORY not in keys(inner):
                assert KEY not in keys(inner)
            at(inner).put(KEY, b"x")
            assert set(keys(inner)) == {KEY, MEMORY, *left}
            clock.advance_s(LEFTOVER_MS / 1000 + 1)
            inner.delete(MEMORY)
            at(inner).put(KEY, b"x")
            assert keys(inner) == [KEY, MEMORY]


def test_an_answer_that_is_lost_is_no_fault_of_the_store() -> None:
    """A request whose answer was lost is made again by the store's client, and finds its own first try."""

    class Repeating(WrappedStore):
        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            try:
                self.inner.create(key, data, put_id)
            finally:
                return self.inner.create(key, data, put_id)  # noqa: B012

        def replace(self, key: str, data: bytes, etag: str) -> str | None:
            self.inner.replace(key, data, etag)
            return self.inner.replace(key, data, etag)

    inner = MemoryStore()
    at(Repeating(inner)).put(KEY, b"x")
    assert keys(inner) == [KEY, MEMORY]


@pytest.mark.parametrize("method", ["create", "replace", "get_with_meta", "delete", "put"])
def test_a_store_that_is_away_is_not_judged(method: str) -> None:
    class Away(WrappedStore):
        is_away = True

        def around(self, call, action):  # type: ignore[no-untyped-def]
            if self.is_away and call.method == method:
                raise StoreUnavailable("away")
            return action()

    inner = MemoryStore()
    away = Away(inner)
    store = at(away)
    with pytest.raises(StoreUnavailable):
        store.create(KEY, b"x")
    assert MEMORY not in keys(inner)
    away.is_away = False
    assert store.create(KEY, b"x")
    assert MEMORY in keys(inner)


def test_credentials_that_may_only_read_are_not_the_stores_fault() -> None:
    class ReadOnly(WrappedStore):
        def around(self, call, action):  # type: ignore[no-untyped-def]
            if call.method in ("create", "put", "replace", "delete"):
                raise StoreError("403 Forbidden")
            return action()

    inner, clock = MemoryStore(), ManualClock()
    store = at(ReadOnly(inner))
    with pytest.raises(StoreError, match="403 Forbidden"):
        store.create(KEY, b"x")
    assert StoreTime(store, "db/lithify/now", clock).now_ms() is None
    assert not keys(inner)
    at(inner).put(KEY, b"x")
    assert store.get(KEY) == b"x"


def test_the_time_of_an_unfit_store_is_not_known() -> None:
    store = at(Odd("replaces anything", MemoryStore()))
    assert StoreTime(store, "db/lithify/now", ManualClock()).now_ms() is None


def test_processes_and_threads_that_begin_at_once() -> None:
    inner = MemoryStore()
    stores = [at(inner) for _ in range(4)]
    threads = [
        threading.Thread(target=stores[n % 4].create, args=(f"db/lithify/ledger/{n}", b"x"))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys(inner)) == 17
    assert not [key for key in keys(inner) if "probe" in key]


def test_threads_of_a_process_prove_it_once() -> None:
    faulty = FaultyStore.scripted(MemoryStore(), faults={})
    store = at(faulty)
    threads = [threading.Thread(target=store.put, args=(f"db/{n}", b"x")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [call.key for call in faulty.calls].count(MEMORY) == 2


def test_files_and_memory_of_this_machine_need_no_proof() -> None:
    for store in (LocalStore(), MemoryStore()):
        assert proved(store, PLACE, RandomIds()) is store

"""The public stores and clock for tests."""

from __future__ import annotations

import random

import pytest

from lithify.base.errors import ObjectNotFound, StoreError
from lithify.store.objects import ObjectStore
from lithify.testing import (
    Call,
    CountingStore,
    Crash,
    DelayingStore,
    FaultyStore,
    ManualClock,
    MemoryStore,
    StoreFault,
    Verb,
    WrappedStore,
    crash_at_every_call,
)


def use_everything(store: ObjectStore) -> None:
    """Every method once; 10 bytes written by each writing one."""
    store.create("a", b"0123456789")
    store.put("b", b"0123456789")
    etag = store.head("b").etag
    assert etag is not None
    store.replace("b", b"0123456789", etag)
    store.get("a")
    store.get_with_meta("a")
    store.get_range("a", 2, 3)
    store.get_range_into("a", 2, memoryview(bytearray(4)))
    assert [meta.key for meta in store.list("")] == ["a", "b"]
    with store.open_writer("c") as writer:
        writer.write(memoryview(b"01234"))
        writer.write(b"56789")
        writer.commit()
    with store.open_writer("d") as writer:
        writer.write(b"x")
    store.delete("b")


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {meta.key: store.get(meta.key) for meta in store.list("")}


def test_time_moves_when_told_and_when_somebody_sleeps() -> None:
    clock = ManualClock(now_ms=1000)
    clock.advance_s(2.5)
    clock.sleep_s(0.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (4000, 3.0)
    clock.jump_s(-3600)
    assert (clock.now_ms(), clock.monotonic_s()) == (4000 - 3_600_000, 3.0)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance_s(-1)


def test_objects_in_memory_have_the_clocks_time() -> None:
    clock = ManualClock(now_ms=5000)
    store = MemoryStore(clock)
    store.put("a", b"x")
    clock.advance_s(1)
    store.put("b", b"x")
    assert [meta.last_modified_ms for meta in store.list("")] == [5000, 6000]


def test_requests_and_bytes_are_counted() -> None:
    store = CountingStore(MemoryStore())
    use_everything(store)
    assert store.requests == {Verb.PUT: 4, Verb.GET: 4, Verb.HEAD: 1, Verb.LIST: 1, Verb.DELETE: 1}
    assert (store.bytes_read, store.bytes_written) == (10 + 10 + 3 + 4, 10 + 10 + 10 + 10 + 1)
    with pytest.raises(ObjectNotFound):
        store.get("nothing")
    assert store.requests[Verb.GET] == 5
    store.reset()
    assert (store.requests, store.bytes_read, store.bytes_written) == ({}, 0, 0)


def test_delays_are_slept_on_the_clock() -> None:
    clock = ManualClock()
    store = DelayingStore(MemoryStore(clock), clock, lambda call: 2 if call.method == "put" else 0.5)
    store.put("a", b"x")
    store.get("a")
    assert clock.monotonic_s() == 2.5
    fixed = DelayingStore(store.inner, clock, 1)
    fixed.get("a")
    assert clock.monotonic_s() == 3.5


def test_wrappers_change_nothing_by_themselves() -> None:
    plain = MemoryStore()
    use_everything(plain)
    for wrap in (
        WrappedStore,
        CountingStore,
        lambda inner: DelayingStore(inner, ManualClock(), 1),
        lambda inner: FaultyStore.scripted(inner, {}),
    ):
        inner = MemoryStore()
        wrapped = wrap(inner)
        use_everything(wrapped)
        assert contents(inner) == contents(plain) == {"a": b"0123456789", "c": b"0123456789"}
        assert wrapped.url == inner.url


def test_a_failure_before_and_a_failure_after() -> None:
    inner = MemoryStore()
    store = FaultyStore.scripted(inner, {1: StoreFault.FAIL_BEFORE, 2: StoreFault.FAIL_AFTER})
    with pytest.raises(StoreError, match=r"put a \(call 1\)"):
        store.put("a", b"x")
    assert contents(inner) == {}
    with pytest.raises(StoreError, match="answer is lost"):
        store.put("a", b"x")
    assert contents(inner) == {"a": b"x"}
    store.put("b", b"x")
    assert store.calls == [Call("put", "a", 1), Call("put", "a", 1), Call("put", "b", 1)]


def test_the_lost_answer_may_have_been_a_refusal() -> None:
    store = FaultyStore.scripted(MemoryStore(), {1: StoreFault.FAIL_AFTER})
    with pytest.raises(StoreError, match="answer is lost") as caught:
        store.get("nothing")
    assert not isinstance(caught.value, ObjectNotFound)


def test_truncated_reads() -> None:
    inner = MemoryStore()
    inner.put("a", b"0123456789")
    store = FaultyStore(inner, lambda *_: StoreFault.TRUNCATE)
    assert store.get("a") == b"01234"
    assert store.get_with_meta("a")[0] == b"01234"
    with pytest.raises(StoreError, match="too short"):
        store.get_range("a", 0, 10)
    with pytest.raises(StoreError, match="too short"):
        store.get_range_into("a", 0, memoryview(bytearray(10)))


def test_seeded_faults_are_the_same_again() -> None:
    def outcomes(seed: int) -> list[bool]:
        store, fine = FaultyStore.seeded(MemoryStore(), random.Random(seed), 0.3), []
        for number in range(100):
            try:
                store.put(f"{number}", b"x")
                fine.append(True)
            except StoreError:
                fine.append(False)
        return fine

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 15 <= outcomes(1).count(False) <= 45


def test_the_dead_do_nothing_more() -> None:
    inner = MemoryStore()
    store = FaultyStore.crash_at(inner, 2)

    def run() -> None:
        with store.open_writer("a") as writer:
            try:
                writer.write(b"x")
            except Exception:
                pytest.fail("a crash is no error that can be handled")
            finally:
                store.put("cleanup", b"x")

    with pytest.raises(Crash):
        run()
    assert contents(inner) == {}
    assert len(store.calls) == 2


def test_a_run_dies_at_each_of_its_calls() -> None:
    def run(store: ObjectStore) -> None:
        store.put("a", b"x")
        with store.open_writer("b") as writer:
            writer.write(b"x")
            writer.commit()
        store.delete("a")

    left = [
        (site.call.method, site.after, "".join(contents(store)))
        for site, store in crash_at_every_call(MemoryStore, run)
    ]
    assert left == [
        ("put", False, ""),
        ("put", True, "a"),
        ("open_writer", False, "a"),
        ("open_writer", True, "a"),
        ("write", False, "a"),
        ("write", True, "a"),
        ("commit", False, "a"),
        ("commit", True, "ab"),
        ("delete", False, "ab"),
        ("delete", True, "b"),
    ]


def test_a_run_that_varies_is_noticed() -> None:
    lengths = iter([3, 3, 3, 1, 1, 1, 1])

    def run(store: ObjectStore) -> None:
        for number in range(next(lengths)):
            store.put(f"{number}", b"x")

    with pytest.raises(AssertionError, match="varies"):
        list(crash_at_every_call(MemoryStore, run))

"""Requests are told by the verb they are paid by, and by how they ended."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.metered import MeteredStore, RequestOutcome, Verb
from lithify.testing import FaultyStore, MemoryStore, StoreFault


def test_every_request_is_told_once() -> None:
    told: Counter[tuple[Verb, RequestOutcome]] = Counter()
    store = MeteredStore(MemoryStore(), lambda verb, answer: told.update([(verb, answer)]))
    store.create("a/x", b"1")
    with suppress(ObjectExists):
        store.create("a/x", b"2")
    with suppress(PreconditionFailed):
        store.replace("a/x", b"2", "another")
    with suppress(ObjectNotFound):
        store.get("a/y")
    assert store.get("a/x") == b"1"
    assert store.get_range("a/x", 0, 1) == b"1"
    store.head("a/x")
    assert [meta.key for meta in store.list("a")] == ["a/x"]
    with store.open_writer("a/z") as writer:
        writer.write(b"12")
        writer.write(b"34")
        writer.commit()
    store.delete("a/x")
    assert told == {
        (Verb.PUT, RequestOutcome.OK): 2,
        (Verb.PUT, RequestOutcome.CONFLICT): 2,
        (Verb.GET, RequestOutcome.MISSING): 1,
        (Verb.GET, RequestOutcome.OK): 2,
        (Verb.HEAD, RequestOutcome.OK): 1,
        (Verb.LIST, RequestOutcome.OK): 1,
        (Verb.DELETE, RequestOutcome.OK): 1,
    }


def test_failures_are_told_and_raised() -> None:
    told: list[tuple[Verb, RequestOutcome]] = []
    broken = FaultyStore(MemoryStore(), lambda _number, _call: StoreFault.FAIL_BEFORE)
    store = MeteredStore(broken, lambda verb, answer: told.append((verb, answer)))
    with suppress(StoreError):
        store.put("x", b"1")
    assert told == [(Verb.PUT, RequestOutcome.ERROR)]

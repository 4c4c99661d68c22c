"""What a task has in flight while it reads from a store behind a network."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import pytest

from lithify.datasets.slatedb.compaction import execute
from lithify.datasets.slatedb.compaction.task import MergeTask, SourceSst
from lithify.datasets.slatedb.kernel import read_ahead
from lithify.datasets.slatedb.kernel.block_ranges import bounds_of, open_span, read_index, sent_blocks
from lithify.datasets.slatedb.model import EVERYTHING, KeyRange
from lithify.kernel.memory import SLACK
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from tests.datasets.slatedb.merging import KEEP_ALL, Bench, put

ResultT = TypeVar("ResultT")
WINDOW = 64 << 10
LATENCY_S = 0.02


class SlowStore(WrappedStore):
    """A store that tasks take for a remote one. Keeps the most ranges and bytes asked for at once."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[Call] = []
        self.most_requests = self.most_bytes = 0
        self._requests = self._bytes = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return "s3://bucket"

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method not in ("get_buffer", "get_range_into"):
            return action()
        with self._lock:
            self.asked.append(call)
            self._requests += 1
            self._bytes += call.bytes_asked
            self.most_requests = max(self.most_requests, self._requests)
            self.most_bytes = max(self.most_bytes, self._bytes)
        time.sleep(LATENCY_S)
        try:
            return action()
        finally:
            with self._lock:
                self._requests -= 1
                self._bytes -= call.bytes_asked


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "REMOTE_WINDOW_BYTES", WINDOW)


def bench_of(sources: int, rows: int, ssts: int = 1) -> Bench:
    bench = Bench()
    value = random.Random(2).randbytes(3000)
    for source in range(sources):
        rows_of_it = [put(b"%06d" % key, 9, value) for key in range(source, rows, sources)]
        cuts = [len(rows_of_it) * number // ssts for number in range(ssts + 1)]
        bench.add(*(rows_of_it[first:last] for first, last in pairwise(cuts)))
    return bench


def with_blocks(task: MergeTask, store: ObjectStore) -> MergeTask:
    """The task as a driver makes it that has read the indexes."""

    def part_of(part: SourceSst) -> SourceSst:
        bounds = bounds_of(part, task.range)
        assert bounds is not None
        return replace(part, blocks=sent_blocks(part, read_index(store, part), bounds))

    return replace(task, sources=tuple(tuple(map(part_of, source)) for source in task.sources))


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("ssts", [1, 20])
def test_more_is_in_flight_while_the_merge_waits(ssts: int) -> None:
    """Over the ends of SSTs too."""
    bench = bench_of(2, 4000, ssts)
    expected = bench.run(bench.task(KEEP_ALL))
    task = with_blocks(bench.task(KEEP_ALL), bench.store)
    store = bench.store = SlowStore(bench.store)
    found = bench.run(task)
    assert bench.rows(found) == bench.rows(expected)
    assert (found.rows, found.bytes_read) == (expected.rows, expected.bytes_read)
    assert store.most_requests > 4 * read_ahead.FIRST_AHEAD


@pytest.mark.usefixtures("small_windows")
def test_a_merge_begins_with_little_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    first = 16 << 10
    monkeypatch.setattr(read_ahead, "FIRST_WINDOW_BYTES", first)
    bench = bench_of(3, 300)
    task = with_blocks(bench.task(KEEP_ALL), bench.store)
    store = bench.store = SlowStore(bench.store)
    bench.run(task)
    by_source: dict[str, list[int]] = {}
    for call in store.asked:
        by_source.setdefault(call.key, []).append(call.bytes_asked)
    assert len(by_source) == 3
    for asked in by_source.values():
        least, *others = sorted(asked)
        assert least <= first + SLACK
        assert others[0] > 2 * first


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("sources", [1, 5, 40])
def test_no_more_is_in_flight_than_the_budget_allows(sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 10 * WINDOW
    monkeypatch.setattr(read_ahead, "WINDOWS_BUDGET_BYTES", budget)
    bench = bench_of(sources, 3000)
    expected = bench.run(bench.task(KEEP_ALL))
    store = bench.store = SlowStore(bench.store)
    found = bench.run(bench.task(KEEP_ALL))
    assert bench.rows(found) == bench.rows(expected)
    # Where even the smallest windows are too large together, each source still has one.
    assert store.most_bytes <= max(budget, sources * 3 * read_ahead.MIN_WINDOW_BYTES // 2)


def test_no_source_takes_what_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has asked for a window ahead before any asks for a second one."""
    sources = 12
    monkeypatch.setattr(read_ahead, "WINDOWS_BUDGET_BYTES", 2 * sources * WINDOW)
    monkeypatch.setattr(read_ahead, "FIRST_WINDOW_BYTES", WINDOW // 4)
    bench = bench_of(sources, 3000)
    task = with_blocks(bench.task(KEEP_ALL), bench.store)
    store = bench.store = SlowStore(bench.store)
    bench.run(task)
    at_first = Counter(call.key for call in store.asked[: 2 * sources])
    assert set(at_first.values()) == {2}


@pytest.mark.parametrize("are_sent", [False, True])
def test_a_small_sst_is_one_request(are_sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another for its index, if that did not come with the task."""
    monkeypatch.setattr(execute, "SMALL_BYTES", 0)
    bench = bench_of(3, 300, 4)
    task = bench.task(KEEP_ALL)
    if are_sent:
        task = with_blocks(task, bench.store)
    store = bench.store = SlowStore(bench.store)
    bench.run(task)
    assert len(store.asked) == (12 if are_sent else 24)


@pytest.mark.parametrize("key_range", [EVERYTHING, KeyRange(b"000100", b"000150"), KeyRange(b"000399", None)])
def test_blocks_that_travel_with_the_task_are_those_that_it_would_find(key_range: KeyRange) -> None:
    bench = bench_of(1, 400)
    ((part,),) = bench.sources
    bounds = bounds_of(part, key_range)
    assert bounds is not None
    found = open_span(bench.store, part, bounds)
    sent = sent_blocks(part, read_index(bench.store, part), bounds)
    again = open_span(bench.store, replace(part, blocks=sent), bounds)
    assert sent is not None
    assert again.first_block == found.first_block
    assert again.offsets.tolist() == found.offsets.tolist()


def test_blocks_of_another_range_are_not_taken_for_all() -> None:
    bench = bench_of(2, 400)
    expected = bench.rows(bench.run(bench.task(KEEP_ALL)))
    part_of_it = with_blocks(bench.task(KEEP_ALL, key_range=KeyRange(b"000100", b"000150")), bench.store)
    assert bench.rows(bench.run(replace(part_of_it, range=EVERYTHING))) == expected

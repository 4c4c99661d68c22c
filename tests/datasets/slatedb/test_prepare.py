"""What the tasks of a compaction are told to read: all they need, and not much more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, EngineError, ObjectNotFound, Refused
from lithify.datasets.slatedb.compaction import prepare, split
from lithify.datasets.slatedb.compaction.execute import execute_merge, run_merge
from lithify.datasets.slatedb.compaction.prepare import CompactionPreparer, Sources, narrowed
from lithify.datasets.slatedb.compaction.split import ranges_between
from lithify.datasets.slatedb.compaction.task import RowRules, SourceSst, SstOptions, sst_key
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.kernel.block_ranges import bounds_of
from lithify.datasets.slatedb.model import (
    EVERYTHING,
    KeyRange,
    Manifest,
    SortedRun,
    Sst,
    TieredSpec,
    Tree,
    View,
)
from lithify.datasets.slatedb.options import SlateOptions
from lithify.engine.task import Limits, encode_request
from lithify.protocol.model import Compaction, CompactionState, Progress, RangeProgress
from lithify.protocol.work import RangeJob
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import WrappedWriter
from lithify.testing import CountingStore, Verb, WrappedStore
from tests.datasets.slatedb.merging import CONCATENATE, FOLDER, KEEP_ALL, Bench, RemoteStore, merge
from tests.judge.sst import Row

MANY_SSTS = 15_000
LIMITS = Limits(4, 60.0)
ENOUGH_BYTES = 16_384
"""For what the task of a range is told, however large the compaction."""

key = st.binary(max_size=2)
bound = st.none() | key


@st.composite
def visible_ranges(draw: st.DrawFn) -> KeyRange:
    start, end = draw(bound), draw(bound)
    return KeyRange(start, end, end_inclusive=end is not None and draw(st.booleans()))


@st.composite
def source_ssts(draw: st.DrawFn) -> SourceSst:
    """An SST of one key or more, or of an old client that did not say the last."""
    first, last = sorted((draw(key), draw(key)))
    info = replace(some_sst().info, first_entry=first, last_entry=draw(st.sampled_from([last, last, None])))
    return SourceSst("sst", replace(some_sst(), info=info), draw(visible_ranges()))


@cache
def some_sst() -> Sst:
    ((part,),) = Bench().add([merge(b"a", 1, b"")]).sources
    return part.sst


sources_of_anything = st.lists(st.lists(source_ssts(), max_size=6).map(tuple), max_size=4).map(tuple)
cuts = st.lists(key, max_size=6, unique=True).map(sorted)


@given(sources_of_anything, cuts)
@settings(deadline=None)
def test_every_range_gets_exactly_the_ssts_that_can_show_a_key_of_it(
    sources: Sources, cuts: list[bytes]
) -> None:
    ranges = ranges_between(cuts)
    wanted = [
        tuple(
            parts for source in sources if (parts := tuple(p for p in source if bounds_of(p, r) is not None))
        )
        for r in ranges
    ]
    assert narrowed(sources, ranges) == wanted


KEYS = [b"%c" % letter for letter in b"abcdefgh"]


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    """Runs of few keys with many versions, cut into SSTs anywhere: between two versions of a key too."""
    bench = Bench(draw(st.integers(0, 99)))
    seq = 1000
    for _ in range(draw(st.integers(1, 3))):
        rows: list[Row] = []
        for name in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=6).map(sorted)):
            seq -= 1
            rows.append(merge(name, seq, b"%d " % seq))
        places = sorted({0, *draw(st.lists(st.integers(1, len(rows)), max_size=3)), len(rows)})
        bench.add(
            *(rows[a:b] for a, b in pairwise(places)), visible=draw(st.sampled_from([EVERYTHING, SHOWN]))
        )
    return bench


SHOWN = KeyRange(b"b", b"f", end_inclusive=True)


@given(
    benches(),
    st.lists(st.sampled_from(KEYS), max_size=4, unique=True).map(sorted),
    st.sampled_from([0, 990, 995, 10_000]),
)
@settings(deadline=None, max_examples=60)
def test_results_are_those_of_tasks_that_are_told_of_all_sources(
    bench: Bench, cuts: list[bytes], horizon: int
) -> None:
    rules = RowRules(True, -(1 << 63), horizon, merge_operator=CONCATENATE)
    ranges = ranges_between(cuts)
    for key_range, sources in zip(ranges, narrowed(tuple(bench.sources), ranges), strict=True):
        task = bench.task(rules, key_range=key_range)
        all_of_it = bench.run(task)
        found = bench.run(replace(task, sources=sources))
        assert bench.rows(found) == bench.rows(all_of_it)
        assert (found.rows, found.bytes_read) == (all_of_it.rows, all_of_it.bytes_read)
        resumed = bench.run(replace(task, sources=sources, resume_outputs=found.outputs))
        assert resumed.outputs == found.outputs


def large_compaction(ranges: Sequence[KeyRange], ssts: int) -> RangeJob:
    """A run of so many SSTs, each of which tells keys of 100 bytes, and an L0 SST over all of them."""
    bench = Bench()
    width = 100
    ((largest,),) = bench.add([merge(b"%0*d" % (width, n), 1, b"v" * 100) for n in range(400)]).sources
    small = replace(largest.sst.info, index_offset=0, filter_offset=0)

    def view(first: int, last: int) -> View:
        info = replace(small, first_entry=b"%0*d" % (width, first), last_entry=b"%0*d" % (width, last))
        return View(bench.ids.ulid(1), replace(largest.sst, id=bench.ids.ulid(1), info=info))

    run = SortedRun(0, tuple(view(10 * n, 10 * n + 9) for n in range(ssts)))
    l0 = View(bench.ids.ulid(1), replace(largest.sst))
    manifest = Manifest(True, 1, 1, Tree(l0=(l0,), runs=(run,)))
    compaction: SlateCompaction = Compaction(
        bench.ids.ulid(1),
        TieredSpec(b"", (l0.id,), (0,), 0),
        CompactionState.RUNNING,
        progress=Progress(tuple(RangeProgress(r) for r in ranges), 5),
    )
    preparation = CompactionPreparer(bench.store, DatabasePaths("db"), {}, SlateOptions())
    return preparation.prepare(compaction, manifest, lambda index: None, 0)


def compaction_of_all(bench: Bench) -> tuple[SlateCompaction, Manifest]:
    """The compaction of all sources of the bench, each an L0 SST."""
    l0 = tuple(View(bench.ids.ulid(1), part.sst) for (part,) in bench.sources)
    spec = TieredSpec(b"", tuple(view.id for view in l0), (), 0)
    return Compaction(bench.ids.ulid(1), spec, CompactionState.RUNNING), Manifest(True, 1, 1, Tree(l0=l0))


def prepared(bench: Bench, store: ObjectStore, max_sst_size: int) -> RangeJob:
    """The same, ready to run."""
    preparation = CompactionPreparer(store, DatabasePaths("db"), {}, SlateOptions(max_sst_size=max_sst_size))
    return preparation.prepare(*compaction_of_all(bench), lambda index: None, 2)


def three_l0s() -> Bench:
    """Written by Lithify, so they have stats."""
    bench = Bench()
    made: list[tuple[SourceSst, ...]] = []
    for source in range(3):
        bench.sources.clear()
        bench.add([merge(b"%06d" % key, 9 - source, b"v" * 90) for key in range(source, 3000, 3)])
        (sst,) = bench.run(bench.task(KEEP_ALL, SstOptions(1024))).outputs
        made.append((SourceSst(sst_key(FOLDER, sst.id), sst),))
    bench.sources = made
    return bench


def test_a_task_asks_for_nothing_but_rows() -> None:
    """The driver has read the indexes, and sends what a range needs of them along."""
    bench = three_l0s()
    expected = bench.rows(bench.run(bench.task(KEEP_ALL)))
    ends = {part.key: part.sst.info.data_end for (part,) in bench.sources}
    job = prepared(bench, bench.store, 50_000)
    assert len(job.works) > 3
    found = []
    for work in job.works:
        store = RangesStore(bench.store)
        result = run_merge(work.argument, store, bench.ids, bench.clock)
        assert store.asked
        assert all(end <= ends[key] for key, end in store.asked)
        found += bench.rows(result)
    assert found == expected


def test_what_was_foreseen_is_read_once_and_then_again() -> None:
    bench = three_l0s()
    store = RangesStore(bench.store)
    preparation = CompactionPreparer(store, DatabasePaths("db"), {}, SlateOptions(max_sst_size=50_000))
    compaction, manifest = compaction_of_all(bench)
    preparation.prefetch(compaction, manifest)
    first = preparation.prepare(compaction, manifest, lambda index: None, 2)
    asked = len(store.asked)
    assert asked == len(set(store.asked)) == 3 + 2  # indexes, stats of the largest, the newest filter
    second = preparation.prepare(compaction, manifest, lambda index: None, 2)
    assert len(store.asked) == 2 * asked
    assert [work.range for work in first.works] == [work.range for work in second.works]


def test_what_went_wrong_when_it_was_foreseen_is_told_when_it_is_prepared() -> None:
    bench = three_l0s()
    ((part,), *_) = bench.sources
    good = bench.store.get(part.key)
    bench.store.put(part.key, b"x" * len(good))
    preparation = CompactionPreparer(bench.store, DatabasePaths("db"), {}, SlateOptions(max_sst_size=50_000))
    compaction, manifest = compaction_of_all(bench)
    preparation.prefetch(compaction, manifest)
    with pytest.raises(CorruptObject):
        preparation.prepare(compaction, manifest, lambda index: None, 2)
    bench.store.put(part.key, good)
    assert preparation.prepare(compaction, manifest, lambda index: None, 2).works


class RangesStore(WrappedStore):
    """Notes the key and the end of each range that was asked for."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, int]] = []

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.asked.append((key, offset + length))
        return super().get_range(key, offset, length)

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        self.asked.append((key, offset + target.nbytes))
        super().get_range_into(key, offset, target)

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        self.asked.append((key, offset + length))
        return super().get_buffer(key, offset, length)


def test_nothing_is_read_to_prepare_a_small_compaction() -> None:
    bench = three_l0s()
    store = CountingStore(bench.store)
    (work,) = prepared(bench, store, 1 << 20).works
    assert not store.requests
    assert bench.rows(bench.run(work.argument)) == bench.rows(bench.run(bench.task(KEEP_ALL)))


def test_to_cut_a_compaction_each_index_is_read_once_and_one_block_of_stats() -> None:
    bench = three_l0s()
    store = CountingStore(bench.store)
    prepared(bench, store, 50_000)
    assert store.requests == {Verb.GET: 3 + 1 + 1}  # and the newest filter


class PartsStore(WrappedStore):
    """Notes in what parts each output was to be sent."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[int | None] = []

    def open_writer(self, key: str, part_bytes: int | None = None) -> WrappedWriter:
        self.asked.append(part_bytes)
        return super().open_writer(key, part_bytes)


def test_what_a_large_compaction_writes_is_sent_in_larger_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = three_l0s()
    total_bytes = sum(part.sst.info.data_end for (part,) in bench.sources)
    for large_bytes, expected in ((total_bytes, prepare.LARGE_PART_BYTES), (total_bytes + 1, None)):
        monkeypatch.setattr(prepare, "LARGE_BYTES", large_bytes)
        works = prepared(bench, bench.store, 50_000).works
        store = PartsStore(bench.store)
        outputs = [run_merge(work.argument, store, bench.ids, bench.clock).outputs for work in works]
        assert store.asked == [expected] * sum(map(len, outputs))


def foreseen_and_prepared(bench: Bench, store: ObjectStore) -> RangeJob:
    """One task for all sources of the bench."""
    preparation = CompactionPreparer(store, DatabasePaths("db"), {}, SlateOptions(max_sst_size=1 << 20))
    compaction, manifest = compaction_of_all(bench)
    preparation.prefetch(compaction, manifest)
    return preparation.prepare(compaction, manifest, lambda index: None, 2)


def test_what_is_small_and_far_away_travels_with_its_task() -> None:
    bench = three_l0s()
    store = RangesStore(RemoteStore(bench.store))
    (work,) = foreseen_and_prepared(bench, store).works
    assert sorted(store.asked) == sorted((part.key, part.stated_bytes) for (part,) in bench.sources)
    store.asked.clear()
    found = bench.rows(run_merge(work.argument, store, bench.ids, bench.clock))
    assert not store.asked
    assert found == bench.rows(bench.run(bench.task(KEEP_ALL)))


def test_nothing_small_is_foreseen_of_a_store_that_is_near() -> None:
    bench = three_l0s()
    store = RangesStore(bench.store)
    assert foreseen_and_prepared(bench, store).works
    assert not store.asked


def test_what_is_foreseen_travels_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = three_l0s()
    monkeypatch.setattr(split, "SENT_BYTES", sum(part.stated_bytes for (part,) in bench.sources) - 1)
    store = RangesStore(RemoteStore(bench.store))
    (work,) = foreseen_and_prepared(bench, store).works
    assert not store.asked
    assert bench.rows(run_merge(work.argument, store, bench.ids, bench.clock))
    assert len(store.asked) == 3


def test_what_is_not_there_when_it_is_foreseen_is_told_by_the_task() -> None:
    bench = three_l0s()
    ((part,), *_) = bench.sources
    bench.store.delete(part.key)
    store = RangesStore(RemoteStore(bench.store))
    (work,) = foreseen_and_prepared(bench, store).works
    with pytest.raises(ObjectNotFound, match=part.key):
        run_merge(work.argument, store, bench.ids, bench.clock)


class HalfStore(RangesStore):
    """A store that answers with less than it was asked for."""

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return super().get_range(key, offset, length // 2)


def test_what_was_cut_short_when_it_was_foreseen_is_read_again() -> None:
    bench = three_l0s()
    (work,) = foreseen_and_prepared(bench, HalfStore(RemoteStore(bench.store))).works
    store = RangesStore(RemoteStore(bench.store))
    found = bench.rows(run_merge(work.argument, store, bench.ids, bench.clock))
    assert len(store.asked) == 3
    assert found == bench.rows(bench.run(bench.task(KEEP_ALL)))


@pytest.mark.parametrize("limit", ["SENT_BYTES", "MAX_KEPT_INDEX_BYTES"])
def test_where_blocks_are_too_many_to_be_sent_the_task_reads_the_index(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = three_l0s()
    for module in (prepare, split):
        monkeypatch.setattr(module, limit, 10, raising=False)
    job = prepared(bench, bench.store, 50_000)
    parts = [part for work in job.works for source in work.argument.sources for part in source]
    assert not any(part.blocks for part in parts)
    found = [row for work in job.works for row in bench.rows(bench.run(work.argument))]
    assert found == bench.rows(bench.run(bench.task(KEEP_ALL)))


def test_the_request_of_a_range_stays_small_however_many_ssts_there_are() -> None:
    keys = range(100, 10 * MANY_SSTS, 100)
    job = large_compaction(ranges_between([b"%0100d" % n for n in keys]), MANY_SSTS)
    sizes = [len(encode_request(w.function, w.argument, LIMITS)) for w in job.works]
    assert len(sizes) == len(keys) + 1
    assert max(sizes) < ENOUGH_BYTES
    everything = dict.fromkeys(p for w in job.works for source in w.argument.sources for p in source)
    assert len(everything) == MANY_SSTS + 1
    with pytest.raises(EngineError, match="make the range smaller"):
        encode_request(execute_merge, replace(job.works[0].argument, sources=(tuple(everything),)), LIMITS)


@pytest.mark.parametrize(
    "ranges",
    [
        (KeyRange(None, b"m"), KeyRange(b"n", None)),
        (KeyRange(None, b"n"), KeyRange(b"m", None)),
        (KeyRange(b"m", None), KeyRange(None, b"m")),
        (KeyRange(None, b"m", end_inclusive=True), KeyRange(b"m", None)),
        (KeyRange(b"a", None),),
        (KeyRange(None, b"z"),),
        (EVERYTHING, EVERYTHING),
    ],
)
def test_recorded_ranges_that_do_not_cover_all_keys_once_are_refused(ranges: tuple[KeyRange, ...]) -> None:
    with pytest.raises(Refused, match="do not cover all keys once"):
        large_compaction(ranges, 1)

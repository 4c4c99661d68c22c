"""Cutting compactions into even ranges, and finding the block size of the inputs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.datasets.slatedb.compaction.split import (
    CompactionSplit,
    plan_ranges,
    range_bytes,
    shown_parts,
    split,
)
from lithify.datasets.slatedb.compaction.task import SstOptions
from lithify.datasets.slatedb.format.block_size import largest_of, read_block_size
from lithify.datasets.slatedb.format.index import BlockIndex
from lithify.datasets.slatedb.model import EVERYTHING, Codec, KeyRange
from tests.datasets.slatedb.merging import KEEP_ALL, Bench, put
from tests.judge.sst import Row


def block_index(blocks: list[tuple[bytes, int]]) -> BlockIndex:
    """An index of blocks with these keys and sizes."""
    keys = [b"", *(key for key, _ in blocks[1:])]
    return BlockIndex(
        np.cumsum([0, *(size for _, size in blocks)], dtype=np.int64),
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([0, *map(len, keys)], dtype=np.int64),
    )


_blocks = st.lists(
    st.tuples(st.binary(min_size=1, max_size=4), st.integers(10, 5000)),
    min_size=1,
    max_size=60,
    unique_by=lambda b: b[0],
).map(sorted)


@given(
    st.lists(st.tuples(_blocks, st.sampled_from([EVERYTHING, KeyRange(b"\x20", b"\x90")])), max_size=5),
    st.integers(1, 30_000),
    st.integers(1, 8),
)
@settings(deadline=None)
def test_ranges_cover_everything_once(
    views: list[tuple[list[tuple[bytes, int]], KeyRange]], target_bytes: int, max_ranges: int
) -> None:
    ranges = split([(block_index(blocks), shown) for blocks, shown in views], target_bytes, max_ranges)
    assert 1 <= len(ranges) <= max_ranges
    assert ranges[0].start is None
    assert ranges[-1].end is None
    for left, right in pairwise(ranges):
        assert left.end == right.start
        assert not left.end_inclusive
    assert not any(r.is_empty for r in ranges)
    keys = {key for blocks, _ in views for key, _ in blocks} | {b"\x20"}
    assert {r.start for r in ranges[1:]} <= keys


@pytest.mark.parametrize("sources", [1, 2, 7])
@pytest.mark.parametrize("count", [2, 5, 20])
def test_ranges_are_even(sources: int, count: int) -> None:
    rng = random.Random(sources * count)
    views = []
    for _ in range(sources):
        keys = sorted(rng.sample(range(10**6), 4000))
        views.append([(b"%08d" % key, rng.randint(3000, 4200)) for key in keys])
    total = sum(size for blocks in views for _, size in blocks)
    ranges = split([(block_index(blocks), EVERYTHING) for blocks in views], -(-total // count))
    assert len(ranges) == count
    sizes = [sum(size for blocks in views for key, size in blocks if r.contains(key)) for r in ranges]
    assert max(sizes) < 1.1 * total / count
    assert min(sizes) > 0.9 * total / count


def test_skewed_sources_still_give_even_ranges() -> None:
    small = [(b"b%06d" % i, 4096) for i in range(5000)]
    wide = [(b"a%06d" % i, 4096) for i in range(100)] + [(b"z%06d" % i, 4096) for i in range(100)]
    ranges = split([(block_index(small), EVERYTHING), (block_index(wide), EVERYTHING)], 4096 * 520)
    sizes = [sum(r.contains(key) for key, _ in (*small, *wide)) for r in ranges]
    assert len(sizes) == 10
    assert max(sizes) <= 1.1 * 520


def test_hidden_blocks_do_not_count() -> None:
    blocks = [(b"%04d" % i, 1000) for i in range(1000)]
    ranges = split([(block_index(blocks), KeyRange(b"0900", b"0999"))], 50_000)
    assert len(ranges) == 2
    assert b"0940" <= (ranges[0].end or b"") <= b"0960"


def rows_of(count: int, value: bytes) -> list[Row]:
    return [put(b"key%06d" % i, 5, value) for i in range(count)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("block_size", [1024, 4096, 65536])
def test_the_block_size_of_the_inputs_is_kept(codec: Codec, block_size: int) -> None:
    bench = Bench().add(rows_of(6000, b"v" * 90), block_size=block_size)
    written = bench.run(bench.task(KEEP_ALL, SstOptions(block_size=block_size, compression=codec)))
    (sst,) = written.outputs
    source = bench.store_sst(bench.store.get(f"db/compacted/{sst.id}.sst"), sst)
    assert read_block_size(bench.store, [source]) == block_size
    # All of it is small, so the task finds out by itself.
    cut = plan_ranges(bench.store, [[source]], SstOptions(None, compression=codec))
    assert cut == CompactionSplit(SstOptions(None, compression=codec), (EVERYTHING,))
    bench.sources = [(source,)]
    (again,) = bench.run(bench.task(KEEP_ALL, cut.options)).outputs
    assert replace(again, id=sst.id) == sst
    # Where it takes more than one range, whoever cuts them knows.
    several = plan_ranges(bench.store, [[source]], SstOptions(None, 1000, codec))
    assert several.options.block_size == block_size
    given = plan_ranges(bench.store, [[source]], SstOptions(8192, 1000))
    assert given.options.block_size == 8192


@pytest.mark.parametrize("rows", [rows_of(3, b"v"), rows_of(50, b"v" * 8000)])
def test_inputs_that_do_not_tell_give_the_default_block_size(rows: list[Row]) -> None:
    bench = Bench().add(rows)
    bench.run(bench.task(KEEP_ALL))
    assert read_block_size(bench.store, bench.sources[0]) == 4096


def test_an_sst_that_shows_nothing_does_not_tell_the_block_size() -> None:
    bench = Bench().add(rows_of(500, b"v" * 90)).add(rows_of(10, b"v"))
    (large,), (small,) = bench.sources
    assert largest_of(shown_parts([[small], [large]])) is large
    assert largest_of(shown_parts([[small], [replace(large, visible=KeyRange(b"z"))]])) is small
    assert largest_of([]) is None


def test_nothing_to_read_is_one_range() -> None:
    assert plan_ranges(Bench().store, [], SstOptions()) == CompactionSplit(SstOptions(), (EVERYTHING,))


def test_outputs_of_planned_ranges_are_about_as_large_as_asked() -> None:
    bench = Bench()
    rng = random.Random(3)
    for source in range(4):
        keys = sorted(rng.sample(range(10**6), 3000))
        bench.add([put(b"%07d" % key, 50 - source, b"v" * 100) for key in keys])
    cut = plan_ranges(bench.store, bench.sources, SstOptions(max_sst_size=200_000))
    sizes = []
    for key_range in cut.ranges:
        outputs = bench.run(bench.task(KEEP_ALL, cut.options, key_range)).outputs
        sizes.append(sum(sst.info.data_end for sst in outputs))
    assert len(sizes) == 8
    assert max(sizes) < 1.3 * min(sizes)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("total_mib", "slots", "range_mib"),
    [
        pytest.param(450, 0, 256, id="nobody knows how many run at once"),
        pytest.param(450, 2, 225, id="one for each slot"),
        pytest.param(450, 64, 32, id="but none too small"),
        pytest.param(90, 64, 22.5, id="where there is little, a quarter"),
        pytest.param(40, 64, 16, id="but none far too small"),
        pytest.param(100_000, 2, 256, id="none makes much more than one output"),
    ],
)
def test_ranges_keep_all_slots_busy(total_mib: int, slots: int, range_mib: float) -> None:
    assert range_bytes(total_mib * MIB, SstOptions(), slots) == range_mib * MIB

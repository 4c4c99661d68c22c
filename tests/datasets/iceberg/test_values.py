"""Documents, splitting and spilling, as functions of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.compaction.spill import Pieces
from lithify.datasets.iceberg.compaction.split import piece_bytes, split
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.model import (
    ChunkSpec,
    IcebergLedger,
    Lane,
    LeftAlone,
    NewFile,
    SpecPart,
    TimeRange,
    files_written,
)
from lithify.planning.timeline.model import ChunkBucket, ChunkKey, Interval, TimelineFile
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)

ids = RandomIds()
counts = st.dictionaries(st.integers(0, 300), st.integers(0, 1 << 60), max_size=4)
bounds = st.dictionaries(st.integers(0, 300), st.binary(max_size=20), max_size=4)
times = st.integers(-(1 << 61), 1 << 61)
new_files = st.builds(
    NewFile,
    path=st.text(min_size=1),
    size_bytes=st.integers(1, 1 << 40),
    rows=st.integers(1, 1 << 40),
    sort_order_id=st.none() | st.integers(1, 9),
    column_sizes=counts,
    value_counts=counts,
    null_value_counts=counts,
    nan_value_counts=counts,
    lower_bounds=bounds,
    upper_bounds=bounds,
    split_offsets=st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple),
    sources=st.none() | st.sets(st.integers(0, 30)).map(lambda found: tuple(sorted(found))),
)
ascending = st.lists(times, max_size=5, unique=True).map(lambda found: tuple(sorted(found)))
parts = st.builds(
    SpecPart,
    lane=st.builds(Lane, st.integers(0, 9), st.text()),
    cuts=ascending,
    inputs=st.lists(st.text(), max_size=3).map(tuple),
)
specs = st.builds(
    ChunkSpec,
    task=st.text(),
    snapshot_id=st.integers(0, 1 << 62),
    chunks=st.lists(st.builds(ChunkKey, st.text(), st.sampled_from(ChunkBucket), times), max_size=3).map(
        tuple
    ),
    parts=st.lists(parts, min_size=1, max_size=3).map(tuple),
    sort_order_id=st.integers(0, 9),
)
left = st.builds(
    LeftAlone,
    st.text(),
    st.sets(st.integers(0, 9), min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
    st.text(),
)
outputs = st.lists(new_files | left, max_size=2).map(tuple)
one_range = st.builds(
    lambda edges, with_nulls, part: TimeRange(None, None, edges, with_nulls, part),
    ascending,
    st.booleans(),
    st.integers(0, 2),
)
ranges = st.lists(one_range, min_size=1, max_size=3).map(tuple)
compactions = st.builds(
    Compaction,
    id=st.builds(ids.ulid, st.integers(0, 1 << 40)),
    spec=specs,
    state=st.sampled_from(CompactionState),
    outputs=outputs,
    worker=st.none() | st.builds(AssignedWorker, st.text(), st.integers(0, 1 << 50)),
    progress=st.none()
    | st.builds(Progress, ranges=st.lists(st.builds(RangeProgress, ranges, outputs), max_size=2).map(tuple)),
)
ledgers = st.builds(
    lambda epoch, found: Ledger(epoch, tuple(sorted(found, key=lambda c: c.id))),
    st.integers(0, 1 << 60),
    st.lists(compactions, max_size=3),
)


@given(ledgers)
@settings(max_examples=50, deadline=None)
def test_a_ledger_survives_its_document(ledger: IcebergLedger) -> None:
    assert LEDGERS.decode(LEDGERS.encode(ledger), "x") == ledger


@given(specs)
@settings(max_examples=50, deadline=None)
def test_a_spec_survives_its_text(spec: ChunkSpec) -> None:
    assert LEDGERS.decode_spec(LEDGERS.encode_spec(spec)) == spec


SPEC = ChunkSpec("t", 1, (), (SpecPart(Lane(0, ""), (5,), ("f",)),), 0)
OF_TWO_LANES = replace(SPEC, parts=(*SPEC.parts, SpecPart(Lane(1, "day=1"), (), ("g",))))
FILE = NewFile("p", 10, 3, None, lower_bounds={1: b"a"}, sources=(0, 1))
LEDGER: IcebergLedger = Ledger(
    2, (Compaction(ids.ulid(1), SPEC, CompactionState.COMPACTED, (FILE,), AssignedWorker("w", 5)),)
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"epoch":2', b'"epoch":"x"'),
        (b'"epoch":2,', b""),
        (b'"state":"compacted"', b'"state":"lost"'),
        (b'"size_bytes":10', b'"size_bytes":0'),
        (b'"rows":3', b'"rows":-1'),
        (b'"cuts":[5]', b'"cuts":5'),
        (b'"YQ=="', b'"?"'),
        (b'"sources":[[0,1]]', b'"sources":[[0,10000000000]]'),
        (b'"sources":[[0,1]]', b'"sources":[[1,0]]'),
        (b'"sources":[[0,1]]', b'"sources":[0]'),
        (
            b"{",
            b"[",
        ),
        (b"}", b""),
    ],
)
def test_a_damaged_ledger_is_corrupt(before: bytes, after: bytes) -> None:
    data = LEDGERS.encode(LEDGER)
    assert before in data
    with pytest.raises(CorruptObject, match="the-ledger"):
        LEDGERS.decode(data.replace(before, after, 1), "the-ledger")


def test_a_ledger_of_before_outputs_named_their_sources() -> None:
    data = LEDGERS.encode(LEDGER).replace(b',"sources":[[0,1]]', b"")
    (compaction,) = LEDGERS.decode(data, "the-ledger").compactions
    (file,) = files_written(compaction)
    assert file.sources is None


def test_a_newer_document_is_refused() -> None:
    data = LEDGERS.encode(LEDGER).replace(b'"version":1', b'"version":4')
    with pytest.raises(Unsupported, match="version 4"):
        LEDGERS.decode(data, "the-ledger")


def test_a_document_is_of_the_lowest_version_that_has_room_for_its_specs() -> None:
    assert b'"version":1' in LEDGERS.encode(LEDGER)
    (compaction,) = LEDGER.compactions
    of_two = replace(LEDGER, compactions=(replace(compaction, spec=OF_TWO_LANES),))
    assert b'"version":2' in LEDGERS.encode(of_two)
    assert '"version":2' in LEDGERS.encode_spec(OF_TWO_LANES)
    assert LEDGERS.decode(LEDGERS.encode(of_two), "the-ledger") == of_two


# Splitting

intervals = st.tuples(st.integers(0, 1000), st.integers(1, 400)).map(lambda t: Interval(t[0], t[0] + t[1]))
timeline_files = st.builds(
    lambda number, when, size: TimelineFile(f"f{number}", when, size, 10),
    st.integers(),
    intervals | st.just(ChunkBucket.NULL),
    st.integers(1, 1000),
)


@given(
    st.lists(timeline_files, min_size=1, max_size=8),
    st.lists(st.integers(1, 1400), max_size=6, unique=True),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
@settings(max_examples=100, deadline=None)
def test_ranges_cover_all_of_time_and_keep_the_cuts(
    files: list[TimelineFile], cuts: list[int], target: int, range_bytes: int
) -> None:
    cuts = sorted(cuts)
    found = split(files, cuts, target, range_bytes)
    assert (found[0].start_us, found[-1].end_us) == (None, None)
    assert all(a.end_us == b.start_us is not None for a, b in pairwise(found))
    assert [part.with_nulls for part in found] == [True] + [False] * (len(found) - 1)
    edges = {edge for part in found for edge in (part.start_us, *part.cuts)} - {None}
    assert set(cuts) <= edges
    assert sum(piece_bytes(files, cuts)) == pytest.approx(sum(file.size_bytes for file in files))


def test_a_large_chunk_is_cut_at_even_shares() -> None:
    files = [
        TimelineFile(f"f{n}", Interval(n * 100, n * 100 + 100), 1000 * (1 + n % 2), 10) for n in range(20)
    ]
    found = split(files, [], 5000, 5000)
    assert len(found) == 6
    edges = [part.end_us for part in found[:-1]]
    shares = piece_bytes(files, [edge for edge in edges if edge is not None])
    assert max(shares) < 1.1 * min(shares)


def test_shares_are_whole_numbers_of_target_sizes() -> None:
    """Whatever a range is, so that only the last file of a chunk may be smaller."""
    files = [TimelineFile("f", Interval(0, 1000), 20_000, 10)]
    assert len(split(files, [], 5000, 1000)) == 4
    assert len(split(files, [], 1500, 4000)) == 4, "ranges of 4,500 bytes"


def test_what_follows_a_large_chunk_is_another_range() -> None:
    large = [TimelineFile(f"l{n}", Interval(0, 100), 5000, 10) for n in range(4)]
    small = [TimelineFile(f"s{n}", Interval(n, n + 1), 100, 10) for n in range(100, 103)]
    found = split([*large, *small], [100, 101, 102], 5000, 5000)
    assert (found[-1].start_us, found[-1].cuts) == (100, (101, 102))
    assert [part.end_us for part in found[:-1]] == [25, 50, 75, 100]


def test_small_chunks_share_a_range() -> None:
    files = [TimelineFile(f"f{n}", Interval(n * 10, n * 10 + 10), 100, 10) for n in range(10)]
    found = split(files, range(10, 100, 10), 5000, 300)
    assert [len(part.cuts) for part in found] == [2, 2, 2, 0]


# Spilling


def rows_of(moments: Sequence[int | None]) -> pa.Table:
    return pa.table({"time": pa.array(moments, pa.timestamp("us")), "n": range(len(moments))})


@given(
    st.lists(st.none() | st.integers(0, 60), min_size=1, max_size=200),
    st.lists(st.integers(1, 60), max_size=4, unique=True).map(sorted),
    st.sampled_from([50, 400, 1 << 30]),
)
@settings(max_examples=100, deadline=None)
def test_pieces_hand_out_every_row_once_and_in_order(
    moments: list[int | None], cuts: list[int], buffer_bytes: int
) -> None:
    table = rows_of(moments)
    with Pieces(cuts, "time", buffer_bytes) as pieces:
        for start in range(0, len(moments), 7):
            pieces.add(table.slice(start, 7), start // 7)
        assert pieces.rows == len(moments)
        found: list[list[dict[str, Any]]] = []
        for piece, parts in pieces.drain():
            rows = [row for part in parts for row in part.to_pylist()]
            assert len(rows) == piece.rows
            assert piece.sources == {row["n"] // 7 for row in rows}
            found.append(rows)
    assert sorted(row["n"] for rows in found for row in rows) == list(range(len(moments)))
    numbers = [[-1 if m is None else m for m in (moments[row["n"]] for row in rows)] for rows in found]
    assert all(max(a) < min(b) for a, b in pairwise(numbers))
    index = [{int(np.searchsorted(cuts, m, side="right")) for m in rows} for rows in numbers]
    assert all(len(pieces_met) == 1 for pieces_met in index)


def test_the_parts_of_a_large_piece_follow_each_other() -> None:
    rng = np.random.default_rng(1)
    moments = [int(m) for m in rng.integers(0, 10_000, 20_000)]
    table = rows_of(moments)
    with Pieces([], "time", 100_000) as pieces:
        for start in range(0, len(moments), 1000):
            pieces.add(table.slice(start, 1000))
        (seen,) = (
            [part["time"].cast(pa.int64()).to_numpy() for part in parts] for _, parts in pieces.drain()
        )
        assert pieces.spilled_bytes > table.nbytes
    assert len(seen) > 3
    assert all(a.max() < b.min() for a, b in pairwise(seen))
    assert max(part.nbytes * 2 for part in seen) < 200_000


def test_many_rows_of_one_time_are_one_part() -> None:
    with Pieces([], "time", 1000) as pieces:
        for _ in range(10):
            pieces.add(rows_of([5] * 100))
        found = [(piece.rows, [part.num_rows for part in parts]) for piece, parts in pieces.drain()]
        assert found == [(1000, [1000])]

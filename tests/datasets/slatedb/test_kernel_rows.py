"""Row semantics of a compaction, row for row and block for block against plain models."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import RowRules, SourceSst, SstOptions, sst_key
from lithify.datasets.slatedb.kernel import inputs
from lithify.datasets.slatedb.model import Codec, KeyRange
from tests.datasets.slatedb.merging import (
    CONCATENATE,
    FOLDER,
    KEEP_ALL,
    LAST_RUN,
    Bench,
    concatenate,
    delete,
    merge,
    put,
)
from tests.datasets.slatedb.reference_model import cut_into_ssts
from tests.judge.semantics import Rules, compact_rows
from tests.judge.sst import Row

BLOCK_SIZES = (1024, 4096, 65536)
TICK_MS = 1000

_keys = st.sampled_from([b"k%03d" % i for i in range(12)]) | st.binary(min_size=1, max_size=40)
_values = st.sampled_from([b"", b"v", b"x" * 200]) | st.binary(max_size=30) | st.just(b"y" * 5000)
_times = st.none() | st.integers(0, 2 * TICK_MS)


@st.composite
def _rows(draw: st.DrawFn, kinds: tuple[str, ...]) -> list[list[Row]]:
    """The rows of several sources, newest first; (key, seq) is unique."""
    source_count = draw(st.integers(1, 5))
    sources: list[dict[tuple[bytes, int], Row]] = [{} for _ in range(source_count)]
    seq = 10_000
    for source in sources:
        for key in draw(st.lists(_keys, max_size=40)):
            seq -= draw(st.integers(1, 5))
            kind = draw(st.sampled_from(kinds))
            is_delete = kind == "delete"
            value = b"" if is_delete else draw(_values)
            source[key, seq] = Row(key, seq, kind, value, draw(_times), None if is_delete else draw(_times))
    ordered = [sorted(source.values(), key=lambda row: (row.key, -row.seq)) for source in sources]
    return [rows for rows in ordered if rows]


@dataclass(frozen=True)
class Setting:
    rules: RowRules
    block_size: int
    max_sst_size: int


_settings = st.builds(
    Setting,
    st.builds(
        RowRules,
        is_last_run=st.booleans(),
        clock_tick_ms=st.sampled_from([-(1 << 63), TICK_MS]),
        retention_min_seq=st.sampled_from([0, 9_900, 9_970, 10_000, (1 << 64) - 1]),
        merge_operator=st.sampled_from([None, CONCATENATE]),
    ),
    st.sampled_from(BLOCK_SIZES),
    st.sampled_from([1, 3000, 1 << 28]),
)


@given(_rows(("put", "put", "delete", "merge")), _settings)
@settings(max_examples=100, deadline=None)
def test_rows_and_blocks_equal_the_models(sources: list[list[Row]], setting: Setting) -> None:
    bench = Bench()
    for rows in sources:
        bench.add(rows, block_size=1024)
    options = SstOptions(setting.block_size, setting.max_sst_size, min_filter_keys=3)
    result = bench.run(bench.task(setting.rules, options))
    operator = concatenate if setting.rules.merge_operator else None
    rules = Rules(
        setting.rules.is_last_run, setting.rules.clock_tick_ms, setting.rules.retention_min_seq, operator
    )
    expected = compact_rows(sources, rules)
    assert bench.rows(result) == list(expected)
    assert result.rows.rows_in == sum(map(len, sources))
    blocks = [[block.raw for block in file.blocks] for file in bench.files(result)]
    assert blocks == list(cut_into_ssts(expected, setting.block_size, setting.max_sst_size))
    assert [bool(file.filter) for file in bench.files(result)] == [
        len(file.rows) >= 3 for file in bench.files(result)
    ]


@given(_rows(("put", "delete")), st.lists(_keys, unique=True, max_size=4))
@settings(max_examples=60, deadline=None)
def test_ranges_together_give_what_one_range_gives(sources: list[list[Row]], cuts: list[bytes]) -> None:
    bench = Bench()
    for rows in sources:
        bench.add(rows, block_size=1024)
    edges = [None, *sorted(cuts), None]
    parts = []
    for start, end in pairwise(edges):
        parts += bench.rows(bench.run(bench.task(KEEP_ALL, key_range=KeyRange(start, end))))
    assert parts == bench.rows(bench.run(bench.task(KEEP_ALL)))


@given(_rows(("put", "delete", "merge")), _settings, st.data())
@settings(max_examples=60, deadline=None)
def test_resuming_anywhere_gives_the_same_rows(
    sources: list[list[Row]], setting: Setting, data: st.DataObject
) -> None:
    bench = Bench()
    for rows in sources:
        bench.add(rows, block_size=1024)
    options = SstOptions(1024, 1, min_filter_keys=0)
    whole = bench.run(bench.task(setting.rules, options))
    finished = data.draw(st.integers(0, len(whole.outputs)))
    resumed = bench.run(bench.task(setting.rules, options, resume_outputs=whole.outputs[:finished]))
    assert resumed.outputs[:finished] == whole.outputs[:finished]
    assert bench.rows(resumed) == bench.rows(whole)


FULL = RowRules(is_last_run=True, clock_tick_ms=TICK_MS, retention_min_seq=50)


@pytest.mark.parametrize(
    ("rows", "rules", "expected"),
    [
        ([put(b"a", 60), put(b"a", 55), put(b"a", 50), put(b"a", 40)], FULL, [60, 55, 50]),
        ([delete(b"a", 60), put(b"a", 50)], FULL, [60, 50]),
        ([delete(b"a", 60), delete(b"a", 55)], FULL, []),
        ([delete(b"a", 60), delete(b"a", 55)], replace(FULL, is_last_run=False), [60, 55]),
        ([put(b"a", 60), delete(b"a", 50), put(b"a", 40)], FULL, [60]),
        ([put(b"a", 40, expire=TICK_MS)], FULL, []),
        ([put(b"a", 40, expire=TICK_MS)], replace(FULL, is_last_run=False), [40]),
        ([put(b"a", 40, expire=TICK_MS + 1)], FULL, [40]),
        ([merge(b"a", 40, b"x"), merge(b"a", 30, b"y"), put(b"a", 20), put(b"a", 10)], FULL, [40, 30, 20]),
        ([merge(b"a", 40, b"x", expire=TICK_MS), put(b"a", 20), put(b"a", 10)], FULL, [20]),
    ],
)
def test_retention_by_example(rows: list[Row], rules: RowRules, expected: list[int]) -> None:
    bench = Bench().add(rows)
    assert [row.seq for row in bench.rows(bench.run(bench.task(rules)))] == expected


def test_thousands_of_tombstones_of_one_key_above_the_horizon() -> None:
    rows = [delete(b"a", seq) for seq in range(5000, 1, -1)] + [put(b"a", 1, b"old")]
    bench = Bench().add(rows)
    assert bench.rows(bench.run(bench.task(replace(FULL, retention_min_seq=1)))) == rows
    assert bench.rows(bench.run(bench.task(FULL))) == []


def test_an_exact_duplicate_of_an_older_source_is_superseded() -> None:
    newer, older = put(b"a", 5, b"same"), put(b"a", 5, b"same")
    bench = Bench().add([newer]).add([older])
    result = bench.run(bench.task(KEEP_ALL))
    assert bench.rows(result) == [newer]
    assert result.rows.superseded == 1


def test_versions_of_one_key_straddle_blocks_and_outputs() -> None:
    rows = [put(b"key", seq, b"v" * 50) for seq in range(5000, 0, -1)]
    bench = Bench().add(rows[:2000]).add(rows[2000:4000], rows[4000:])
    result = bench.run(bench.task(KEEP_ALL, SstOptions(max_sst_size=64 << 10)))
    assert len(result.outputs) > 3
    assert bench.rows(result) == rows


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_huge_keys_and_values(block_size: int) -> None:
    rows = [put(b"k" * 70_000 + b"%04d" % i, 100 - i, b"v" * 100) for i in range(20)]
    rows += [put(b"m%04d" % i, 50, bytes([i]) * (3_000_000 if i == 2 else 10)) for i in range(5)]
    bench = Bench().add(rows, block_size=block_size).add([put(b"a", 1), put(b"z", 1)])
    result = bench.run(bench.task(KEEP_ALL, SstOptions(block_size=block_size)))
    expected = [put(b"a", 1), *rows, put(b"z", 1)]
    assert bench.rows(result) == expected
    (file,) = bench.files(result)
    (blocks,) = cut_into_ssts(expected, block_size, 1 << 28)
    assert [block.raw for block in file.blocks] == blocks


def test_visible_ranges_limit_each_sst() -> None:
    rows = [put(b"%03d" % i, 5) for i in range(300)]
    bench = Bench()
    bench.add(rows, block_size=1024, visible=KeyRange(b"050", b"100"))
    bench.add(rows, block_size=1024, visible=KeyRange(b"200", b"250", end_inclusive=True))
    keys = [row.key for row in bench.rows(bench.run(bench.task(KEEP_ALL)))]
    assert keys == [b"%03d" % i for i in (*range(50, 100), *range(200, 251))]
    keys = [row.key for row in bench.rows(bench.run(bench.task(KEEP_ALL, key_range=KeyRange(b"09", b"21"))))]
    assert keys == [b"%03d" % i for i in (*range(90, 100), *range(200, 210))]


def test_hundreds_of_sources() -> None:
    bench = Bench()
    newest: dict[bytes, int] = {}
    for seq in range(300, 0, -1):
        rows = [put(b"%05d" % key, seq) for key in range(seq, 3000, 97)]
        newest = {row.key: row.seq for row in rows} | newest
        bench.add(rows)
    assert [(row.key, row.seq) for row in bench.rows(bench.run())] == sorted(newest.items())


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("format_version", [1, 2])
def test_every_codec_and_format_is_read(codec: Codec, format_version: int) -> None:
    rows = [put(b"key%05d" % i, 9, b"abc" * (i % 70), expire=5000) for i in range(1000)]
    rows += [delete(b"x", 3), merge(b"y", 3, b"m")]
    bench = Bench().add(rows, codec=codec, format_version=format_version)
    result = bench.run(bench.task(KEEP_ALL, SstOptions(compression=codec)))
    assert bench.rows(result) == rows
    assert {sst.info.compression for sst in result.outputs} == {codec}


def test_no_rows_make_no_output() -> None:
    bench = Bench().add([delete(b"a", 2), delete(b"b", 1)])
    result = bench.run()
    assert result.outputs == ()
    assert result.rows.tombstones == 2
    assert len(list(bench.store.list(""))) == 1


def test_a_range_without_sources_makes_no_output() -> None:
    bench = Bench().add([put(b"a", 2)])
    result = bench.run(bench.task(LAST_RUN, key_range=KeyRange(b"b", b"c")))
    assert (result.outputs, result.rows.rows_in, result.bytes_read) == ((), 0, 0)


@pytest.mark.parametrize(
    "rows",
    [
        [put(b"b", 1), put(b"a", 1)],
        [put(b"a", 1), put(b"a", 2)],
        [put(b"a", 1), put(b"a", 1)],
        [put(b"a" * 30, 1), put(b"a" * 29, 1)],
    ],
)
def test_rows_out_of_order_are_refused(rows: list[Row]) -> None:
    bench = Bench().add(rows)
    with pytest.raises(CorruptObject, match=r"block 0: a row is not in order|first key is above its last"):
        bench.run(bench.task(KEEP_ALL))


def test_ssts_of_a_run_out_of_order_are_refused() -> None:
    bench = Bench().add([put(b"b", 1), put(b"c", 1)], [put(b"a", 1), put(b"d", 1)])
    with pytest.raises(CorruptObject, match="not in order"):
        bench.run(bench.task(KEEP_ALL))


@pytest.mark.parametrize("common_len", [0, 1, 7, 8, 9, 100, 3000])
def test_keys_that_differ_anywhere_behind_a_common_prefix_are_in_order(common_len: int) -> None:
    """Also beside keys outside the range that are shorter than the prefix."""
    rng = random.Random(common_len)
    common = b"p" * common_len
    tails = {bytes(rng.choices(b"\x00\x01\xff", k=rng.randrange(14))) for _ in range(400)} - {b""}
    inside = sorted(common + tail for tail in tails)
    outside = [b"a", b"b", b"bb", b"q", b"qq"] if common else []
    bench = Bench()
    for first in range(3):
        rows = [
            put(key, 9 - first, b"%d" % first) for key in sorted({*outside, *inside[first::2], *inside[::5]})
        ]
        bench.add(rows, block_size=65536)
    key_range = KeyRange(common, common + b"\xff" * 20)
    found = bench.rows(bench.run(bench.task(KEEP_ALL, key_range=key_range)))
    versions = sorted((row.key, -row.seq) for row in found)
    assert [(row.key, -row.seq) for row in found] == versions
    expected = [(key, first - 9) for first in range(3) for key in {*inside[first::2], *inside[::5]}]
    assert versions == sorted(expected)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_compressed_rows_may_be_larger_than_any_block_is_believed_to_be(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit for blocks without further evidence is lowered, so that the row need not have 256 MiB."""
    monkeypatch.setattr(inputs, "BELIEVED_BYTES", 100_000)
    rows = [put(b"a", 1), put(b"b", 2, b"v" * 1_000_000), put(b"c", 3), put(b"d", 4, b"w" * 200_000)]
    bench = Bench().add(rows)
    (packed,) = bench.run(bench.task(KEEP_ALL, SstOptions(compression=codec))).outputs
    bench.sources = [(SourceSst(sst_key(FOLDER, packed.id), packed),)]
    assert bench.rows(bench.run(bench.task(KEEP_ALL))) == rows

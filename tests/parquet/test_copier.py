"""Parquet files are merged by copying pages; PyArrow, DuckDB and polars read the same rows."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lithify.kernel.buffers import bytes_of
from lithify.kernel.memory import SLACK
from lithify.parquet.columns import CODECS, PageOptions, encoded
from lithify.parquet.copier import MergedFile, MergeOptions, ParquetInput, merge_files
from lithify.parquet.errors import CannotMerge
from lithify.parquet.kernel.pages import decode_hybrid
from lithify.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    MAX_DEPTH,
    STRUCT,
    Malformed,
    Struct,
    read_struct,
    write_struct,
)
from tests.parquet.random_files import play

SLICE = range(12)
"""The cases of which the suite plays each; `make pages` plays 10,000."""


def a_file(table: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def merged(
    files: list[bytes], options: MergeOptions | None = None
) -> tuple[MergedFile, pq.ParquetFile, bytes]:
    inputs = [ParquetInput(f"{n}.parquet", io.BytesIO(data), len(data)) for n, data in enumerate(files)]
    stream = io.BytesIO()
    found = merge_files(inputs, stream, options or MergeOptions())
    return found, pq.ParquetFile(io.BytesIO(stream.getvalue())), stream.getvalue()


@pytest.mark.parametrize("case", SLICE)
def test_random_files_have_the_same_rows(case: int, tmp_path: Path) -> None:
    assert play(1, case, tmp_path)


def test_small_row_groups_become_a_large_one_without_decoding() -> None:
    tables = [pa.table({"n": np.random.default_rng(n).integers(0, 1 << 60, 30_000)}) for n in range(4)]
    files = [a_file(table, use_dictionary=False, row_group_size=10_000) for table in tables]
    found, file, _ = merged(files)
    assert file.num_row_groups == 1
    assert found.copied_share == 1.0
    assert file.read().equals(pa.concat_tables(tables))


def test_a_row_group_is_no_larger_than_wanted() -> None:
    files = [a_file(pa.table({"n": np.arange(1000) + n}), use_dictionary=False) for n in range(5)]
    _, file, _ = merged(files, MergeOptions(row_group_rows=2000))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2000, 2000, 1000]


def test_dictionaries_become_one() -> None:
    words = [["new", "paid"], ["paid", "back"], ["sent", "new", "back"]]
    tables = [pa.table({"status": pa.array(one * 500)}) for one in words]
    found, file, _ = merged([a_file(table) for table in tables])
    column = file.metadata.row_group(0).column(0)
    assert column.has_dictionary_page
    assert file.read().equals(pa.concat_tables(tables))
    read = pq.read_table(io.BytesIO(merged([a_file(t) for t in tables])[2]), read_dictionary=["status"])
    assert read.column(0).combine_chunks().dictionary.to_pylist() == ["new", "paid", "back", "sent"]
    assert found.columns[0].reason is None


def test_a_dictionary_that_does_not_fit_is_replaced_by_its_values() -> None:
    tables = [pa.table({"t": pa.array([f"{n}-{k % 300}" for k in range(3000)])}) for n in range(4)]
    options = MergeOptions(PageOptions(dictionary_bytes=4000))
    found, file, _ = merged([a_file(table) for table in tables], options)
    assert file.read().equals(pa.concat_tables(tables))
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(file.metadata.row_group(0).column(0).encodings)
    assert found.columns[0].reason is None


def test_tiny_pages_are_joined() -> None:
    tables = [
        pa.table({"n": pa.array([n, None, 3], pa.int64()), "b": [True, None, False]}) for n in range(50)
    ]
    found, file, data = merged([a_file(table, use_dictionary=False) for table in tables])
    assert file.read().equals(pa.concat_tables(tables))
    assert found.copied_share == 0.0
    assert len(data) < 3000


def test_a_column_with_nan_has_no_bounds_and_its_nan_are_counted() -> None:
    tables = [pa.table({"x": [1.0, math.nan, None]}), pa.table({"x": [-0.0, 2.0, 5.0]})]
    for options in ({}, {"use_dictionary": False}, {"use_dictionary": False, "use_byte_stream_split": True}):
        found, file, _ = merged([a_file(table, **options) for table in tables])
        statistics = file.metadata.row_group(0).column(0).statistics
        assert not statistics.has_min_max
        assert statistics.null_count == 1
        assert (found.columns[0].groups[0].nans, found.columns[0].groups[0].nulls) == (1, 1)
        _, file, _ = merged([a_file(tables[1], **options)])
        statistics = file.metadata.row_group(0).column(0).statistics
        assert (math.copysign(1, statistics.min), statistics.max) == (-1, 5.0)


def test_bounds_are_left_out_where_one_file_has_none() -> None:
    tables = [pa.table({"n": [1, 2]}), pa.table({"n": [7, 9]})]
    _, file, _ = merged([a_file(tables[0]), a_file(tables[1], write_statistics=False)])
    statistics = file.metadata.row_group(0).column(0).statistics
    assert (statistics.has_min_max, statistics.null_count) == (False, 0)
    _, file, _ = merged([a_file(table) for table in tables])
    statistics = file.metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (1, 9)


def test_unsigned_numbers_and_decimals_are_compared_as_what_they_are() -> None:
    big = pa.table(
        {"u": pa.array([1, (1 << 64) - 1], pa.uint64()), "d": pa.array([1, -1]).cast(pa.decimal128(30, 2))}
    )
    small = pa.table({"u": pa.array([5], pa.uint64()), "d": pa.array([-7]).cast(pa.decimal128(30, 2))})
    _, file, _ = merged([a_file(small), a_file(big)])
    group = file.metadata.row_group(0)
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (1, (1 << 64) - 1)
    assert (int(group.column(1).statistics.min), int(group.column(1).statistics.max)) == (-7, 1)


def test_indexes_of_pages_are_written_anew() -> None:
    tables = [pa.table({"n": np.arange(30_000) + 30_000 * n}) for n in range(3)]
    files = [a_file(table, use_dictionary=False, write_page_index=n > 0) for n, table in enumerate(tables)]
    _, file, _ = merged(files)
    column = file.metadata.row_group(0).column(0)
    assert column.has_offset_index
    assert column.has_column_index


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_decoded_columns_have_the_wanted_codec_and_level(codec: str | None) -> None:
    table = pa.table({"k": [f"k{n}" for n in range(100)]})
    filters = {"k": {"ndv": 200, "fpp": 0.01}}
    options = MergeOptions(PageOptions(codec=codec, level=5), bloom_filters=filters)
    _, file, _ = merged([a_file(table, compression="snappy")], options)
    wanted = {None: "SNAPPY", "lz4_raw": "LZ4"}.get(codec, str(codec).upper())
    assert file.metadata.row_group(0).column(0).compression == wanted
    assert file.read().equals(table)


def test_a_wanted_bloom_filter_is_made() -> None:
    tables = [pa.table({"k": [f"k{n}" for n in range(100)], "v": range(100)})] * 2
    options = MergeOptions(bloom_filters={"k": {"ndv": 200, "fpp": 0.01}})
    found, file, _ = merged([a_file(table) for table in tables], options)
    assert file.read().equals(pa.concat_tables(tables))
    assert [column.reason for column in found.columns] == ["gets a Bloom filter", None]
    filters = [file.metadata.row_group(0).column(n).bloom_filter_offset for n in range(2)]
    assert filters[0] is not None
    assert filters[1] is None


def test_metadata_in_which_files_agree_is_kept() -> None:
    field = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "7"})
    schemas = [pa.schema([field], metadata={"same": "yes", "other": str(n)}) for n in range(2)]
    _, file, _ = merged([a_file(pa.table([[n]], schema=schema)) for n, schema in enumerate(schemas)])
    assert file.schema_arrow.metadata == {b"same": b"yes"}
    assert file.schema_arrow.field(0).metadata == {b"PARQUET:field_id": b"7"}


@pytest.mark.parametrize(
    "other",
    [pa.table({"m": [1]}), pa.table({"n": pa.array([1], pa.int32())}), pa.table({"n": [1], "m": [1]})],
)
def test_files_of_other_columns_are_refused(other: pa.Table) -> None:
    with pytest.raises(CannotMerge, match=r"1\.parquet: its columns are not those of 0\.parquet"):
        merged([a_file(pa.table({"n": [1]})), a_file(other)])


def test_a_page_with_another_checksum_is_refused() -> None:
    data = a_file(
        pa.table({"n": np.arange(1000)}), use_dictionary=False, compression="none", write_page_checksum=True
    )
    place = data.index(np.arange(1000).tobytes()[800:1600])
    changed = data[:place] + b"\7" + data[place + 1 :]
    with pytest.raises(CannotMerge, match="another checksum"):
        merged([changed])


LIES: list[tuple[str, Struct, Struct]] = [
    ("more values than there are", {}, {1: (I32, 1001)}),
    ("fewer values than there are", {}, {1: (I32, 999)}),
    ("as many values as fit into no memory", {}, {1: (I32, (1 << 31) - 1)}),
    ("no values, negative", {}, {1: (I32, -1)}),
    ("a page of two gigabytes", {2: (I32, (1 << 31) - 1)}, {}),
    ("a page of 200 MB", {2: (I32, 200 << 20)}, {}),
    ("a page beyond the end of the file", {3: (I32, 1 << 30)}, {}),
    ("an empty page", {3: (I32, 0)}, {}),
    ("indexes without a dictionary", {}, {2: (I32, 8)}),
    ("an encoding that nothing knows", {}, {2: (I32, 77)}),
    ("levels of the oldest encoding", {}, {3: (I32, 4)}),
    ("a number where a struct belongs", {5: (I32, 5)}, {}),
    ("a page of an unknown type", {1: (I32, 9)}, {}),
]


@pytest.mark.parametrize(("page", "described"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_a_page_whose_header_lies_is_refused_or_read_as_arrow_reads_it(
    page: Struct, described: Struct
) -> None:
    data = a_file(
        pa.table({"n": pa.array(range(1000), pa.int64())}), use_dictionary=False, compression="none"
    )
    length = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - length : -8])
    header, end = read_struct(data, 4)
    header |= {5: (STRUCT, {**header[5][1], **described}), **page}
    body = write_struct(header) + data[end : len(data) - 8 - length]
    chunk = footer[4][1][1][0][1][1][1][0][3][1]
    chunk[7] = (I64, len(body))
    stored = write_struct(footer)
    lying = b"PAR1" + body + stored + len(stored).to_bytes(4, "little") + b"PAR1"
    try:
        found, file, _ = merged([lying])
    except CannotMerge:
        return
    assert found.columns[0].reason is not None
    assert file.read().equals(pq.read_table(io.BytesIO(lying)))


def test_a_column_that_cannot_be_copied_is_decoded_alone() -> None:
    table = pa.table({"n": pa.array([1, None] * 500), "t": pa.array(["a"] * 1000)})
    data = a_file(table, use_dictionary=False, compression="none")
    length = int.from_bytes(data[-8:-4], "little")
    header, end = read_struct(data, 4)
    larger = write_struct({**header, 2: (I32, header[2][1] + 1)})  # Arrow does not look at this size
    assert len(larger) == end - 4
    found, file, _ = merged([data[:4] + larger + data[end : -8 - length] + data[-8 - length :]])
    assert [column.reason for column in found.columns] == ["has a page of another size than it says", None]
    assert file.read().equals(table)


@pytest.mark.parametrize("cut", [0, 3, 11, 12, 40, 300])
def test_a_file_that_is_cut_short_is_refused(cut: int) -> None:
    data = a_file(pa.table({"n": [1, 2, 3]}))
    with pytest.raises(CannotMerge, match=r"0\.parquet: "):
        merged([data[:cut]])


def test_numbers_of_any_width_are_encoded_as_they_were() -> None:
    rng = np.random.default_rng(5)
    for width in range(33):
        top = max(1, min(1 << width, 1 << 31))
        for count in (0, 1, 7, 8, 9, 100, 1000):
            numbers = rng.integers(0, top, count).astype(np.int32)
            numbers[: count // 2] = np.repeat(numbers[: count // 2], 9)[: count // 2]
            stored = bytes_of(encoded(numbers, width))
            found = np.empty(count, np.int32)
            size = decode_hybrid(stored.ctypes.data, len(stored) - SLACK, width, top, found)
            assert size == len(stored) - SLACK
            assert (found == numbers).all()


def test_a_footer_is_written_as_it_was_read() -> None:
    data = a_file(pa.table({"n": [1], "t": [["a"]]}), write_page_index=True)
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    fields, end = read_struct(footer)
    assert end == len(footer)
    assert write_struct(fields) == footer


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x18\xff\xff\xff\xff\x0f",
        b"\x19\xfc\xff\xff\xff\xff\x0f",
        b"\x16" + b"\xff" * 12,
        b"\x1b\x00",
        b"\x1c" * (MAX_DEPTH + 2),
        write_struct({1: (LIST, (STRUCT, [{}] * 2_000_000))}),
    ],
)
def test_a_damaged_struct_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_struct(data)


def test_structs_keep_large_numbers_and_far_fields() -> None:
    fields = {1: (I64, -(1 << 63)), 2: (I64, (1 << 63) - 1), 900: (BINARY, b"x" * 300)}
    assert read_struct(write_struct(fields)) == (fields, len(write_struct(fields)))

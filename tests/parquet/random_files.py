"""`make pages`, or `python -m tests.parquet.random_files`: random Parquet files merged by copying pages.

    python -m tests.parquet.random_files --cases 2500 --jobs 2
    python -m tests.parquet.random_files --seed 1 --case 4711
    python -m tests.parquet.random_files --cases 300 --java

1. A seed draws columns, rows, and writers (PyArrow, DuckDB, and polars if it is installed) with any options:
   codecs, encodings, page versions and sizes, nesting. Two to six files are merged with random options.
2. The output has the rows of the inputs, in order, as PyArrow, DuckDB and polars read both. Counts of nulls
   are those of the rows, and no row is outside its bounds.
3. Then an input is damaged: bits, bytes, lengths. The merge is refused, or right in the same sense, and needs
   bounded memory.

With `--java`, parquet-mr (in Spark) writes files too, and reads outputs, also with filters, by which it skips
pages by their indexes; one session does all.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lithify.parquet.columns import PageOptions
from lithify.parquet.copier import MergedFile, MergeOptions, ParquetInput, merge_files
from lithify.parquet.errors import CannotMerge
from lithify.parquet.footer import read_footer
from lithify.parquet.pages import ColumnChunkReader, PageMemory

polars: Any = None
with suppress(ImportError):  # it is no requirement of the project
    polars = import_module("polars")

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
MAX_GROWTH_BYTES = 1 << 30
NESTED = ("list", "structs", "map", "struct", "lists")
SCALARS: dict[str, pa.DataType] = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.uint16(),
    "number": pa.int32(),
    "unsigned": pa.uint32(),
    "long": pa.int64(),
    "big": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(5),
    "decimal": pa.decimal128(7, 2),
    "wide": pa.decimal128(30, 3),
    "day": pa.date32(),
    "time": pa.time64("us"),
    "ms": pa.timestamp("ms"),
    "us": pa.timestamp("us", tz="UTC"),
    "ns": pa.timestamp("ns"),
}


def draw_values(rng: random.Random, kind: pa.DataType, count: int) -> pa.Array:
    """Values of a random distribution, some of them null."""
    nulls = rng.choice([0.0, 0.0, 0.1, 0.9, 1.0])
    distinct = rng.choice([1, 2, 5, 50, max(1, count)])
    seed = rng.randrange(1 << 32)
    numpy = np.random.default_rng(seed)
    pool = _pool(numpy, kind, distinct)
    style = rng.choice(["random", "sorted", "runs"])
    places = numpy.integers(0, len(pool), count)
    if style == "sorted":
        places.sort()
    elif style == "runs":
        places = np.repeat(places, 17)[:count]
    array = pool.take(pa.array(places))
    if nulls:
        array = pc.if_else(pa.array(numpy.random(count) < nulls), pa.scalar(None, kind), array)
    return array


def _pool(numpy: np.random.Generator, kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(numpy.random(count) < 0.5)
    if pa.types.is_floating(kind):
        values = numpy.normal(size=count) * 10.0 ** numpy.integers(-3, 4)
        if numpy.random() < 0.5:
            special = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0])
            values = np.where(numpy.random(count) < 0.3, special[numpy.integers(0, 6, count)], values)
        return pa.array(values).cast(kind)
    if pa.types.is_string(kind):
        alphabet = np.array(list("aäz€😀"))
        lengths = numpy.integers(0, numpy.choice([3, 20, 200]), count)
        return pa.array(["".join(alphabet[numpy.integers(0, 5, n)]) for n in lengths], kind)
    if pa.types.is_binary(kind):
        return pa.array([numpy.bytes(int(n)) for n in numpy.integers(0, 30, count)], kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([numpy.bytes(kind.byte_width) for _ in range(count)], kind)
    if pa.types.is_decimal(kind):
        most = 10 ** min(kind.precision, 17) - 1
        whole = numpy.integers(-most, most, count)
        return pa.array([Decimal(int(n)).scaleb(-kind.scale) for n in whole], kind)
    if pa.types.is_time(kind):
        return pa.array(numpy.integers(0, 86_400_000_000, count)).cast(kind)
    if pa.types.is_date(kind):
        return pa.array(numpy.integers(-1000, 30_000, count).astype("int32")).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(numpy.integers(-(1 << 40), 1 << 60, count)).cast(kind)
    bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
    bits = int(numpy.choice([3, bits - 1]))
    array = pa.array(numpy.integers(0, 1 << bits, count, dtype="uint64")).cast(kind)
    return array if pa.types.is_unsigned_integer(kind) else pc.subtract(array, pa.scalar(3, kind))


def draw_column(rng: random.Random, name: str, count: int) -> pa.Array:
    base = name.rstrip("0123456789")
    if base in SCALARS:
        return draw_values(rng, SCALARS[base], count)
    numpy = np.random.default_rng(rng.randrange(1 << 32))
    if base == "struct":
        parts = [draw_values(rng, pa.float64(), count), draw_values(rng, pa.string(), count)]
        mask = pa.array(numpy.random(count) < rng.choice([0.0, 0.3]))
        return pa.StructArray.from_arrays(parts, ["x", "y"], mask=mask)
    sizes = numpy.integers(0, rng.choice([2, 6]), count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype("int32")
    total = int(offsets[-1])
    mask = pa.array(numpy.random(count) < rng.choice([0.0, 0.2]))
    if base == "map":
        keys = pa.array([f"k{n % 7}" for n in range(total)], pa.string())
        return pa.MapArray.from_arrays(offsets, keys, draw_values(rng, pa.int32(), total))
    if base == "lists":
        inner = np.sort(numpy.integers(0, total + 1, total - 1 if total else 0))
        places = np.concatenate([[0], inner, [total]]).astype("int32") if total else np.zeros(1, "int32")
        values: pa.Array = pa.ListArray.from_arrays(places, draw_values(rng, pa.int64(), total))
    elif base == "structs":
        parts = [draw_values(rng, pa.int32(), total), draw_values(rng, pa.string(), total)]
        values = pa.StructArray.from_arrays(parts, ["x", "y"])
    else:
        values = draw_values(rng, rng.choice([pa.string(), pa.int64()]) if base == "" else pa.string(), total)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def draw_table(rng: random.Random, names: Sequence[str]) -> pa.Table:
    count = rng.choice([0, 1, 7, 100, 500, 1500])
    return pa.table({name: draw_column(rng, name, count) for name in names})


def write_arrow(rng: random.Random, table: pa.Table, path: Path, codec: str) -> None:
    """Write a file with PyArrow, with random options."""
    options: dict[str, Any] = {
        "compression": codec,
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "version": rng.choice(["1.0", "2.4", "2.6", "2.6"]) if "ns" not in str(table.schema.types) else "2.6",
        "data_page_size": rng.choice([100, 2000, 1 << 20]),
        "write_batch_size": rng.choice([10, 1024]),
        "row_group_size": rng.choice([50, 1000, 1 << 20]),
        "write_statistics": rng.random() < 0.9,
        "write_page_index": rng.random() < 0.4,
        "write_page_checksum": rng.random() < 0.3,
        "dictionary_pagesize_limit": rng.choice([50, 1 << 20]),
        "store_decimal_as_integer": True,
        "store_schema": True,
    }
    encodings = {} if rng.random() < 0.5 else _encodings(rng, table.schema)
    if encodings:
        options |= {"use_dictionary": False, "column_encoding": encodings}
    else:
        options["use_dictionary"] = rng.choice([True, False, list(table.schema.names[::2])])
    pq.write_table(table, path, **options)


def _encodings(rng: random.Random, schema: pa.Schema) -> dict[str, str]:
    found = {}
    for one in schema:
        kind = one.type
        choices = ["PLAIN"]
        if pa.types.is_boolean(kind):
            choices = ["PLAIN", "RLE"]
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            choices += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        elif pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
            choices += ["DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
        elif pa.types.is_floating(kind):
            choices += ["BYTE_STREAM_SPLIT"]
        elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
            choices += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        if not pa.types.is_nested(kind):
            found[one.name] = rng.choice(choices)
    return found


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def database() -> duckdb.DuckDBPyConnection:
    """Return a connection to a database of this process, to be closed."""
    return _database().cursor()


def write_duckdb(rng: random.Random, table: pa.Table, path: Path, codec: str) -> None:
    """Write a file with DuckDB, with random options."""
    with database() as connection:
        connection.register("rows", table)
        options = [
            f"compression {'uncompressed' if codec == 'none' else 'lz4_raw' if codec == 'lz4' else codec}",
            f"row_group_size {rng.choice([2048, 100_000])}",
            f"parquet_version {rng.choice(['v1', 'v2'])}",
        ]
        if rng.random() < 0.3:
            options.append("dictionary_size_limit 10")
        connection.execute(f"copy rows to '{path}' (format parquet, {', '.join(options)})")


def write_polars(rng: random.Random, table: pa.Table, path: Path, codec: str) -> None:
    """Write a file with polars, with random options."""
    polars.from_arrow(table).write_parquet(
        path,
        compression="uncompressed" if codec == "none" else codec,
        row_group_size=rng.choice([50, 1000, None]),
        data_page_size=rng.choice([100, 2000, None]),
        statistics=rng.random() < 0.8,
    )


Writer = Callable[[random.Random, pa.Table, Path, str], None]
WRITERS: dict[str, Writer] = {
    "pyarrow": write_arrow,
    "duckdb": write_duckdb,
    **({} if polars is None else {"polars": write_polars}),
}


@dataclass
class Case:
    """Files, and how they are merged."""

    paths: list[Path]
    options: MergeOptions
    writers: Counter[str] = field(default_factory=Counter)


def draw_options(rng: random.Random, names: Sequence[str]) -> MergeOptions:
    paths = [f"{name}.y" if name.startswith("struct") and name[6] != "s" else name for name in names]
    filtered = [path for path in paths if path.startswith(("text", "long")) or path.endswith(".y")]
    filters = {path: {"ndv": 100, "fpp": 0.1} for path in filtered if rng.random() < 0.1}
    pages = PageOptions(
        codec=rng.choice([None, None, None, "uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4_raw"]),
        level=rng.choice([None, None, None, 3]),
        page_bytes=rng.choice([500, 1 << 20]),
        page_rows=rng.choice([50, 20_000, 20_000]),
        dictionary_bytes=rng.choice([0, 100, 2 << 20]),
    )
    return MergeOptions(
        pages,
        row_group_bytes=rng.choice([1, 5000, 128 << 20]),
        row_group_rows=rng.choice([100, 1 << 20]),
        bloom_filters=filters,
    )


def draw_names(rng: random.Random) -> list[str]:
    kinds = [*SCALARS, *NESTED]
    return [f"{rng.choice(kinds)}{n}" for n in range(rng.randrange(1, 6))]


def make_case(rng: random.Random, folder: Path) -> Case:
    names = draw_names(rng)
    names = [
        f"list{n}" if name.startswith("lists") and rng.random() < 0.5 else name
        for n, name in enumerate(names)
    ]
    writer = rng.choice(["pyarrow", "pyarrow", *WRITERS])
    codec = rng.choice(CODECS)
    case = Case([], draw_options(rng, names))
    for n in range(rng.randrange(2, 7)):
        path = folder / f"{n}.parquet"
        table = draw_table(rng, names)
        own_codec = rng.choice(CODECS) if rng.random() < 0.1 else codec
        try:
            WRITERS[writer](rng, table, path, own_codec)
        except Exception:
            if writer == "pyarrow":
                raise
            continue  # a writer that cannot write this type
        case.writers[writer] += 1
        case.paths.append(path)
    return case


def merge(paths: Sequence[Path], target: Path, options: MergeOptions) -> MergedFile:
    inputs = [ParquetInput(path.name, io.BytesIO(path.read_bytes()), path.stat().st_size) for path in paths]
    with target.open("wb") as stream:
        return merge_files(inputs, stream, options)


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """Return whether tables have the same rows, NaN and signs of zeros included."""
    if left.num_rows != right.num_rows or left.schema.names != right.schema.names:
        return False
    return all(
        left.column(n).equals(right.column(n)) or _texts(left.column(n)) == _texts(right.column(n))
        for n in range(left.num_columns)
    )


def _texts(column: pa.ChunkedArray) -> list[str]:
    return [
        repr(value.as_py()) if not pa.types.is_timestamp(column.type) else str(value.value)
        for value in column
    ]


def read_arrow(paths: Sequence[Path]) -> pa.Table:
    tables = [pq.ParquetFile(path).read(use_threads=False) for path in paths]
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables])


def read_duckdb(paths: Sequence[Path]) -> pa.Table:
    with database() as connection:
        files = [str(path) for path in paths]
        return connection.execute("select * from read_parquet($1)", [files]).to_arrow_table()


def read_polars(paths: Sequence[Path]) -> pa.Table:
    frames = [polars.read_parquet(path) for path in paths]
    return polars.concat(frames).to_arrow()


READERS: dict[str, Callable[[Sequence[Path]], pa.Table]] = {
    "pyarrow": read_arrow,
    "duckdb": read_duckdb,
    **({} if polars is None else {"polars": read_polars}),
}


def judge(case: Case, target: Path, merged: MergedFile, *, readers: Sequence[str] = tuple(READERS)) -> None:
    """Raise `AssertionError` unless the output has the rows of the inputs, and right statistics."""
    for name in readers:
        try:
            expected = READERS[name](case.paths)
        except Exception:
            assert name != "pyarrow", "PyArrow cannot read the inputs"
            continue  # a reader that cannot read them
        assert same_rows(READERS[name]([target]), expected), f"{name} reads other rows"
    file = pq.ParquetFile(target)
    assert merged.rows == file.metadata.num_rows
    assert merged.size_bytes == target.stat().st_size
    for n in range(file.num_row_groups):
        judge_statistics(file, n)
    judge_page_order(target)


def judge_page_order(target: Path) -> None:
    """No page of indexes follows one of values: no writer makes such chunks, and Spark misreads them."""
    data = target.read_bytes()
    footer = read_footer(io.BytesIO(data), len(data))
    for group in footer.groups:
        for leaf, chunk in zip(footer.leaves, group.chunks, strict=True):
            stream, memory = io.BytesIO(data), PageMemory()
            reader = ColumnChunkReader(stream, chunk, leaf, group.rows, has_order=True, scratch=memory)
            are_indexes = [page.indexes is not None for page in reader.pages()]
            assert are_indexes == sorted(are_indexes, reverse=True), f"{leaf.name}: indexes after values"
            assert reader.dictionary is None or any(are_indexes), f"{leaf.name}: an unused dictionary"


def judge_statistics(file: pq.ParquetFile, group: int) -> None:
    meta = file.metadata.row_group(group)
    table = file.read_row_group(group, use_threads=False)
    for n in range(meta.num_columns):
        column = meta.column(n)
        if "." in column.path_in_schema or column.path_in_schema not in table.schema.names:
            continue
        values = table.column(column.path_in_schema)
        found = column.statistics
        assert found is None or found.null_count == values.null_count, f"{column.path_in_schema}: nulls"
        if found is None or not found.has_min_max or values.null_count == len(values):
            continue
        kind = values.type
        if pa.types.is_floating(kind):
            numbers = values.drop_null().to_numpy()
            assert not np.isnan(numbers).any(), f"{column.path_in_schema}: bounds with NaN"
            assert found.min <= numbers.min() <= numbers.max() <= found.max
        elif pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
            plain = [value for value in values.to_pylist() if value is not None]
            if pa.types.is_string(kind):
                plain = [value.encode() for value in plain]
            low, high = found.min, found.max
            low, high = (x.encode() if isinstance(x, str) else x for x in (low, high))
            assert low <= min(plain) <= max(plain) <= high, f"{column.path_in_schema}: bounds"


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them changed."""
    changed = bytearray(data)
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for _ in range(rng.choice([1, 1, 1, 3])):
        if not changed:
            break
        place = rng.randrange(len(changed))
        if rng.random() < 0.5:  # a footer has most of the lengths
            place = max(0, len(changed) - rng.randrange(1, min(footer, len(changed)) + 1))
        match rng.randrange(5):
            case 0 | 1:
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 3:
                changed[place : place + 5] = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x0F])
            case _:
                cut = rng.randrange(1, 30)
                del changed[place : place + cut]
    return bytes(changed)


def play(seed: int, case_number: int, folder: Path) -> Counter[str]:
    """Play one case. Return counts of what happened. Raise `AssertionError` if something is wrong."""
    rng = random.Random(f"{seed}-{case_number}")
    found: Counter[str] = Counter()
    for path in folder.glob("*.parquet"):
        path.unlink()
    case = make_case(rng, folder)
    if not case.paths:
        return Counter({"not written": 1})
    found.update({f"files by {name}": count for name, count in case.writers.items()})
    target = folder / "output.parquet"
    try:
        merged = merge(case.paths, target, case.options)
    except CannotMerge as error:
        found[f"refused: {_kind(error)}"] += 1
    else:
        judge(case, target, merged)
        found["merged"] += 1
        found["columns copied"] += sum(column.reason is None for column in merged.columns)
        for column in merged.columns:
            if column.reason is not None:
                found[f"column decoded: {_without_numbers(column.reason)}"] += 1
    found.update(play_damaged(rng, case, target))
    return found


def play_damaged(rng: random.Random, case: Case, target: Path) -> Counter[str]:
    victim = rng.choice(case.paths)
    victim.write_bytes(damage(rng, victim.read_bytes()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        merge(case.paths, target, case.options)
    except CannotMerge:
        return Counter({"damaged: refused": 1})
    finally:
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert growth < MAX_GROWTH_BYTES, f"damaged: {growth:,} bytes of memory"
    try:
        expected = read_arrow(case.paths)
    except Exception as error:
        try:
            read_arrow([target])
        except Exception:
            raise AssertionError(f"damaged: carried on ({str(error)[:200]})") from error
        return Counter({"damaged: better than PyArrow": 1})
    assert same_rows(read_arrow([target]), expected), "damaged: other rows"
    return Counter({"damaged: right": 1})


SPARK_KINDS = (
    *("flag", "tiny", "number", "long", "float", "double", "text", "bytes", "decimal", "wide", "day", "us"),
    *NESTED,
)


def write_spark(spark: Any, rng: random.Random, table: pa.Table, path: Path, codec: str) -> None:
    """Write a file with parquet-mr, with random options."""
    options = {
        "compression": codec,
        "parquet.writer.version": rng.choice(["v1", "v2"]),
        "parquet.page.size": rng.choice([1000, 1 << 20]),
        "parquet.page.row.count.limit": rng.choice([100, 20_000]),
        "parquet.enable.dictionary": rng.choice(["true", "true", "false"]),
        "parquet.block.size": rng.choice([1 << 16, 1 << 27]),
        "parquet.page.write-checksum.enabled": rng.choice(["true", "false"]),
        "parquet.bloom.filter.enabled": rng.choice(["true", "false"]),
    }
    folder = path.with_suffix(".spark")
    rows = spark.createDataFrame(table).coalesce(1)
    rows.write.mode("overwrite").options(**options).parquet(str(folder))
    next(folder.glob("*.parquet")).rename(path)


def play_java(spark: Any, seed: int, case_number: int, folder: Path) -> Counter[str]:
    """Play a case with parquet-mr as a writer and the reader."""
    rng = random.Random(f"java-{seed}-{case_number}")
    for path in folder.glob("*.parquet"):
        path.unlink()
    names = [f"{rng.choice(SPARK_KINDS)}{n}" for n in range(rng.randrange(1, 6))]
    case, first = Case([], draw_options(rng, names)), 0
    by_spark = rng.random() < 0.7
    for n in range(rng.randrange(2, 5)):
        table = draw_table(rng, names)
        ids = pa.array(range(first, first + table.num_rows), pa.int64())
        table, first = table.add_column(0, "id", ids), first + table.num_rows
        path, codec = folder / f"{n}.parquet", rng.choice(["snappy", "zstd", "gzip", "none"])
        if by_spark:
            write_spark(spark, rng, table, path, codec)
        else:
            write_arrow(rng, table, path, codec)
        case.paths.append(path)
    target = folder / "output.parquet"
    try:
        merged = merge(case.paths, target, case.options)
    except CannotMerge as error:
        return Counter({f"refused: {_kind(error)}": 1})
    judge(case, target, merged)
    inputs = spark.read.parquet(*map(str, case.paths)).orderBy("id")
    output = spark.read.parquet(str(target)).orderBy("id")
    expected = inputs.toArrow()
    assert same_rows(output.toArrow(), expected), "parquet-mr reads other rows"
    low = rng.randrange(max(first, 1))
    filters = [f"id >= {low} and id < {low + 50}", f"{names[0]} is null"]
    values = expected.column(names[0])
    if first and names[0].startswith(("number", "long", "tiny", "text")) and values[low].is_valid:
        filters.append(f"{names[0]} = {values[low].as_py()!r}")
    for one in filters:
        assert output.where(one).count() == inputs.where(one).count(), f"parquet-mr filters other rows: {one}"
    return Counter({f"parquet-mr reads {'its own' if by_spark else 'those of PyArrow'}": 1})


def play_all_java(seed: int, cases: Sequence[int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    spark = builder.config(map=settings).getOrCreate()
    try:
        return play_all(seed, cases, partial(play_java, spark))
    finally:
        spark.stop()


def _kind(error: CannotMerge) -> str:
    return _without_numbers(str(error).partition(": ")[2] or str(error))[:90]


def _without_numbers(text: str) -> str:
    return "".join("#" if character.isdigit() else character for character in text)


Play = Callable[[int, int, Path], Counter[str]]


def play_all(
    seed: int, cases: Sequence[int], play: Play = play
) -> tuple[Counter[str], list[tuple[int, str]]]:
    found: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in cases:
            try:
                found += play(seed, number, Path(folder))
            except Exception:
                failed.append((number, traceback.format_exc(limit=-4)))
    return found, failed


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parquet.random_files")
    parser.add_argument("--cases", type=int, default=2500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--java", action="store_true", help="play cases with parquet-mr")
    options = parser.parse_args(argv)
    if options.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(play(options.seed, options.case, Path(folder)))
        return 0
    started_s = time.monotonic()
    cases = range(options.first, options.first + options.cases)
    batches = list(_batched(cases, 50))
    found: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    if options.java:
        found, failed = play_all_java(options.seed, cases)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            for counts, wrong in pool.map(partial(play_all, options.seed), batches):
                found += counts
                failed += wrong
    for number, text in failed[:20]:
        print(f"python -m tests.parquet.random_files --seed {options.seed} --case {number}\n{text}")
    for name, count in sorted(found.items()):
        print(f"{count:8,} {name}")
    print(f"{len(cases):,} cases, {len(failed)} failed, {time.monotonic() - started_s:.0f} s")
    return 1 if failed else 0


def _batched(cases: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

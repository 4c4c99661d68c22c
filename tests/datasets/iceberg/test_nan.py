"""Not-a-number in outputs: nothing that readers and writers decide by hides a row that has it.

Java and PyIceberg delete whole files whose bounds lie in a filter, unless NaN is counted; Arrow and DuckDB
leave out row groups by the bounds in footers, in which Arrow has no NaN.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression, IsNaN, LessThan, NotEqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from lithify.datasets.iceberg.format.ownership import OWN_FOLDER
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import START, duckdb_with_iceberg, files_of, fresh, new_table

NAN = math.nan
AT_ONCE = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
SCHEMA = Schema(
    NestedField(1, "event_time", TimestamptzType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "x", DoubleType(), required=False),
    NestedField(
        4,
        "s",
        StructType(
            NestedField(7, "y", FloatType(), required=False),
            NestedField(8, "t", StructType(NestedField(9, "z", DoubleType(), required=True)), required=False),
        ),
        required=False,
    ),
    NestedField(5, "l", ListType(10, DoubleType(), element_required=False), required=False),
    NestedField(6, "m", MapType(11, StringType(), 12, FloatType(), value_required=False), required=False),
)
is_nan: Any = IsNaN
Filter = tuple[str, BooleanExpression]
"""As SQL, and for PyIceberg."""


def table_of(
    catalog: Catalog,
    files: Sequence[Sequence[float | None]],
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
) -> Table:
    """A table with these values of `x`, one append for each file; the other columns have them too."""
    table = new_table(catalog, schema=SCHEMA, spec=spec, properties=AT_ONCE)
    arrow = schema_to_pyarrow(SCHEMA)
    row_id = 0
    for values in files:
        rows = []
        for x in values:
            nested = None if x is None else {"y": x, "t": {"z": x} if row_id % 2 else None}
            rows.append(
                {"event_time": START, "id": row_id, "x": x, "s": nested, "l": [x, 1.0], "m": [("k", x)]}
            )
            row_id += 1
        fresh(table).append(pa.Table.from_pylist(rows, arrow))
    return table


def ids_of(table: Table, row_filter: Filter | None = None) -> list[int]:
    """The ids that PyIceberg and DuckDB find, which are the same."""
    now = fresh(table)
    location = now.metadata_location.removeprefix("file://")
    where = "" if row_filter is None else f" WHERE {row_filter[0]}"
    rows = duckdb_with_iceberg().execute(f"SELECT id FROM iceberg_scan('{location}'){where} ORDER BY id")
    by_duckdb = [row[0] for row in rows.fetchall()]
    scan = now.scan() if row_filter is None else now.scan(row_filter=row_filter[1])
    assert sorted(scan.to_arrow()["id"].to_pylist()) == by_duckdb
    return by_duckdb


def by_java(lake: Lake, table: Table) -> None:
    lake.sql("DELETE FROM events WHERE x < 100")


def by_pyiceberg(lake: Lake, table: Table) -> None:
    fresh(table).delete("x < 100")


@pytest.mark.parametrize("delete", [by_java, by_pyiceberg])
def test_a_delete_of_small_numbers_keeps_what_is_none(
    lake: Lake, delete: Callable[[Lake, Table], None]
) -> None:
    table = table_of(lake.catalog, [[n, NAN] for n in range(6)])
    assert compact(dataset_of(table)).committed
    delete(lake, table)
    assert ids_of(table) == [1, 3, 5, 7, 9, 11]
    assert lake.sql("SELECT count(*) FROM events") == [(6,)]


@pytest.mark.parametrize(
    "row_filter",
    [
        ("isnan(x)", is_nan("x")),
        ("x <> 3", cast(Any, NotEqualTo)("x", 3.0)),
        ("x < 5", cast(Any, LessThan)("x", 5.0)),
        ("isnan(s.y)", is_nan("s.y")),
    ],
    ids=lambda row_filter: row_filter[0],
)
def test_a_file_of_one_number_and_nan_hides_neither(catalog: Catalog, row_filter: Filter) -> None:
    table = table_of(catalog, [[3.0, 3.0], [NAN], [3.0]])
    before = ids_of(table, row_filter)
    assert compact(dataset_of(table)).committed
    assert ids_of(table, row_filter) == before


def metrics(file: DataFile, field_id: int) -> tuple[Any, ...]:
    """Counts of values, nulls and NaN, and the bounds."""
    parts = (
        file.value_counts, file.null_value_counts, file.nan_value_counts, file.lower_bounds, file.upper_bounds
    )  # fmt: skip
    return tuple((part or {}).get(field_id) for part in parts)


def bound(value: float, kind: str = "d") -> bytes:
    return struct.pack(f"<{kind}", value)


def test_every_float_is_counted_but_elements(catalog: Catalog) -> None:
    """As Java does: elements of lists and maps have neither counts of NaN nor bounds."""
    table = table_of(catalog, [[2.0, NAN, None], [NAN, -7.5, NAN]])
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert metrics(file, 3) == (6, 1, 3, bound(-7.5), bound(2.0))
    assert metrics(file, 7) == (6, 1, 3, bound(-7.5, "f"), bound(2.0, "f"))
    assert metrics(file, 9) == (6, 3, 3, None, None)
    assert metrics(file, 10)[2:] == metrics(file, 12)[2:] == (None, None, None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0], (2, 0, 0, bound(1.0), bound(2.0))),
        ([NAN, NAN], (2, 0, 2, None, None)),
        ([None, None], (2, 2, 0, None, None)),
        ([None, NAN], (2, 1, 1, None, None)),
        ([math.inf, -math.inf, NAN], (3, 0, 1, bound(-math.inf), bound(math.inf))),
        ([0.0, NAN], (2, 0, 1, bound(-0.0), bound(0.0))),
        ([-0.0, NAN], (2, 0, 1, bound(-0.0), bound(0.0))),
    ],
)
def test_bounds_are_those_of_numbers(
    catalog: Catalog, values: list[float | None], expected: tuple[Any, ...]
) -> None:
    """A zero is bounded by both zeros: to some readers they are equal, to others not."""
    table = table_of(catalog, [[value] for value in values])
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert metrics(file, 3) == expected


def test_nan_that_comes_late_in_a_file(catalog: Catalog) -> None:
    """In another row group than the first."""
    table = table_of(catalog, [[1.0, 2.0], [3.0, NAN]])
    set_property(table, "write.parquet.row-group-limit", "1")
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert len(file.split_offsets or ()) == 4
    assert metrics(file, 3) == (4, 0, 1, bound(1.0), bound(3.0))
    assert ids_of(table, ("isnan(x)", is_nan("x"))) == [3]


def test_a_mode_that_counts_counts_nan(catalog: Catalog) -> None:
    table = table_of(catalog, [[1.0, NAN], [3.0]])
    set_property(table, "write.metadata.metrics.column.x", "counts")
    set_property(table, "write.metadata.metrics.column.s.y", "none")
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert metrics(file, 3) == (3, 0, 1, None, None)
    assert metrics(file, 7) == (None, None, None, None, None)


def test_outputs_of_a_program_that_did_not_count(catalog: Catalog) -> None:
    """A worker of an older version wrote them, and this version commits."""
    table = table_of(catalog, [[1.0, NAN], [3.0]])
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    forgotten = 0
    for path in Path(table.location().removeprefix("file://"), OWN_FOLDER).rglob("*.json"):
        older, found = re.subn(r'("nan_value_counts": ?)\{[^}]+\}', r"\1{}", path.read_text())
        forgotten += found
        path.write_text(older)
    assert forgotten
    assert Steps(dataset_of(table)).commit().committed
    (file,) = files_of(table)
    assert metrics(file, 3) == (3, 0, None, None, None)
    assert metrics(file, 7) == (3, 0, None, None, None)
    assert metrics(file, 2) == (3, 0, None, bound(0, "q"), bound(2, "q"))
    assert ids_of(table) == [0, 1, 2]


def test_a_partition_of_nan(lake: Lake) -> None:
    """Partitions of NaN and of either zero are apart, and the summaries of manifests are Java's. PyIceberg
    cannot write such partitions."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "x"))
    table = table_of(lake.catalog, [], spec)
    values = ["NaN", "NaN", "0.0", "0.0", "-0.0", "-0.0", None, None, "5.0", "5.0"]
    for row_id, value in enumerate(values):
        x = "null" if value is None else f"double('{value}')"
        lake.sql(f"INSERT INTO events SELECT timestamp_seconds(1735689600), {row_id}, {x}, null, null, null")
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 5
    assert ids_of(table) == list(range(10))
    assert ids_of(table, ("isnan(x)", is_nan("x"))) == [0, 1]
    compacted = fresh(table).metadata.current_snapshot_id
    lake.call("rewrite_manifests")
    by_java = summaries_of(lake)
    lake.call("rollback_to_snapshot", snapshot_id=str(compacted))
    assert ManifestRewriter(dataset_of(table), a_clock()).run().outcome is RewriteOutcome.REWRITTEN
    assert summaries_of(lake) == by_java
    assert by_java == [
        {"contains_null": True, "contains_nan": True, "lower_bound": "-0.0", "upper_bound": "5.0"}
    ]


def summaries_of(lake: Lake) -> list[dict[str, Any]]:
    """Those of the only manifest with files."""
    (row,) = lake.sql(
        "SELECT partition_summaries FROM events.manifests WHERE added_data_files_count > 0 "
        "OR existing_data_files_count > 0"
    )
    found: list[dict[str, Any]] = row[0]
    return found


def set_property(table: Table, key: str, value: str) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({key: value})

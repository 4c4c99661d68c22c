"""Statistics of outputs in manifests, field by field those that Java's writer would give the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import MetricModeTypes, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lithify.datasets.iceberg.format.metrics_modes import metrics_modes
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import START, append, files_of, fresh, make_rows, new_table
from tests.judge.iceberg_java import IcebergJava

AT_ONCE = {
    "lithify.min-saved-files": "1",
    "lithify.min-new-percent": "0",
    "lithify.time-column": "event_time",
}
MODES = "write.metadata.metrics."
TIME_ID = 1
"""Has bounds in any case: planning needs them."""


def table_of(
    catalog: Catalog,
    columns: Mapping[str, tuple[IcebergType, Sequence[Any]]],
    properties: Mapping[str, str] | None = None,
    order: SortOrder = UNSORTED_SORT_ORDER,
) -> Table:
    """A table of two files with these columns and one of times, that another program has given properties."""
    fields = [NestedField(1, "event_time", TimestamptzType(), required=False)]
    fields += [
        NestedField(n, name, kind, required=False) for n, (name, (kind, _)) in enumerate(columns.items(), 2)
    ]
    table = new_table(catalog, schema=Schema(*fields), properties=AT_ONCE, order=order)
    schema = schema_to_pyarrow(table.schema())
    rows = zip(*(values for _, values in columns.values()), strict=True)
    named = [{"event_time": START, **dict(zip(columns, row, strict=True))} for row in rows]
    for part in (named[::2], named[1::2]):
        fresh(table).append(pa.Table.from_pylist(part, schema))
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "properties": {**metadata["properties"], **(properties or {})}}))
    return table


def compacted(table: Table) -> DataFile:
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    return file


def metrics_of(file: DataFile) -> dict[str, dict[int, Any]]:
    """As `IcebergJava.metrics` has them."""
    names = ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    return {name: dict(getattr(file, name) or {}) for name in names}


def judge(java: IcebergJava, table: Table) -> dict[str, dict[int, Any]]:
    """Compact; nothing of the output's metrics differs from Java's but what `docs/iceberg.md` says."""
    file = compacted(table)
    expected = java.metrics(fresh(table).metadata_location, file.file_path)
    found = metrics_of(file)
    for name, by_field in found.items():
        # Java gives none of these for elements of lists and maps.
        extra = set() if name == "column_sizes" else elements(table.schema())
        differing = {n for n in {*by_field, *expected[name]} if by_field.get(n) != expected[name].get(n)}
        assert differing <= extra | {TIME_ID}, name
    assert TIME_ID in found["lower_bounds"]
    assert not elements(table.schema()) & {*found["lower_bounds"], *found["upper_bounds"]}
    return found


def elements(schema: Schema) -> set[int]:
    """Ids of all that is inside lists and maps."""

    def inside(kind: IcebergType, *, repeated: bool) -> set[int]:
        parts = {
            StructType: lambda kind: [(f.field_id, f.field_type) for f in kind.fields],
            ListType: lambda kind: [(kind.element_id, kind.element_type)],
            MapType: lambda kind: [(kind.key_id, kind.key_type), (kind.value_id, kind.value_type)],
        }.get(type(kind), lambda _: [])(kind)
        repeated = repeated or isinstance(kind, ListType | MapType)
        found = {field_id for field_id, _ in parts if repeated}
        return found.union(*(inside(part, repeated=repeated) for _, part in parts))

    return inside(schema.as_struct(), repeated=False)


VALUES: dict[str, tuple[IcebergType, Sequence[Any]]] = {
    "a_boolean": (BooleanType(), [True, False, None, True]),
    "an_int": (IntegerType(), [-(1 << 31), (1 << 31) - 1, None, 0]),
    "a_long": (LongType(), [-(1 << 63), (1 << 63) - 1, None, 0]),
    "a_small_decimal": (DecimalType(9, 2), [Decimal("-1.50"), Decimal("9999999.99"), None, Decimal("0.00")]),
    "a_decimal": (DecimalType(18, 0), [Decimal(-1), Decimal(10**17), None, Decimal(128)]),
    "a_large_decimal": (
        DecimalType(38, 10),
        [Decimal("-1.5"), Decimal("1234567890123456789.5"), None, Decimal(0)],
    ),
    "a_date": (DateType(), [date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1)]),
    "a_time": (TimeType(), [time(0), time(23, 59, 59, 999999), None, time(12)]),
    "a_timestamp": (
        TimestampType(),
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59), None, datetime(1969, 12, 31)],
    ),
    "a_timestamptz": (
        TimestamptzType(),
        [
            datetime(1900, 1, 1, tzinfo=UTC),
            datetime(2262, 4, 12, tzinfo=UTC),
            None,
            datetime(1970, 1, 1, tzinfo=UTC),
        ],
    ),
    "a_string": (StringType(), ["", "x" * 40, None, "é" * 15 + "\U0001f600" * 3]),
    "a_binary": (BinaryType(), [b"", b"\xff" * 40, None, b"\x80" * 17]),
    "a_fixed": (FixedType(20), [b"\x00" * 20, b"\xff" * 20, None, b"\x7f" * 20]),
    "a_uuid": (
        UUIDType(),
        [UUID(int=0).bytes, UUID(int=(1 << 128) - 1).bytes, None, UUID(int=1 << 127).bytes],
    ),
    "a_struct": (
        StructType(
            NestedField(100, "n", LongType(), required=False),
            NestedField(
                101, "t", StructType(NestedField(102, "s", StringType(), required=False)), required=False
            ),
        ),
        [{"n": 1, "t": None}, {"n": None, "t": {"s": "y" * 30}}, None, {"n": -5, "t": {"s": None}}],
    ),
    "a_list": (ListType(103, StringType(), element_required=False), [["a"], [], None, ["b", None]]),
    "a_map": (
        MapType(104, StringType(), 105, LongType(), value_required=False),
        [[("k", 1)], [], None, [("l", None)]],
    ),
    "nothing": (StringType(), [None, None, None, None]),
}


@pytest.mark.parametrize("mode", [None, "full", "counts", "none", "truncate(1)"])
def test_every_type_in_every_mode(catalog: Catalog, java: IcebergJava, mode: str | None) -> None:
    table = table_of(catalog, VALUES, {} if mode is None else {f"{MODES}default": mode})
    found = judge(java, table)
    inside = table.schema().find_field("a_struct.n").field_id
    assert (inside in found["lower_bounds"]) is (mode not in ("none", "counts"))


@pytest.mark.parametrize("name", ["a_string", "a_struct.n", "a_struct.t.s", "a_fixed"])
def test_a_mode_of_a_column(catalog: Catalog, java: IcebergJava, name: str) -> None:
    for mode in ("none", "COUNTS", "Truncate(3)", "full", "some", "truncate(0)"):
        catalog.drop_table("db.events") if catalog.table_exists("db.events") else None
        judge(java, table_of(catalog, VALUES, {f"{MODES}column.{name}": mode, f"{MODES}default": "counts"}))


@pytest.mark.parametrize(
    ("properties", "bounded"),
    [
        ({"default": "none"}, {"a_long", "a_date"}),
        ({"default": "counts"}, {"a_long", "a_date"}),
        ({"default": "none", "column.a_date": "none"}, {"a_long"}),
        ({"default": "none", "column.an_int": "truncate(4)"}, {"a_long", "a_date", "an_int"}),
    ],
)
def test_columns_of_the_sort_order_have_bounds(
    catalog: Catalog, java: IcebergJava, properties: Mapping[str, str], bounded: set[str]
) -> None:
    columns = {name: VALUES[name] for name in ("a_long", "a_date", "an_int")}
    order = SortOrder(
        SortField(2, transform=IdentityTransform()), SortField(3, transform=IdentityTransform())
    )
    table = table_of(catalog, columns, {f"{MODES}{key}": mode for key, mode in properties.items()}, order)
    found = judge(java, table)
    names = {table.schema().find_column_name(n) for n in found["lower_bounds"]}
    assert names == {"event_time", *bounded}


@pytest.mark.parametrize(
    ("transform", "is_bounded"),
    [(BucketTransform(4), False), (TruncateTransform(10), True), (VoidTransform(), False)],
)
def test_transforms_that_keep_the_order(
    catalog: Catalog, java: IcebergJava, transform: Transform[Any, Any], is_bounded: bool
) -> None:
    """A table that is sorted by one is not compacted yet, so Java looks at a file that PyIceberg wrote."""
    order = SortOrder(SortField(2, transform=transform))
    table = table_of(catalog, {"a_long": VALUES["a_long"]}, {f"{MODES}default": "none"}, order)
    expected = java.metrics(fresh(table).metadata_location, files_of(table)[0].file_path)
    assert (2 in expected["lower_bounds"]) is is_bounded
    modes = metrics_modes(fresh(table).metadata)
    assert (modes[2].type is not MetricModeTypes.NONE) is is_bounded


WIDE: dict[str, tuple[IcebergType, Sequence[Any]]] = {
    "s": (
        StructType(
            NestedField(100, "a", LongType(), required=False),
            NestedField(
                101,
                "t",
                StructType(
                    NestedField(102, "b", LongType(), required=False),
                    NestedField(103, "c", StructType(NestedField(104, "d", LongType(), required=False))),
                ),
                required=False,
            ),
            NestedField(105, "e", LongType(), required=False),
        ),
        [{"a": n, "t": {"b": n, "c": {"d": n}}, "e": n} for n in range(4)],
    ),
    "l": (ListType(106, LongType(), element_required=False), [[n] for n in range(4)]),
    "ls": (
        ListType(107, StructType(NestedField(108, "f", LongType(), required=False)), element_required=False),
        [[{"f": n}] for n in range(4)],
    ),
    "m": (MapType(109, StringType(), 110, LongType(), value_required=False), [[("k", n)] for n in range(4)]),
    "ml": (
        MapType(111, StringType(), 112, ListType(113, LongType(), element_required=False)),
        [[("k", [n])] for n in range(4)],
    ),
    **{f"c{n}": (LongType(), [n] * 4) for n in range(4)},
}
"""With the column of times seventeen, by the way in which Java counts."""


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 6, 7, 8, 15, 16, 17, -1])
def test_the_first_columns_of_a_wide_table(catalog: Catalog, java: IcebergJava, limit: int) -> None:
    properties = {f"{MODES}max-inferred-column-defaults": str(limit), f"{MODES}column.c3": "full"}
    judge(java, table_of(catalog, WIDE, properties, SortOrder(SortField(9, transform=IdentityTransform()))))


def test_the_first_hundred_columns(catalog: Catalog, java: IcebergJava) -> None:
    table = table_of(catalog, {f"c{n}": (LongType(), [n] * 4) for n in range(120)})
    assert len(judge(java, table)["lower_bounds"]) == 100


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("\ud7ff" * 20, "\ud7ff" * 15 + "\ue000"),
        ("\ud7ff" * 15 + "\U0010ffff" * 5, "\ud7ff" * 14 + "\ue000"),
        ("\uffff" * 20, "\uffff" * 15 + "\U00010000"),
        ("\U0010ffff" * 20, None),
        ("\x7f" * 20, "\x7f" * 15 + "\x80"),
        ("\ud7ff" * 16, "\ud7ff" * 16),
    ],
)
def test_upper_bounds_of_texts(catalog: Catalog, java: IcebergJava, text: str, upper: str | None) -> None:
    """Code points of surrogates are no texts, so they are skipped."""
    mode = f"{MODES}column.device"  # PyIceberg cannot write these bounds
    table = new_table(catalog, properties={**AT_ONCE, mode: "none"})
    for _ in range(2):
        append(table, make_rows(2, device=text))
    with fresh(table).transaction() as transaction:
        transaction.remove_properties(mode)
    found = judge(java, table)
    assert found["lower_bounds"][3] == text[:16].encode()
    assert found["upper_bounds"].get(3) == (None if upper is None else upper.encode())


@pytest.mark.parametrize("name", ["a:b", "a b", "1st", "größe", "a-b"])
def test_a_mode_of_a_column_with_another_name_in_files(lake: Lake, name: str) -> None:
    """Java writes the same rows: from a footer alone it does not know the name."""
    columns: Mapping[str, tuple[IcebergType, Sequence[Any]]] = {
        name: (StringType(), ["abc", "abd", "abe", "abf"]),
        "s": (StructType(NestedField(100, name, StringType(), required=False)), [{name: "x"}] * 4),
    }
    properties = {f"{MODES}column.{name}": "truncate(2)", f"{MODES}column.s.{name}": "none"}
    table = table_of(lake.catalog, columns, properties)
    before = fresh(table).metadata.current_snapshot_id
    lake.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    (by_java,) = files_of(table)
    lake.call("rollback_to_snapshot", snapshot_id=str(before))
    found, expected = metrics_of(compacted(table)), metrics_of(by_java)
    assert found.pop("column_sizes").keys() == expected.pop("column_sizes").keys()
    assert found == expected
    assert (found["lower_bounds"][2], found["upper_bounds"][2]) == (b"ab", b"ac")

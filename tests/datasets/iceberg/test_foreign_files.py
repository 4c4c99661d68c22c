"""Data files that were not written for Iceberg (`add_files`): a rewrite makes of them what Java reads in
them, or they are left alone with a reason."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
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

from lithify.datasets.iceberg.format.footers import Footers
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    START,
    add_file,
    delete_positions,
    files_of,
    fresh,
    new_table,
    read_by_java,
)
from tests.judge.iceberg_java import IcebergJava

PROPERTIES = {"lithify.time-column": "event_time", "lithify.min-saved-files": "1"}
TIMES = pa.array([START] * 4, pa.timestamp("us", "UTC"))
IDS = pa.array([1, 2, 3, 4], pa.int64())
MICROS = round(START.timestamp() * 1_000_000)


def table_with(catalog: Catalog, *fields: NestedField, is_mapped: bool = True) -> Table:
    """A table of times, ids and more columns, which knows its columns by name too."""
    schema = Schema(
        NestedField(1, "event_time", TimestamptzType()), NestedField(2, "id", LongType()), *fields
    )
    table = new_table(catalog, schema=schema, properties=PROPERTIES)
    if is_mapped:
        map_names(table)
    return fresh(table)


def map_names(table: Table) -> None:
    names = create_mapping_from_schema(fresh(table).schema()).model_dump_json()
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": names})


def write(table: Table, columns: Mapping[str, pa.Array], name: str = "file", **options: Any) -> str:
    """A Parquet file beside a table, without field ids."""
    path = Path(table.location().removeprefix("file://")) / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table({"event_time": TIMES, "id": IDS, **columns})
    pq.write_table(data, path, **{"store_schema": False, **options})
    return path.as_uri()


def name_in(catalog: Catalog, java: IcebergJava, uri: object) -> str:
    return f"{java.catalog(str(uri))}.db.events"


def int96(day: int, nanos: int) -> str:
    """A timestamp as days since 1970 and nanoseconds of the day, for parquet-mr."""
    return base64.b64encode(struct.pack("<qi", nanos, 2_440_588 + day)).decode()


STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])


def of_struct(field_id: int) -> StructType:
    return StructType(NestedField(field_id, "x", LongType()), NestedField(field_id + 1, "y", StringType()))


FAR = [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1), datetime(1816, 3, 29), None]
ONE = {"x": 1, "y": "a"}
SOUND: Mapping[str, tuple[IcebergType, pa.Array]] = {
    "boolean": (BooleanType(), pa.array([True, False, None, True])),
    "int8": (IntegerType(), pa.array([0, 1, -128, 127], pa.int8())),
    "int32 as long": (LongType(), pa.array([0, None, -128, (1 << 31) - 1], pa.int32())),
    "float as double": (DoubleType(), pa.array([0.1, None, -0.0, float("inf")], pa.float32())),
    "decimal": (
        DecimalType(9, 2),
        pa.array([Decimal("1.50"), Decimal("-1.50"), None, None], pa.decimal128(9, 2)),
    ),
    "decimal wider": (DecimalType(18, 2), pa.array([Decimal("1.50"), None, None, None], pa.decimal128(9, 2))),
    "date": (DateType(), pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(2025, 1, 1)])),
    "far": (TimestampType(), pa.array(FAR, pa.timestamp("us"))),
    "far, zoned": (TimestamptzType(), pa.array(FAR, pa.timestamp("us", "UTC"))),
    "local as zoned": (TimestamptzType(), pa.array(FAR, pa.timestamp("us"))),
    "zoned as local": (TimestampType(), pa.array(FAR, pa.timestamp("us", "UTC"))),
    "another zone": (TimestamptzType(), pa.array([START] * 4, pa.timestamp("us", "Europe/Berlin"))),
    "text": (StringType(), pa.array(["a", "", None, "Zürich"])),
    "text.of / Ünicode=?": (StringType(), pa.array(["a", "b", "c", "d"]).dictionary_encode()),
    "view": (StringType(), pa.array(["a", "", None, "Zürich"], pa.string_view())),
    "bytes": (BinaryType(), pa.array([b"\xff", b"", None, b"a"])),
    "fixed": (FixedType(3), pa.array([b"abc", b"\0\0\0", None, b"\xff\xff\xff"], pa.binary(3))),
    "uuid": (UUIDType(), pa.array([bytes(range(16)), None, bytes(16), b"\xff" * 16], pa.binary(16))),
    "list": (ListType(200, LongType(), False), pa.array([[1, None], [], None, [3]], pa.list_(pa.int32()))),
    "pair": (ListType(201, LongType(), False), pa.array([[1, 2]] * 4, pa.list_(pa.int64(), 2))),
    "structs": (
        ListType(202, of_struct(203), False),
        pa.array([[ONE, None], [], None, [{"x": None, "y": None}]], pa.list_(STRUCT)),
    ),
    "map": (
        MapType(205, StringType(), 206, of_struct(207), False),
        pa.array([[("a", ONE), ("n", None)], [], None, []], pa.map_(pa.string(), STRUCT)),
    ),
    "deep": (
        StructType(NestedField(209, "l", ListType(210, of_struct(211), False))),
        pa.array([{"l": [ONE, None]}, {"l": None}, None, {"l": []}], pa.struct([("l", pa.list_(STRUCT))])),
    ),
    "not there": (LongType(), pa.nulls(4, pa.int64())),
}


@pytest.mark.parametrize("with_arrow_schema", [False, True])
def test_what_all_readers_read_alike(catalog: Catalog, java: IcebergJava, with_arrow_schema: bool) -> None:
    """Columns in another order than the table's, with one it does not have and without one it has."""
    fields = [NestedField(n, name, kind) for n, (name, (kind, _)) in enumerate(SOUND.items(), start=10)]
    table = table_with(catalog, *fields)
    columns = {name: values for name, (_, values) in SOUND.items() if name != "not there"}
    columns = dict(reversed(columns.items())) | {"TEXT": IDS, "more": IDS}
    with serve_rest(catalog) as rest:
        for n in range(2):
            path = write(table, columns, f"file-{n}", store_schema=with_arrow_schema)
            java.append_file(name_in(catalog, java, rest.properties["uri"]), path)
    before = read_by_java(table)
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert read_by_java(table) == before


def test_timestamps_of_spark_in_a_hive_layout(catalog: Catalog, java: IcebergJava, tmp_path: Path) -> None:
    """Spark writes INT96 by default. The day is a folder's name and in no file."""
    schema = Schema(NestedField(1, "day", DateType()), NestedField(2, "id", LongType()))
    schema = Schema(*schema.fields, NestedField(3, "time", TimestamptzType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    properties = {"lithify.time-column": "day", "lithify.min-saved-files": "1"}
    table = new_table(catalog, schema=schema, spec=spec, properties=properties)
    times = ["0001-01-01", "1677-09-21 00:12:43.145224", "1969-12-31 23:59:59.999999", "2025-01-01 01:02:03"]
    times += ["2262-04-11 23:47:16.854776", "9999-12-31 23:59:59.999999"]
    java.sql("SET spark.sql.parquet.outputTimestampType=INT96")
    java.sql("SET spark.sql.parquet.int96RebaseModeInWrite=CORRECTED")
    for n in range(4):
        values = ", ".join(f"({10 * n + k}L, TIMESTAMP'{time}')" for k, time in enumerate(times))
        folder = tmp_path / "hive" / f"day=2025-01-0{n // 2 + 1}"
        java.sql(
            f"INSERT OVERWRITE DIRECTORY '{folder}/{n}' USING parquet "
            f"SELECT * FROM VALUES {values} AS t(id, time)"
        )
        (written,) = (folder / str(n)).glob("*.parquet")
        written.rename(folder / f"{n}.parquet")
    with serve_rest(catalog) as rest:
        name = java.catalog(str(rest.properties["uri"]))
        source = f"source_table => '`parquet`.`{tmp_path / 'hive'}`'"
        java.sql(f"CALL {name}.system.add_files(table => 'db.events', {source})")
    before = read_by_java(table)
    whens = [datetime.fromisoformat(time).replace(tzinfo=UTC) for time in times]
    assert [row[2] for row in before[: len(times)]] == whens
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 2
    assert read_by_java(table) == before


@pytest.mark.parametrize("kind", [TimestamptzType(), TimestampType()])
def test_timestamps_finer_than_microseconds(catalog: Catalog, java: IcebergJava, kind: IcebergType) -> None:
    """INT96 has nanoseconds. What is cut off is what Java cuts off, also before 1970 and inside a list."""
    table = table_with(catalog, NestedField(3, "v", kind), NestedField(4, "l", ListType(5, kind, False)))
    schema = """message old {
        required int64 event_time (TIMESTAMP(MICROS, true));
        required int64 id;
        optional int96 v;
        optional group l (LIST) { repeated group bag { optional int96 array; } }
    }"""
    last_nano = 86_400_000_000_000 - 1
    values = [int96(2_932_896, last_nano), int96(-719_162, 1), int96(-1, last_nano), int96(0, 999), None]
    with serve_rest(catalog) as rest:
        for n in range(2):
            path = f"{table.location()}/old-{n}.parquet"
            rows = [
                {"event_time": MICROS, "id": 10 * n + k, "v": value, "l": {"bag": [{"array": value}, {}]}}
                for k, value in enumerate(values)
            ]
            java.write_parquet(path, schema, rows)
            java.append_file(name_in(catalog, java, rest.properties["uri"]), path)
    before = read_by_java(table)
    assert before[1][2].replace(tzinfo=UTC) == datetime(1, 1, 1, tzinfo=UTC)
    assert before[2][2].replace(tzinfo=UTC) == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert read_by_java(table) == before


OLD_SHAPES: Mapping[str, tuple[IcebergType, str, list[Any]]] = {
    "a list of bags": (
        ListType(4, LongType(), False),
        "optional group v (LIST) { repeated group bag { optional int64 array; } }",
        [{"bag": [{"array": 1}, {}]}, {"bag": []}, None],
    ),
    "a map of entries": (
        MapType(4, StringType(), 5, LongType(), False),
        "optional group v (MAP) { repeated group map (MAP_KEY_VALUE) "
        "{ required binary k (UTF8); optional int64 v; } }",
        [{"map": [{"k": "a", "v": 1}, {"k": "b"}]}, {"map": []}, None],
    ),
    "an enumeration": (StringType(), "optional binary v (ENUM);", ["a", None]),
    "a document": (StringType(), "optional binary v (JSON);", ["{}", None]),
    "a time as it was marked": (TimestamptzType(), "optional int64 v (TIMESTAMP_MICROS);", [1, None]),
}


@pytest.mark.parametrize("name", OLD_SHAPES)
def test_shapes_of_old_programs(catalog: Catalog, java: IcebergJava, name: str) -> None:
    kind, field, values = OLD_SHAPES[name]
    table = table_with(catalog, NestedField(3, "v", kind))
    schema = (
        f"message old {{ required int64 event_time (TIMESTAMP(MICROS, true)); required int64 id; {field} }}"
    )
    with serve_rest(catalog) as rest:
        for n in range(2):
            path = f"{table.location()}/old-{n}.parquet"
            rows = [{"event_time": MICROS, "id": 10 * n + k, "v": v} for k, v in enumerate(values)]
            java.write_parquet(path, schema, rows)
            java.append_file(name_in(catalog, java, rest.properties["uri"]), path)
    before = read_by_java(table)
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert read_by_java(table) == before


NS = [1, -1, 1_735_689_600_123_456_789, None]
UNSOUND: Mapping[str, tuple[IcebergType, pa.Array, dict[str, Any]]] = {
    "INT64 Timestamp(milliseconds)": (TimestampType(), pa.array([1, -1, None, 3], pa.timestamp("ms")), {}),
    "INT64 Timestamp(nanoseconds)": (TimestamptzType(), pa.array(NS, pa.timestamp("ns", "UTC")), {}),
    "INT96, as parquet-cpp": (
        TimestampType(),
        pa.array(NS, pa.timestamp("ns")),
        {"use_deprecated_int96_timestamps": True},
    ),
    "INT32 Int(8, False)": (IntegerType(), pa.array([0, 1, None, 255], pa.uint8()), {}),
    "INT32 Int(32, False)": (LongType(), pa.array([0, 1, None, (1 << 32) - 1], pa.uint32()), {}),
    "INT64 Int(64, False)": (LongType(), pa.array([0, 1, None, (1 << 64) - 1], pa.uint64()), {}),
    "INT32 Time(milliseconds)": (TimeType(), pa.array([0, 1, None, 86_399_999], pa.time32("ms")), {}),
    "INT64 Time(nanoseconds)": (TimeType(), pa.array([0, 1, None, 2], pa.time64("ns")), {}),
    "FIXED_LEN_BYTE_ARRAY Decimal(9, 2)": (
        DecimalType(18, 3),
        pa.array([Decimal("1.50"), None, None, None], pa.decimal128(9, 2)),
        {},
    ),
    "FIXED_LEN_BYTE_ARRAY Float16": (FloatType(), pa.array([1.5, None, 2.0, 0.0], pa.float16()), {}),
    "BYTE_ARRAY, which": (StringType(), pa.array([b"a", b"\xff", None, b""]), {}),
    "BYTE_ARRAY String": (BinaryType(), pa.array(["a", "", None, "b"]), {}),
    "FIXED_LEN_BYTE_ARRAY, which": (BinaryType(), pa.array([b"abc"] * 4, pa.binary(3)), {}),
    "INT64, which": (IntegerType(), pa.array([1, 2, None, 1 << 40], pa.int64()), {}),
    "DOUBLE": (FloatType(), pa.array([0.1, None, 1e300, 2.0], pa.float64()), {}),
    "INT32, which": (DateType(), pa.array([1, 2, None, 3], pa.int32()), {}),
    "INT32 Date": (TimestampType(), pa.array([date(2025, 1, 1)] * 4), {}),
    "BOOLEAN": (IntegerType(), pa.array([True, False, None, True]), {}),
    "INT32 Null": (IntegerType(), pa.nulls(4), {}),
    "struct": (LongType(), pa.array([ONE, None, None, None], STRUCT), {}),
    "list": (of_struct(50), pa.array([[1], None, None, None], pa.list_(pa.int64())), {}),
    "map": (
        ListType(52, LongType(), False),
        pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
        {},
    ),
}


def test_what_readers_do_not_read_alike_is_left_alone(catalog: Catalog) -> None:
    """One file for each kind, beside others that are compacted."""
    kinds = dict(enumerate(UNSOUND.items(), start=10))
    table = table_with(catalog, *[NestedField(n, f"c{n}", kind[1][0]) for n, kind in kinds.items()])
    odd = set()
    for n, (_, (_, values, options)) in kinds.items():
        # Arrow writes either all timestamps in the old way or none.
        path = write(table, {f"c{n}": values}, f"odd-{n}", **options)
        add_file(table, path, 4)
        odd.add(path)
    sound = [write(table, {}, f"sound-{n}") for n in range(2)]
    for path in sound:
        add_file(table, path, 4)
    result = compact(dataset_of(table))
    assert result.committed
    assert not result.failures
    left = {file.file_path for file in files_of(table)}
    assert odd < left
    assert not left.intersection(sound)
    notes = "\n".join(dataset_of(table).snapshot().notes)
    for n, (told, _) in kinds.items():
        if "INT96" not in told:
            assert f"they store c{n} (" in notes
            assert f") as {told}" in notes
    assert "they store event_time (timestamptz) as INT96, as parquet-cpp-arrow" in notes


def test_ids_on_some_columns_only(catalog: Catalog, java: IcebergJava) -> None:
    """Java takes a column without an id for none of the table's as soon as another has one."""
    table = table_with(catalog, NestedField(3, "v", LongType()))
    with serve_rest(catalog) as rest:
        for n in range(2):
            path = write(table, {"v": IDS}, f"file-{n}")
            local = path.removeprefix("file://")
            data = pq.read_table(local)
            ids = [
                field.with_metadata({"PARQUET:field_id": str(k)}) for k, field in enumerate(data.schema, 1)
            ]
            pq.write_table(data.cast(pa.schema([*ids[:2], data.schema.field(2)])), local)
            java.append_file(name_in(catalog, java, rest.properties["uri"]), path)
    before = read_by_java(table)
    assert {row[2] for row in before} == {None}
    compact(dataset_of(table))
    assert "they have field ids on some columns only" in str(dataset_of(table).snapshot().notes)
    assert read_by_java(table) == before


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(("harm", "told"), [(damaged, "cannot be read: "), (gone, "no longer exist")])
def test_a_file_that_cannot_be_read_hurts_no_other(
    catalog: Catalog, harm: Callable[[Path], None], told: str
) -> None:
    table = table_with(catalog)
    paths = [write(table, {}, f"file-{n}") for n in range(3)]
    for path in paths:
        add_file(table, path, 4)
    harm(Path(paths[0].removeprefix("file://")))
    result = compact(dataset_of(table))
    assert not result.failures
    assert told in str(result.plan.notes)
    assert len(files_of(table)) == 2
    assert paths[0] in {file.file_path for file in files_of(table)}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_planning_does_not_look_into(catalog: Catalog, is_known: bool) -> None:
    """Without a name mapping no footer is read when planning. The rewrite looks once more and fails."""
    table = table_with(catalog, NestedField(3, "v", TimestampType()), is_mapped=False)
    data = pa.table({"event_time": TIMES, "id": IDS, "v": pa.array(NS, pa.timestamp("ns"))})
    for n in range(2):
        path = write(table, {}, f"file-{n}")
        ids = [field.with_metadata({"PARQUET:field_id": str(k)}) for k, field in enumerate(data.schema, 1)]
        written = data.cast(pa.schema(ids)) if is_known else data
        pq.write_table(written, path.removeprefix("file://"))
        add_file(table, path, 4)
    before = fresh(table).metadata.current_snapshot_id
    (failure,) = compact(dataset_of(table)).failures
    told = r"store v \(timestamp\) as INT64 Timestamp\(nanoseconds\)" if is_known else "no name mapping"
    assert re.search(rf"file-\d.parquet cannot be rewritten; such files .*{told}", failure.reason)
    assert fresh(table).metadata.current_snapshot_id == before


def test_a_cached_footer_is_judged_anew_under_another_name_mapping(catalog: Catalog) -> None:
    table, footers = table_with(catalog, is_mapped=False), Footers()
    path = write(table, {})

    def reason() -> str | None:
        now = fresh(table)
        return footers.read(now.io, {path: 0}, now.schema(), 1, now.metadata.name_mapping())[path].unfit

    assert "no name mapping" in str(reason())
    map_names(table)
    assert reason() is None


def test_a_file_that_is_restored_is_found(catalog: Catalog) -> None:
    table, footers = table_with(catalog), Footers()
    path = write(table, {})
    file = Path(path.removeprefix("file://"))
    file.rename(file.with_suffix(".away"))

    def reason() -> str | None:
        names = table.metadata.name_mapping()
        return footers.read(table.io, {path: 0}, table.schema(), 1, names)[path].unfit

    assert reason() == "no longer exist"
    file.with_suffix(".away").rename(file)
    assert reason() is None


@pytest.mark.parametrize("change", ["deletes", "schema"])
def test_null_lists_and_maps_stay_null(catalog: Catalog, change: str) -> None:
    """Not only in foreign files: in every file that has deletes, or columns as the table had them before."""
    structs, pairs = SOUND["structs"], SOUND["map"]
    table = table_with(
        catalog, NestedField(10, "l", structs[0]), NestedField(20, "m", pairs[0]), is_mapped=False
    )
    schema = table.schema().as_arrow()
    for n in range(2):
        ids = pa.array(range(4 * n, 4 * n + 4), pa.int64())
        columns = {"id": ids, "l": structs[1], "m": pairs[1]}
        path = write(table, columns, f"file-{n}")
        pq.write_table(pq.read_table(path.removeprefix("file://")).cast(schema), path.removeprefix("file://"))
        add_file(table, path, 4)
    before = read_by_java(table)
    if change == "schema":
        with fresh(table).update_schema() as update:
            update.add_column("more", LongType())
        before = [(*row, None) for row in before]
    else:
        delete_positions(table, {files_of(table)[0].file_path: [0]})
        before = read_by_java(table)
    assert (None, None) in {(row[2], row[3]) for row in before if row[2] is None}
    compact(dataset_of(table))
    assert len(files_of(table)) == 1
    assert read_by_java(table) == read_by_java(table, reader="generic") == before

"""Java Iceberg does what tests rely on: it shows every value, tells of its failures, and lives on."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
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

from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.tables import (
    START,
    append,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    read_by_java,
)
from tests.judge.iceberg_java import IcebergJava, Instant, JavaError, Reader

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
VALUES: dict[IcebergType, tuple[object, object]] = {
    BooleanType(): (True, None),
    IntegerType(): (-(1 << 31), None),
    LongType(): ((1 << 63) - 1, None),
    FloatType(): (0.1 + 2**-30, float("-inf")),
    DoubleType(): (0.1, float("inf")),
    DecimalType(9, 2): (Decimal("-1.50"), None),
    DecimalType(38, 10): (Decimal("1234567890123456789012345678.0123456789"), None),
    DateType(): (date(1, 1, 1), date(9999, 12, 31)),
    TimestampType(): (datetime(1, 1, 1, 0, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    TimestamptzType(): (START, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    StringType(): ("Zürich 🏔 \n\"'\\", ""),
    BinaryType(): (b"\x00\xff", b""),
}
NOT_IN_SPARK: dict[IcebergType, tuple[object, object]] = {
    TimeType(): (time(23, 59, 59, 999999), None),
    UUIDType(): (ID, None),
    FixedType(3): (b"\x00\x01\x80", None),
}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return new_catalog(tmp_path)


@pytest.mark.parametrize("reader", ["spark", "generic"])
def test_every_value_is_what_pyiceberg_reads(catalog: Catalog, java: IcebergJava, reader: Reader) -> None:
    types = {**VALUES, **(NOT_IN_SPARK if reader == "generic" else {})}
    fields = [NestedField(n, f"c{n}", kind) for n, kind in enumerate(types, start=2)]
    nested = StructType(
        NestedField(101, "inner", TimestamptzType()), NestedField(102, "l", ListType(103, DateType(), False))
    )
    schema = Schema(
        NestedField(1, "id", LongType()),
        *fields,
        NestedField(100, "s", nested),
        NestedField(104, "m", MapType(105, StringType(), 106, DecimalType(5, 1), False)),
    )
    table = new_table(catalog, schema=schema)
    rows = [
        {"id": n, "s": None, "m": None, **{f.name: types[f.field_type][n] for f in fields}} for n in (0, 1)
    ]
    rows[0] |= {
        "s": {"inner": START, "l": [date(2025, 1, 1), None]},
        "m": [("a", Decimal("1.5")), ("b", None)],
    }
    rows.append(dict.fromkeys(rows[0], None) | {"id": 2})
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    found = java.rows(table.metadata_location, reader=reader).values
    expected = [tuple(row.values()) for row in fresh(table).scan().to_arrow().to_pylist()]
    assert sorted(found) == sorted(expected)


def test_times_that_python_has_no_value_for(java: IcebergJava) -> None:
    micros = (1 << 63) - 1
    rows = java.sql(
        f"SELECT timestamp_micros({micros}) a, timestamp_micros(-{micros}) b, date_from_unix_date(3000000) c"
    )
    assert rows.values == [(Instant(micros, "tz"), Instant(-micros, "tz"), Instant(3_000_000, "d"))]


def test_time_travel_and_metadata_tables(catalog: Catalog, java: IcebergJava) -> None:
    table = new_table(catalog)
    first = append(table, make_rows(5))
    before = fresh(table).current_snapshot()
    assert before is not None
    append(table, make_rows(5))
    delete_positions(table, {files_of(table)[0].file_path: [0, 1]})
    location = fresh(table).metadata_location
    assert read_by_java(table) == read_by_java(table, reader="generic") == read(table)
    assert len(read(table)) == 8
    assert read_by_java(table, before.snapshot_id) == first
    assert read_by_java(table, before.snapshot_id, reader="generic") == first
    assert sorted(java.rows(location, as_of_ms=before.timestamp_ms).values) == sorted(first)
    files = java.rows(location, part="files").dicts()
    assert sorted(file["content"] for file in files) == [0, 0, 1]
    assert len(java.rows(location, part="snapshots").values) == 3
    assert [ref["name"] for ref in java.rows(location, part="refs").dicts()] == ["main"]


def test_sql_through_a_rest_catalog(catalog: Catalog, java: IcebergJava) -> None:
    with serve_rest(catalog) as rest:
        name = java.catalog(str(rest.properties["uri"]))
        java.sql(f"CREATE NAMESPACE {name}.more")
        java.sql(
            f"CREATE TABLE {name}.more.t (event_time timestamp, id bigint, device string) USING iceberg "
            "PARTITIONED BY (device) "
            "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
        )
        java.sql(f"INSERT INTO {name}.more.t SELECT timestamp_seconds(id), id, 'a' FROM range(5)")
        java.sql(f"DELETE FROM {name}.more.t WHERE id = 3")
        java.delete_equal(
            f"{name}.more.t",
            ["id"],
            [[1]],
            partition="device=a",
            path=f"{catalog.properties['warehouse']}/eq.parquet",
        )
        assert [row[1] for row in java.sql(f"SELECT * FROM {name}.more.t ORDER BY id").values] == [0, 2, 4]
        assert [row[1] for row in read_by_java(catalog.load_table("more.t"))] == [0, 2, 4]
        assert len(java.sql(f"SELECT * FROM {name}.more.t.delete_files").values) == 2
        java.sql(f"DROP TABLE {name}.more.t")
    assert not catalog.table_exists("more.t")


def test_what_java_refuses_is_an_error_and_the_process_lives_on(java: IcebergJava) -> None:
    with pytest.raises(JavaError, match=r"not-there\.metadata\.json"):
        java.rows("/not-there.metadata.json")
    with pytest.raises(JavaError, match="ParseException"):
        java.sql("nonsense")
    assert java.sql("SELECT 1").values == [(1,)]


def test_a_process_that_dies_or_hangs_is_an_error_and_another_takes_over(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho '{}'\necho this went wrong >&2\nread line\n"
        'case "$line" in *hang*) read line ;; *die*) exit 3 ;; esac\necho \'{"result": 5}\'\n'
    )
    python.chmod(0o755)
    judge = IcebergJava(python)
    with pytest.raises(JavaError, match=r"ended when it should do .*die.*this went wrong"):
        judge.ask("die")
    with pytest.raises(JavaError, match=r"did not do .*hang.* within 0 s.*this went wrong"):
        judge.ask("hang", timeout_s=0.1)
    assert judge.ask("live") == 5
    judge.close()
    with pytest.raises(JavaError, match=r"there is no .*/nothing: `make"):
        IcebergJava(tmp_path / "nothing").ask("live")

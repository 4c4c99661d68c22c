"""Every Avro file that a commit writes has the fields, types and keys of Iceberg's specification, and Java
reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lithify.datasets.iceberg.format.ownership import FILE_PREFIX
from tests.datasets.iceberg.avro import (
    DATA_FILE,
    FIELD_SUMMARY,
    MANIFEST_ENTRY,
    MANIFEST_FILE,
    MANIFEST_KEYS,
    avro_files,
    field_type,
    fields_of,
    header_of,
    type_names,
)
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    add_file,
    append,
    by_id,
    check,
    delete_files_of,
    files_of,
    fresh,
    make_rows,
    new_table,
    read_by_java,
)
from tests.judge.iceberg_java import IcebergJava

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
UUID_TYPE = {"type": "fixed", "size": 16, "logicalType": "uuid"}
DECIMAL_TYPE = {"type": "fixed", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}


def timestamp(*, utc: bool) -> dict[str, Any]:
    return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": utc}


def plain(kind: Any) -> Any:
    """The Avro type of an optional field, without the name it has in the file."""
    _, inner = kind
    return {k: v for k, v in inner.items() if k != "name"} if isinstance(inner, dict) else inner


def ours(table: Table) -> list[str]:
    """The manifests and manifest lists that Lithify wrote."""
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    return [path for path in avro_files(folder) if Path(path).name.startswith(FILE_PREFIX)]


def partition_of(path: str) -> Mapping[str, Any]:
    """The Avro type of the partitions in a manifest."""
    partition: Mapping[str, Any] = field_type(field_type(json.loads(header_of(path)["avro.schema"]), 2), 102)
    return partition


def check_manifest(path: str, table: Table, spec_id: int) -> None:
    """A manifest is as the specification says."""
    header = header_of(path)
    entry = json.loads(header["avro.schema"])
    assert entry["name"] == "manifest_entry"
    assert fields_of(entry) == MANIFEST_ENTRY
    file = field_type(entry, 2)
    assert fields_of(file) == DATA_FILE
    names = list(type_names(entry))
    assert len(set(names)) == len(names), "a type is defined twice"
    assert set(header) - {"avro.schema", "avro.codec"} == MANIFEST_KEYS
    spec = fresh(table).specs()[spec_id]
    assert Schema.model_validate_json(header["schema"]) == fresh(table).schema()
    assert header["schema-id"] == str(fresh(table).schema().schema_id)
    assert [PartitionField.model_validate(f) for f in json.loads(header["partition-spec"])] == list(
        spec.fields
    )
    assert header["partition-spec-id"] == str(spec_id)
    assert header["format-version"] == "2"
    assert header["avro.codec"] == "deflate"
    assert [field["field-id"] for field in partition_of(path)["fields"]] == [f.field_id for f in spec.fields]


def check_files(table: Table) -> set[str]:
    """All Avro files of ours are as the specification says; what is in the manifests."""
    contents = set()
    lists = [path for path in ours(table) if "-snap-" in path]
    manifests = [path for path in ours(table) if path not in lists]
    assert lists
    for path in lists:
        header = header_of(path)
        manifest_file = json.loads(header["avro.schema"])
        assert manifest_file["name"] == "manifest_file"
        assert fields_of(manifest_file) == MANIFEST_FILE
        assert fields_of(field_type(manifest_file, 507)["items"]) == FIELD_SUMMARY
    for path in manifests:
        check_manifest(path, table, int(header_of(path)["partition-spec-id"]))
        contents.add(header_of(path)["content"])
    return contents


def test_manifests_of_data_and_of_deletes(catalog: Catalog, java: IcebergJava) -> None:
    """Two partitions, with deletes by position and by value that one manifest holds; the file they apply to
    by value stays, so the manifest is written anew with the rest."""
    table = new_table(
        catalog,
        spec=PartitionSpec(PartitionField(3, 1012, IdentityTransform(), "device")),
        properties={"commit.manifest.min-count-to-merge": "2", "write.delete.mode": "merge-on-read"},
    )
    rows = [*append(table, make_rows(4, device="a")), *append(table, make_rows(4, device="b"))]
    rows += append(table, make_rows(4, device="b"))
    first, gone = rows[0][1], rows[5][1]
    with serve_rest(catalog) as rest:
        name = f"{java.catalog(str(rest.properties['uri']))}.db.events"
        path = f"{table.location()}/data/by-value.parquet"
        java.delete_equal(name, ["id"], [[first]], partition="device=a", path=path)
        java.sql(f"DELETE FROM {name} WHERE id = {gone}")
    left = by_id(row for row in rows if row[1] not in (first, gone))
    assert read_by_java(table) == left
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    deletes = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DELETES]
    assert len(deletes) == 1
    assert len(delete_files_of(table)) == 2
    compact(dataset_of(table))
    assert len(files_of(table)) == 2
    assert [file.equality_ids for file in delete_files_of(table)] == [[2]]
    assert check_files(table) == {"data", "deletes"}
    assert read_by_java(table) == left
    location = fresh(table).metadata_location
    for part in ("files", "entries", "manifests", "all_entries", "all_manifests"):
        assert java.rows(location, part=part).values
    (left_over,) = java.rows(location, part="delete_files").dicts()
    assert left_over["equality_ids"] == [2]


def test_the_file_that_deletes_refer_to_stays_known(catalog: Catalog, java: IcebergJava) -> None:
    """A manifest may say which data file a position delete file is for. One written anew still says so."""
    properties = {"commit.manifest.min-count-to-merge": "2", "lithify.min-saved-files": "1"}
    table = new_table(catalog, properties=properties)
    rows = [row for n in range(3) for row in append(table, make_rows(50, START + n // 2 * DAY))]
    referred = {file.lower_bounds[2]: file.file_path for file in files_of(table)}
    first, last = (referred[rows[n][1].to_bytes(8, "little")] for n in (0, 100))
    with serve_rest(catalog) as rest:
        name = f"{java.catalog(str(rest.properties['uri']))}.db.events"
        for n, path in enumerate((first, last)):
            java.delete_positions(name, path, [0], path=f"{table.location()}/data/by-position-{n}.parquet")
    left = by_id(rows[1:100] + rows[101:])
    check(table, left)
    compact(dataset_of(table))
    check(table, left)
    assert check_files(table) == {"data", "deletes"}
    (left_over,) = java.rows(fresh(table).metadata_location, part="delete_files").dicts()
    assert left_over["referenced_data_file"] == last


def append_file(table: Table, row: Mapping[str, Any], partition: Record) -> None:
    """A data file with one row, in a partition that PyIceberg cannot work out itself."""
    now = fresh(table)
    path = f"{table.location()}/data/{uuid4()}.parquet"
    with now.io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_pylist([row], schema=now.schema().as_arrow()), stream)
    add_file(table, path, 1, partition)


DAYS = (START.date() - date(1970, 1, 1)).days
MICROS = DAYS * 86_400_000_000
PARTITION = [
    DAYS, 3, ID, ID, Decimal("-1.50"), Decimal("1.50"), MICROS, MICROS, DAYS,
    3_723_000_000, b"\xff", "Zürich / 1 = ?", None,
]  # fmt: skip
# Nothing of type fixed: Java reads such partitions as bytes, also from manifests it wrote itself, and fails.
TYPES: list[tuple[str, Transform[Any, Any], PrimitiveType, Any, Any]] = [
    ("day", DayTransform(), TimestamptzType(), START, {"type": "int", "logicalType": "date"}),
    ("bucket", BucketTransform(4), LongType(), 7, "int"),
    ("one uuid", IdentityTransform(), UUIDType(), ID.bytes, UUID_TYPE),
    ("another uuid", IdentityTransform(), UUIDType(), ID.bytes, UUID_TYPE),
    ("decimal", IdentityTransform(), DecimalType(9, 2), Decimal("-1.50"), DECIMAL_TYPE),
    ("decimal.2", IdentityTransform(), DecimalType(9, 2), Decimal("1.50"), DECIMAL_TYPE),
    ("local", IdentityTransform(), TimestampType(), START.replace(tzinfo=None), timestamp(utc=False)),
    ("zoned", IdentityTransform(), TimestamptzType(), START, timestamp(utc=True)),
    ("date", IdentityTransform(), DateType(), START.date(), {"type": "int", "logicalType": "date"}),
    ("time", IdentityTransform(), TimeType(), time(1, 2, 3), {"type": "long", "logicalType": "time-micros"}),
    ("bytes", IdentityTransform(), BinaryType(), b"\xff", "bytes"),
    ("Zürich / 1", IdentityTransform(), StringType(), "Zürich / 1 = ?", "string"),
    ("nothing", VoidTransform(), StringType(), "x", "string"),
]


def test_partitions_of_every_type_under_odd_names(catalog: Catalog) -> None:
    fields = [NestedField(n, f"of {name}", kind) for n, (name, _, kind, _, _) in enumerate(TYPES, start=10)]
    schema = Schema(
        NestedField(1, "event_time", TimestamptzType()), NestedField(2, "id", LongType()), *fields
    )
    spec = PartitionSpec(
        *[PartitionField(n, 990 + n, kind[1], kind[0]) for n, kind in enumerate(TYPES, start=10)]
    )
    table = new_table(catalog, schema=schema, spec=spec)
    rows: list[dict[str, Any]] = []
    for n in range(4):
        values = {f"of {name}": None if n > 1 else value for name, _, _, value, _ in TYPES}
        rows.append({"event_time": START, "id": n, **values})
        append_file(table, rows[-1], Record(*PARTITION if n < 2 else [None] * len(PARTITION)))
    compact(dataset_of(table))
    assert len(files_of(table)) == 2
    assert check_files(table) == {"data"}
    for path in ours(table):
        if "-snap-" not in path:
            partition = partition_of(path)
            found = {field["field-id"]: plain(field["type"]) for field in partition["fields"]}
            assert found == {990 + n: kind[4] for n, kind in enumerate(TYPES, start=10)}
    found_rows = read_by_java(table, reader="generic")
    for uuid in ("of one uuid", "of another uuid"):
        rows[0][uuid] = rows[1][uuid] = ID
    assert found_rows == [tuple(row.values()) for row in rows]


def test_a_type_that_java_names_twice(catalog: Catalog, java: IcebergJava) -> None:
    """Java defines the type of two partition fields once, and names it where it comes up again."""
    with serve_rest(catalog) as rest:
        name = f"{java.catalog(str(rest.properties['uri']))}.db.events"
        java.sql(
            f"CREATE TABLE {name} (event_time timestamp, id bigint, a decimal(9,2), b decimal(9,2)) "
            "USING iceberg PARTITIONED BY (a, b)"
        )
        for n in range(3):
            java.sql(f"INSERT INTO {name} VALUES (timestamp_seconds({n}), {n}, 1.5, -2.5)")
    table = catalog.load_table(NAME)
    before = read_by_java(table)
    compact(dataset_of(table))
    assert len(files_of(table)) == 1
    assert read_by_java(table) == before


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "Zstd", "lzo"])
def test_whatever_codec_the_table_names(catalog: Catalog, codec: str) -> None:
    """The property is about data files of Avro; manifests are written as Java does, whatever it says."""
    table = new_table(catalog)
    rows = [*append(table, make_rows(5)), *append(table, make_rows(5))]
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"write.avro.compression-codec": codec})
    assert compact(dataset_of(table)).committed
    assert check_files(table) == {"data"}
    check(table, rows)

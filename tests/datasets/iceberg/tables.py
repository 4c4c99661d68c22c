"""Iceberg tables as other programs make and change them, and what they read from them.

Data files are written by PyIceberg. Delete files, which PyIceberg cannot write, are made here with its
manifest writer. Rows are read by PyIceberg, by DuckDB and by Java Iceberg.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb_extensions import import_extension
from pyarrow.fs import copy_files
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from sqlalchemy import event
from sqlalchemy.engine import Engine

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.ownership import data_prefix, mark_of
from tests.judge.iceberg_java import Reader, iceberg_java
from tests.s3 import REGION, S3

DAY = timedelta(days=1)
START = datetime(2025, 1, 1, tzinfo=UTC)
NAME = ("db", "events")
SCHEMA = Schema(
    NestedField(1, "event_time", TimestamptzType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "device", StringType(), required=False),
)
ARROW = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("id", pa.int64()),
        pa.field("device", pa.string()),
    ]
)
PATH_ID, POSITION_ID = 2147483546, 2147483545

Row = tuple[datetime | None, int, str]


@event.listens_for(Engine, "connect")
def _do_not_wait_for_the_disk(connection: Any, _: object) -> None:
    """In tests processes die, machines do not; a commit to SQLite would wait for the disk three times. Not
    where somebody has locked the database."""
    if isinstance(connection, sqlite3.Connection):
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA synchronous=OFF")


def new_catalog(
    folder: Path,
    *,
    name: str = "test",
    warehouse: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> SqlCatalog:
    """An empty catalog in SQLite, with its warehouse beside it, unless that is elsewhere."""
    folder.mkdir(exist_ok=True)
    if warehouse is None:
        warehouse = (folder / "warehouse").as_uri()
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = SqlCatalog(name, uri=uri, warehouse=warehouse, **(properties or {}))
    catalog.create_namespace_if_not_exists("db")
    return catalog


def s3_catalog(s3: S3, folder: Path) -> SqlCatalog:
    """An empty catalog whose warehouse is in a bucket of its own."""
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
        "s3.region": REGION,
    }
    warehouse = f"s3://{s3.bucket()}/lake"
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse, **properties)
    catalog.create_namespace("db")
    return catalog


def new_table(
    catalog: Catalog,
    *,
    schema: Schema = SCHEMA,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    properties: Mapping[str, str] | None = None,
    name: tuple[str, ...] = NAME,
) -> Table:
    """A table of format version 2."""
    return catalog.create_table(
        name,
        schema,
        partition_spec=spec,
        sort_order=order,
        properties={"format-version": "2", **(properties or {})},
    )


_ids = itertools.count(1)


def make_rows(count: int, start: datetime = START, span: timedelta = DAY, device: str = "a") -> list[Row]:
    """Rows with ids of their own, evenly over a span of time."""
    step = span / max(count, 1)
    return [(start + step * n, next(_ids), device) for n in range(count)]


def as_arrow(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)], schema=ARROW)


def append(table: Table, rows: Sequence[Row]) -> list[Row]:
    """One data file with these rows, in one commit of its own."""
    with _Transaction(fresh(table)) as transaction:
        transaction.append(as_arrow(rows))
    return list(rows)


class _Transaction(Transaction):
    """PyIceberg's, which copies all of a table's metadata whenever it looks at them, some twenty times in an
    append: most of what that takes. Here they are copied when they have changed."""

    _looked_at: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates, known = self._looked_at or (None, (), None)
        if known is None or base is not self._table.metadata or updates is not self._updates:
            known = super().table_metadata
            self._looked_at = self._table.metadata, self._updates, known
        return known


def append_with_deletes(table: Table, rows: Sequence[Row], positions: Sequence[int]) -> list[Row]:
    """A data file and a delete file for some of its rows in one commit; the rows that are left."""
    data = data_file(table, rows)
    targets = {data.file_path: positions}
    delete_positions(fresh(table), targets, files={data.file_path: data}, together=[data])
    return [row for n, row in enumerate(rows) if n not in positions]


def add_file(table: Table, path: str, rows: int, partition: Record | None = None) -> None:
    """Append a Parquet file that exists, all of whose times (field 1) are said to be on the first day."""
    now = fresh(table)
    day = [to_bytes(TimestamptzType(), round(time.timestamp() * 1e6)) for time in (START, START + DAY)]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition or Record(),
        record_count=rows,
        file_size_in_bytes=len(now.io.new_input(path)),
        null_value_counts={1: 0},
        lower_bounds={1: day[0]},
        upper_bounds={1: day[1]},
    )
    file.spec_id = now.spec().spec_id
    with _Transaction(now) as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(file)


def fresh(table: Table) -> Table:
    """The table as it is now, as another process would load it."""
    return table.catalog.load_table(table.name())


def rewrite_without(table: Table, row_id: int) -> None:
    """Delete a row by rewriting its file (copy on write)."""
    fresh(table).delete(f"id = {row_id}")


def delete_positions(
    table: Table,
    targets: Mapping[str, Iterable[int]],
    *,
    with_bounds: bool = True,
    files: Mapping[str, DataFile] | None = None,
    together: Sequence[DataFile] = (),
    file_format: FileFormat = FileFormat.PARQUET,
) -> str:
    """Delete rows of data files by position (merge on read), in one commit; the delete file's path.
    `files`: the table's files as it was loaded; commit on top of that, or not at all. `together`: files
    that the same commit adds. `file_format`: as the manifest says."""
    now = fresh(table) if files is None else table
    if files is None:
        files = {task.file.file_path: task.file for task in now.scan().plan_files()}
    pairs = sorted((path, position) for path, positions in targets.items() for position in positions)
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
        ]
    )
    content = pa.table([[p for p, _ in pairs], [n for _, n in pairs]], schema=schema)
    bounds = {PATH_ID: pairs[0][0].encode()}, {PATH_ID: pairs[-1][0].encode()}
    first = files[pairs[0][0]]
    return _commit_deletes(
        now, content, DataFileContent.POSITION_DELETES, first.spec_id, first.partition,
        bounds if with_bounds else ({}, {}), together, file_format=file_format,
    )  # fmt: skip


def delete_equal(
    table: Table, ids: Sequence[int], *, spec_id: int = 0, partition: Record | None = None
) -> str:
    """Delete rows by the value of their id (merge on read), in one commit; the delete file's path."""
    return delete_keys(
        table, pa.table({"id": pa.array(ids, pa.int64())}), spec_id=spec_id, partition=partition
    )


def delete_keys(
    table: Table,
    keys: pa.Table,
    *,
    spec_id: int = 0,
    partition: Record | None = None,
    together: Sequence[DataFile] = (),
    file_format: FileFormat = FileFormat.PARQUET,
) -> str:
    """Delete rows that are equal to one of `keys` in their columns, which are called as in the table now, in
    one commit that adds the files `together`; the delete file's path. `file_format`: as the manifest says."""
    now = fresh(table)
    ids = [now.schema().find_field(name).field_id for name in keys.column_names]
    fields = [
        field.with_metadata({"PARQUET:field_id": str(n)}) for n, field in zip(ids, keys.schema, strict=True)
    ]
    content = keys.cast(pa.schema(fields))
    kind = DataFileContent.EQUALITY_DELETES
    return _commit_deletes(
        now, content, kind, spec_id, partition or Record(), ({}, {}), together, ids, file_format
    )


def data_file(table: Table, rows: Sequence[Row]) -> DataFile:
    """A file with these rows, of one partition, that no snapshot has yet."""
    now = fresh(table)
    (data,) = _dataframe_to_data_files(now.metadata, as_arrow(rows), now.io)
    data.spec_id = now.spec().spec_id
    return data


def _commit_deletes(
    table: Table,
    content: pa.Table,
    kind: DataFileContent,
    spec_id: int,
    partition: Record,
    bounds: tuple[dict[int, bytes], dict[int, bytes]],
    together: Sequence[DataFile] = (),
    equality_ids: Sequence[int] | None = None,
    file_format: FileFormat = FileFormat.PARQUET,
) -> str:
    path = f"{table.location()}/data/deletes-{uuid.uuid4()}.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(content, stream)
    file = DataFile.from_args(
        content=kind,
        file_path=path,
        file_format=file_format,
        partition=partition,
        record_count=content.num_rows,
        file_size_in_bytes=len(output),
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        equality_ids=None if equality_ids is None else list(equality_ids),
    )
    file.spec_id = spec_id
    add_delete_file(table, file, together)
    return path


def add_delete_file(table: Table, file: DataFile, together: Sequence[DataFile] = ()) -> None:
    """A commit on top of the table as it was loaded that lists a delete file, and these data files."""
    transaction = _Transaction(table)
    producer = _AddDeletes(file, operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
    for data in together:
        producer.append_data_file(data)
    producer.commit()
    transaction.commit_transaction()


class _Deletes(ManifestWriterV2):
    def _with_partition(self, format_version: TableVersion) -> Schema:
        """PyIceberg writes the ids of fields as long, which Java cannot read; the specification says int."""
        ids = NestedField(135, "equality_ids", ListType(136, IntegerType(), True), required=False)
        of_file = super()._with_partition(format_version).find_field(2).field_type
        assert isinstance(of_file, StructType)
        fields = [ids if field.field_id == 135 else field for field in of_file.fields]
        return manifest_entry_schema_with_data_file(format_version, StructType(*fields))

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    """A commit that adds one delete file."""

    def __init__(self, file: DataFile, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._file = file

    def _manifests(self) -> list[ManifestFile]:
        writer = _Deletes(
            self.spec(self._file.spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id,
            self._compression,
        )  # fmt: skip
        with writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self._file,
                )
            )
        return [*super()._manifests(), writer.to_manifest_file()]

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        counted = super()._summary(dict(snapshot_properties))
        total = int(counted.additional_properties.get("total-delete-files", "0"))
        return Summary(
            operation=Operation.OVERWRITE,
            **{
                **counted.additional_properties,
                "added-delete-files": "1",
                "total-delete-files": str(total + 1),
            },
        )


def orphan_of(table: Table) -> Path:
    """A file that a killed attempt left beside those of a table that was compacted."""
    table = fresh(table)
    place = Path(table.location_provider().data_path.removeprefix("file:"))
    prefix = data_prefix(mark_of(table.metadata), RandomIds().ulid(0), 0)
    orphan = place / f"{prefix}-{'0' * 32}-00000.parquet"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"left behind")
    return orphan


# Reading


def read(table: Table, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
    """All rows as PyIceberg reads them, in order of id."""
    arrow = fresh(table).scan(snapshot_id=snapshot_id).to_arrow()
    return by_id(tuple(row.values()) for row in arrow.to_pylist())


def by_id(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in the order in which they are compared."""
    return sorted(rows, key=lambda row: int(row[1]))


@cache
def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """A connection that reads Iceberg tables.

    DuckDB 1.5.5's cache of ranges of files sometimes returns another range: of Java's Puffin files with three
    vectors, one in five is misread with the cache (at the same place always), and none without it."""
    connection = duckdb.connect()
    import_extension("avro", con=connection)
    import_extension("iceberg", con=connection)
    connection.execute("LOAD avro; LOAD iceberg; SET TimeZone = 'UTC'; SET threads = 1")
    connection.execute("SET enable_external_file_cache = false")
    return connection


def read_by_duckdb(table: Table, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
    """All rows as DuckDB reads them, in order of id."""
    location = fresh(table).metadata_location.removeprefix("file://")
    which = "" if snapshot_id is None else f", snapshot_from_id => {snapshot_id}"
    rows = f"SELECT * FROM iceberg_scan('{location}'{which}) ORDER BY id"
    result = duckdb_with_iceberg().execute(rows).fetchall()
    return [tuple(_in_utc(value) for value in row) for row in result]


def read_by_java(
    table: Table, snapshot_id: int | None = None, *, reader: Reader = "spark"
) -> list[tuple[Any, ...]]:
    """All rows as Java Iceberg reads them, in order of id."""
    now = fresh(table)
    if now.metadata_location.startswith("s3://"):
        with TemporaryDirectory() as folder:
            moved = _copied(now, folder)
            location = moved[1] + now.metadata_location.removeprefix(moved[0])
            rows = iceberg_java().rows(location, snapshot_id=snapshot_id, reader="generic", moved=moved)
    else:
        rows = iceberg_java().rows(now.metadata_location, snapshot_id=snapshot_id, reader=reader)
    return by_id(rows.values)


def _copied(table: Table, folder: str) -> tuple[str, str]:
    """Copy a table's location from an object store, which Java's reader here knows nothing of: from where
    and to where."""
    io = table.io
    assert isinstance(io, PyArrowFileIO)
    scheme, bucket, path = io.parse_location(table.location())
    copy_files(path, folder, source_filesystem=io.fs_by_scheme(scheme, bucket), use_threads=False)
    return f"{table.location()}/", f"file://{folder}/"


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def check(table: Table, rows: Iterable[Row], *, by_pyiceberg: bool = True) -> None:
    """All readers find exactly these rows. PyIceberg reads no table with equality deletes."""
    expected = by_id(rows)
    assert read_by_java(table) == expected
    assert read_by_duckdb(table) == expected
    if by_pyiceberg:
        assert read(table) == expected


def files_of(table: Table) -> list[DataFile]:
    """The live data files."""
    now = fresh(table)
    snapshot = now.metadata.snapshot_by_name(MAIN_BRANCH)
    if snapshot is None:
        return []
    entries = [e for m in snapshot.manifests(now.io) for e in m.fetch_manifest_entry(now.io)]
    return [e.data_file for e in entries if e.data_file.content == DataFileContent.DATA]


def delete_files_of(table: Table) -> list[DataFile]:
    """The live delete files."""
    now = fresh(table)
    snapshot = now.metadata.snapshot_by_name(MAIN_BRANCH)
    assert snapshot is not None
    entries = [e for m in snapshot.manifests(now.io) for e in m.fetch_manifest_entry(now.io)]
    return [e.data_file for e in entries if e.data_file.content != DataFileContent.DATA]


def named_paths(table: Table, snapshot_id: int | None = None) -> set[str]:
    """Every file that any snapshot, or this one, names: manifest lists, manifests, data and delete files."""
    now = fresh(table)
    snapshots = [s for s in now.snapshots() if snapshot_id in (None, s.snapshot_id)]
    named = {snapshot.manifest_list for snapshot in snapshots}
    for snapshot in snapshots:
        for manifest in snapshot.manifests(now.io):
            named.add(manifest.manifest_path)
            named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(now.io)}
    return named


def set_version(table: Table, version: int) -> None:
    """Have the metadata say that they are of that format version, which nothing here can write."""
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "format-version": version, "next-row-id": 0}))


def age_files(folder: Path, seconds: float = 7200) -> None:
    """Everything in a folder was written that long ago."""
    for path in folder.rglob("*"):
        if path.is_file():
            before_ns = path.stat().st_mtime_ns - int(seconds * 1e9)
            os.utime(path, ns=(before_ns, before_ns))

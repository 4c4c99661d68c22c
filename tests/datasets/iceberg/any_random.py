"""Random Iceberg tables of any kind. Lithify works on them between other writers; three readers judge it.

    python -m tests.datasets.iceberg.any_random [COUNT] [FIRST] [--jobs JOBS]

1. A seed draws a table (`any_shapes`): format version 1, 2 or 3 with later upgrades, columns, partitions,
   sort order, catalog. Java (with Spark and without) and PyIceberg write to it: appends, deletes of all
   kinds, overwrites, MERGE, changes of schema and partitions, branches, tags, rollbacks. Lithify's
   operations come in between in random order, through the API that programs use, and the writers continue
   after them.
2. The expected rows of a snapshot are those that Java read when another writer had made it. The other
   readers must agree about each snapshot, whoever made it, but for those that `MISSING` names.
3. After each operation of Lithify, a new snapshot has the rows of its predecessor, as Java, PyIceberg and
   DuckDB read it. On version 3 Java finds the same `_row_id` and `_last_updated_sequence_number` with each
   row; a row id belongs to one row for ever and is below `next-row-id`. Branches and tags are where they
   were. Each older snapshot still has all its files, and at the end all readers read all snapshots.
4. Nothing is refused: Lithify serves every table of `any_shapes`.

The command prints counts of operations, and of the snapshots about which a reader was not asked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    TimestamptzNanoType,
)

import lithify
from lithify.api.client import Dataset
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg import any_shapes as shapes
from tests.datasets.iceberg.any_shapes import NANOS, Shape, canonical_rows, rows_of_arrow
from tests.datasets.iceberg.running import a_clock
from tests.datasets.iceberg.tables import age_files, duckdb_with_iceberg, new_catalog
from tests.judge.iceberg_java import IcebergJava, iceberg_java

PARTS = ("data", "equality deletes", "deletes", "manifests", "expiry", "orphans", "files", "all")
STEPS = 6
CHUNK = 10
"""Tables that are played in one lake."""
AN_AGE_S = 4 * 24 * 3600
LATER = datetime(2090, 1, 1, tzinfo=UTC)
ORPHAN = "nobody.parquet"
LINEAGE = ("_row_id", "_last_updated_sequence_number")

Rows = Counter[tuple[Any, ...]]


@dataclass
class Lake:
    """A REST catalog of Java's own, and one in SQLite, which knows the same tables from time to time."""

    java: IcebergJava
    rest: RestCatalog
    sql: SqlCatalog
    spark: str
    """The REST catalog's name in SQL."""


@contextmanager
def a_lake(folder: Path) -> Iterator[Lake]:
    """Both catalogs, empty."""
    java = iceberg_java()
    uri = java.serve(folder.as_uri())
    rest = RestCatalog("lake", uri=uri)
    rest.create_namespace("db")
    with closing(new_catalog(folder, name="lake")) as sql:
        yield Lake(java, rest, sql, java.catalog(uri))


@dataclass
class Before:
    """The state that no operation of Lithify may change."""

    location: str
    schema: Schema
    refs: dict[str, tuple[int, str]]
    main: Rows
    """The rows of the main branch, by the current schema."""
    next_row_id: int
    snapshots: set[int]
    files: dict[str, int]
    """In the table's folder, with their sizes."""


class Judge:
    """Knows what each snapshot of a table has to show, and asks the readers."""

    def __init__(self, java: IcebergJava, counts: Counter[str]) -> None:
        self._java, self._counts = java, counts
        self._rows: dict[int, Rows] = {}
        """Of each snapshot, by the schema that the table had then."""
        self._files: dict[int, dict[str, int]] = {}
        self._manifests: dict[str, list[DataFile]] = {}
        self._owners: dict[int, int] = {}
        """Ids of rows by row ids, which other writers never change."""

    def learn(self, table: Table) -> None:
        """Read the snapshots that a writer has made."""
        new = [s for s in table.snapshots() if s.snapshot_id not in self._rows]
        if not new:
            return
        for snapshot_id, rows in self._by_java(table, [s.snapshot_id for s in new]).items():
            self._rows[snapshot_id] = rows
            self._note_lineage(table, rows)
        for snapshot in new:
            self._files[snapshot.snapshot_id] = self._files_of(table, snapshot)
            self._read_by_others(table, snapshot)

    def relearn(self, table: Table) -> None:
        """Read all snapshots of a table whose version has changed: rows have other metadata columns now."""
        before, self._rows = self._rows, {}
        self.learn(table)
        for snapshot_id, rows in self._rows.items():
            columns = len(_schema_of(table, snapshot_id).fields)
            found, old = _without_lineage(rows, columns), _without_lineage(before[snapshot_id], columns)
            expect(found == old, "an upgrade changes rows")

    def before(self, table: Table) -> Before:
        metadata = table.metadata
        head = metadata.current_snapshot_id
        refs = {name: (ref.snapshot_id, str(ref)) for name, ref in metadata.refs.items()}
        main = Counter() if head is None else self._by_java(table, [head], current=True)[head]
        ids = {s.snapshot_id for s in table.snapshots()}
        return Before(
            table.metadata_location, table.schema(), refs, main, _next_row_id(table), ids, _files_in(table)
        )

    def check(self, before: Before, table: Table) -> None:
        """Everything after an operation of Lithify."""
        metadata = table.metadata
        expect(table.schema() == before.schema, "the schema stays")
        for name, (snapshot_id, ref) in before.refs.items():
            now = metadata.refs.get(name)
            expect(now is not None, f"{name} is gone")
            assert now is not None
            expect(name == MAIN_BRANCH or now.snapshot_id == snapshot_id, f"{name} was moved: {ref}, {now}")
        expect(metadata.refs.keys() == before.refs.keys(), "no branch or tag is new")
        next_row_id = _next_row_id(table)
        expect(next_row_id >= before.next_row_id, "next-row-id went back")
        self._check_new(before, table)
        self._check_old(before, table)
        if metadata.current_snapshot_id is not None and metadata.current_snapshot_id in before.snapshots:
            expect(metadata.current_snapshot_id == before.refs[MAIN_BRANCH][0], "the main branch went back")

    def _check_new(self, before: Before, table: Table) -> None:
        new = [s for s in table.snapshots() if s.snapshot_id not in before.snapshots]
        if not new:
            return
        for snapshot_id, rows in self._by_java(table, [s.snapshot_id for s in new], current=True).items():
            has_lineage = table.metadata.format_version >= 3
            check_rows("Java", rows, before.main, before.next_row_id if has_lineage else None)
            self._note_lineage(table, rows)
            self._rows[snapshot_id] = rows  # our snapshots have the current schema
        for snapshot in new:
            self._files[snapshot.snapshot_id] = self._files_of(table, snapshot)
            self._read_by_others(table, snapshot)

    def _check_old(self, before: Before, table: Table) -> None:
        """Files do not change, so a snapshot that has all of its files is as it was read before."""
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in before.snapshots:
                self._counts["snapshots left"] += 1
                found = {path: _size(path) for path in self._files[snapshot.snapshot_id]}
                gone = [path for path, size in found.items() if size < 0]
                expect(found == self._files[snapshot.snapshot_id], f"files of a snapshot are gone: {gone}")

    def read_all(self, table: Table) -> None:
        """All readers read all snapshots, and the main branch by the current schema."""
        snapshots = list(table.snapshots())
        for snapshot_id, rows in self._by_java(table, [s.snapshot_id for s in snapshots]).items():
            check_rows("Java", rows, self._rows[snapshot_id])
        for snapshot in snapshots:
            self._read_by_others(table, snapshot)
        self._counts["snapshots read by Java"] += len(snapshots)

    def _by_java(self, table: Table, ids: Sequence[int], *, current: bool = False) -> dict[int, Rows]:
        lineage = table.metadata.format_version >= 3
        found = self._java.snapshots(table.metadata_location, ids, lineage=lineage, current=current)
        return {
            snapshot_id: Counter(
                canonical_rows(
                    (table.schema() if current else _schema_of(table, snapshot_id)).fields, rows.values
                )
            )
            for snapshot_id, rows in found.items()
        }

    def _read_by_others(self, table: Table, snapshot: Snapshot) -> None:
        for reader in READERS:
            why = self.why_not_asked(reader, table, snapshot)
            if why is None:
                self._read(reader, table, snapshot)
            self._counts[f"snapshots read by {reader}" if why is None else f"{reader} not asked: {why}"] += 1

    def why_not_asked(self, reader: str, table: Table, snapshot: Snapshot) -> str | None:
        """Why this reader cannot read the snapshot; `None` if it must read it right."""
        files = self._files_in(table, snapshot)
        asked = Asked(
            table,
            _schema_of(table, snapshot.snapshot_id),
            snapshot.manifests(table.io),
            [file for file in files if file.content == DataFileContent.EQUALITY_DELETES],
        )
        return next((why for who, why, lacks in MISSING if who == reader and lacks(asked)), None)

    def _read(self, reader: str, table: Table, snapshot: Snapshot) -> None:
        fields = _schema_of(table, snapshot.snapshot_id).fields
        found = Counter(canonical_rows(fields, READERS[reader](table, snapshot.snapshot_id)))
        expected = _without_lineage(self._rows[snapshot.snapshot_id], len(fields))
        if reader == "PyIceberg":
            found, expected = _without_null_lists(fields, found), _without_null_lists(fields, expected)
        check_rows(reader, found, expected)

    def _note_lineage(self, table: Table, rows: Rows) -> None:
        """A row id is of one row for ever."""
        if table.metadata.format_version < 3:
            return
        at = next(n for n, f in enumerate(table.schema().fields) if f.name == "id")
        next_row_id = _next_row_id(table)
        ids = [(one[-2], one[at]) for one in rows.elements() if one[-2] is not None]
        expect(len({row_id for row_id, _ in ids}) == len(ids), "a row id is there twice")
        for row_id, owner in ids:
            expect(row_id < next_row_id, f"row id {row_id} is not below next-row-id {next_row_id}")
            expect(self._owners.setdefault(row_id, owner) == owner, f"row id {row_id} was given twice")

    def _files_of(self, table: Table, snapshot: Snapshot) -> dict[str, int]:
        paths = [snapshot.manifest_list] if snapshot.manifest_list else []
        paths += [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
        paths += [file.file_path for file in self._files_in(table, snapshot)]
        return {path: _size(path) for path in paths}

    def _files_in(self, table: Table, snapshot: Snapshot) -> list[DataFile]:
        """The live data and delete files."""
        found = []
        for manifest in snapshot.manifests(table.io):
            path = manifest.manifest_path
            if path not in self._manifests:
                entries = manifest.fetch_manifest_entry(table.io)
                self._manifests[path] = [entry.data_file for entry in entries]
            found += self._manifests[path]
        return found


def expect(holds: bool, says: str | Callable[[], str]) -> None:
    """Fail unless it holds."""
    if not holds:
        raise AssertionError(says if isinstance(says, str) else says())


def check_rows(reader: str, found: Rows, expected: Rows, next_row_id: int | None = None) -> None:
    """The same rows. Those that had no row id yet may have got a new one, from `next_row_id` on."""
    if found == expected:
        return
    more, missing = found - expected, expected - found
    if next_row_id is not None:
        new = Counter({one: n for one, n in more.items() if one[-2] is None or one[-2] >= next_row_id})
        old = Counter({one: n for one, n in missing.items() if one[-2] is None})
        if new == more and old == missing and _without_lineage(new) == _without_lineage(old):
            return
    raise AssertionError(f"{reader}: too many: {_some(more)}; missing: {_some(missing)}")


def _some(rows: Rows) -> str:
    return f"{rows.total()} rows, {list(rows.elements())[:4]}"


def _without_lineage(rows: Rows, columns: int | None = None) -> Rows:
    stripped: Rows = Counter()
    for one, n in rows.items():
        stripped[one[: len(one) - 2 if columns is None else columns]] += n
    return stripped


def _schema_of(table: Table, snapshot_id: int) -> Schema:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return table.schemas().get(snapshot.schema_id if snapshot.schema_id is not None else -1, table.schema())


def _next_row_id(table: Table) -> int:
    """As the metadata file has it."""
    return int(json.loads(_path(table.metadata_location).read_bytes()).get("next-row-id", 0))


def _files_in(table: Table) -> dict[str, int]:
    """With their sizes."""
    return {str(path): path.stat().st_size for path in _path(table.location()).rglob("*") if path.is_file()}


def _path(location: str) -> Path:
    return Path(re.sub("^file:(//)?", "", location))


def _size(location: str) -> int:
    try:
        return _path(location).stat().st_size
    except FileNotFoundError:
        return -1


def _read_by_pyiceberg(table: Table, snapshot_id: int) -> list[tuple[Any, ...]]:
    return rows_of_arrow(table.scan(snapshot_id=snapshot_id).to_arrow())


def _read_by_duckdb(table: Table, snapshot_id: int) -> list[tuple[Any, ...]]:
    scan = f"iceberg_scan('{_path(table.metadata_location)}', snapshot_from_id => {snapshot_id})"
    return rows_of_arrow(duckdb_with_iceberg().execute(f"SELECT * FROM {scan}").to_arrow_table())


def _without_null_lists(fields: Sequence[NestedField], rows: Rows) -> Rows:
    """PyIceberg 0.12 reads a null list of structs as an empty one."""
    kinds = [f.field_type for f in fields]
    of_structs = {n for n, k in enumerate(kinds) if isinstance(k, ListType) and k.element_type.is_struct}
    read: Rows = Counter()
    for one, n in rows.items():
        read[tuple(() if v is None and at in of_structs else v for at, v in enumerate(one))] += n
    return read


@dataclass(frozen=True)
class Asked:
    """A snapshot that a reader may be asked about."""

    table: Table
    schema: Schema
    manifests: Sequence[ManifestFile]
    deletes: Sequence[DataFile]
    """Its equality deletes."""

    @property
    def has_keys_with_nulls(self) -> bool:
        keys = {field_id for file in self.deletes for field_id in file.equality_ids or ()}
        return any(not field.required for field in self.schema.fields if field.field_id in keys)

    @property
    def has_deletes_of_partitions(self) -> bool:
        return any(self.table.specs()[file.spec_id].fields for file in self.deletes)

    @property
    def has_old_manifests(self) -> bool:
        """Whether it has manifests from before the upgrade of version 1."""
        is_new = self.table.metadata.format_version > 1
        return is_new and any(not manifest.sequence_number for manifest in self.manifests)

    @property
    def has_partitions_of_two_types(self) -> bool:
        """Whether a partition field has two types: version 1 keeps dropped fields, as `void`."""
        columns = {
            column.field_id: column.field_type
            for schema in self.table.schemas().values()
            for column in schema.fields
        }
        specs = [self.table.specs()[spec_id] for spec_id in {m.partition_spec_id for m in self.manifests}]
        fields = [field for spec in specs for field in spec.fields if field.source_id in columns]
        types = {(f.field_id, f.transform.result_type(columns[f.source_id])) for f in fields}
        return len(types) > len({field.field_id for field in fields})

    @property
    def has_zoned_nanos(self) -> bool:
        return any(isinstance(field.field_type, TimestamptzNanoType) for field in self.schema.fields)


MISSING: Sequence[tuple[str, str, Callable[[Asked], bool]]] = (
    ("PyIceberg", "it does not read equality deletes", lambda asked: bool(asked.deletes)),
    ("DuckDB", "it misreads nulls in keys of equality deletes", lambda asked: asked.has_keys_with_nulls),
    (
        "DuckDB",
        "it applies equality deletes to all partitions",
        lambda asked: asked.has_deletes_of_partitions,
    ),
    ("DuckDB", "it does not read manifests of version 1 any more", lambda asked: asked.has_old_manifests),
    (
        "DuckDB",
        "it reads all manifests with the types of one partition spec, and aborts",
        lambda asked: asked.has_partitions_of_two_types,
    ),
    ("DuckDB", "it does not know timestamptz_ns", lambda asked: asked.has_zoned_nanos),
)
"""The snapshots that PyIceberg 0.12 or DuckDB 1.5.5 is not asked about, and why."""

READERS: Mapping[str, Callable[[Table, int], list[tuple[Any, ...]]]] = {
    "PyIceberg": _read_by_pyiceberg,
    "DuckDB": _read_by_duckdb,
}
"""Beside Java."""


class Subject:
    """A table, its writers and Lithify."""

    def __init__(self, lake: Lake, name: str, shape: Shape, rng: random.Random) -> None:
        self._lake, self._rng, self.shape = lake, rng, shape
        self.name = name
        self._identifier = ("db", self.name)
        self.counts: Counter[str] = Counter()
        self.judge = Judge(lake.java, self.counts)
        self.log: list[str] = []
        self._next_id, self._names = 1, 0
        self._upgrades = list(shape.upgrades)
        self._by_spark = not any(isinstance(f.field_type, NANOS) for f in shape.schema.fields)
        lake.rest.create_table(
            self._identifier,
            shape.schema,
            partition_spec=shape.spec,
            sort_order=shape.order,
            properties=shape.properties,
        )

    @property
    def table(self) -> Table:
        """As it is now."""
        table: Table = self._lake.rest.load_table(self._identifier)
        return table

    def drop(self) -> Path:
        """Let the catalogs know no such table, and return its folder."""
        folder = _path(self.table.location())
        for catalog in (self._lake.rest, self._lake.sql):
            if catalog.table_exists(self._identifier):
                catalog.drop_table(self._identifier)
        return folder

    # Writers

    def write(self) -> None:
        """One change by another writer, if it can be made."""
        weights = WRITES
        table = self.table
        if table.metadata.current_snapshot_id is None:
            what = "append"
        else:
            what = self._rng.choices(list(weights), list(weights.values()))[0]
        self.log.append(what)
        version = table.metadata.format_version
        with self.timed("other writers"):
            is_done = getattr(self, f"_{what.replace(' ', '_')}")(table) is not False
        if not is_done:
            self.log.pop()
            return
        self.counts[f"write: {what}"] += 1
        now = self.table
        with self.timed("readers"):
            if now.metadata.format_version != version:
                self.judge.relearn(now)
            self.judge.learn(now)

    def _new_rows(self, schema: Schema, most: int = 4, least: int = 0) -> list[shapes.Row]:
        count = self._rng.randint(least, most)
        rows = [shapes.row(self._rng, schema, self._next_id + n) for n in range(count)]
        self._next_id += count
        return rows

    def append(self, files: Sequence[Sequence[shapes.Row]], branch: str | None = None) -> None:
        """Java appends these files in one commit."""
        self._java("append", json.dumps(files), branch)
        self.judge.learn(self.table)

    def delete(self, ids: Sequence[int], branch: str | None = None) -> bool:
        """Java deletes rows by position: merge on read."""
        return bool(self._java("deleteByPosition", list(ids), branch))

    def _java(self, method: str, *arguments: Any) -> Any:
        return self._lake.java.tables(method, self.name, *arguments)

    def sql(self, statement: str) -> None:
        """Let Spark run a statement in which `events` is the table."""
        self._lake.java.sql(statement.replace("events", f"{self._lake.spark}.db.{self.name}"))

    def _some_ids(self, most: int = 4) -> list[int]:
        return sorted({self._rng.randrange(1, self._next_id + 1) for _ in range(self._rng.randint(1, most))})

    def _branches(self, table: Table) -> list[str]:
        refs = table.metadata.refs.items()
        return sorted(
            n for n, ref in refs if ref.snapshot_ref_type == SnapshotRefType.BRANCH and n != MAIN_BRANCH
        )

    def _some_branch(self, table: Table) -> str | None:
        """Mostly the main one."""
        branches = self._branches(table)
        return self._rng.choice(branches) if branches and self._rng.random() < 0.3 else None

    def _append(self, table: Table) -> None:
        files = [self._new_rows(table.schema(), least=1) for _ in range(self._rng.randint(1, 4))]
        self.append(files, self._some_branch(table))

    def _append_an_empty_file(self, table: Table) -> bool:
        if table.spec().fields:
            return False
        path = f"{table.location()}/data/empty-{self._name('')}.parquet"
        pq.write_table(schema_to_pyarrow(table.schema()).empty_table(), _path(path))
        self._lake.java.append_file(f"{self._lake.spark}.db.{self.name}", path)
        return True

    def _append_by_PyIceberg(self, table: Table) -> bool:
        if table.metadata.format_version > 2:
            return False
        table.append(shapes.as_arrow(table.schema(), self._new_rows(table.schema(), least=1)))
        return True

    def _delete_by_PyIceberg(self, table: Table) -> bool:
        if not self._is_changed_by_pyiceberg(table):
            return False
        table.delete(f"id in ({', '.join(map(str, self._some_ids()))}, -1)")
        return True

    def _overwrite_by_PyIceberg(self, table: Table) -> bool:
        if not self._is_changed_by_pyiceberg(table):
            return False
        ids, rows = self._some_ids(), self._new_rows(table.schema(), least=1)
        table.overwrite(
            shapes.as_arrow(table.schema(), rows), overwrite_filter=f"id in ({ids[0]}, {ids[-1]}, -1)"
        )
        return True

    def _is_changed_by_pyiceberg(self, table: Table) -> bool:
        head = table.current_snapshot()
        return (
            table.metadata.format_version <= 2
            and head is not None
            and self.judge.why_not_asked("PyIceberg", table, head) is None
        )

    def _delete_by_position(self, table: Table) -> bool:
        if table.metadata.format_version < 2:
            return False
        return self.delete(self._some_ids(), self._some_branch(table))

    def _upsert(self, table: Table) -> bool:
        """As Flink does it."""
        if table.metadata.format_version < 2:
            return False
        gone = [shapes.row(self._rng, table.schema(), row_id) for row_id in self._some_ids()]
        keys = ["id"] if self._rng.random() < 0.7 else ["id", "tenant"]
        again = [gone] if self._rng.random() < 0.7 else []
        self._java("upsert", json.dumps(gone), keys, json.dumps(again), self._some_branch(table))
        return True

    def _delete_by_Spark(self, table: Table) -> bool:
        if not self._by_spark:
            return False
        self.sql(f"DELETE FROM events WHERE id IN ({', '.join(map(str, self._some_ids()))})")
        return True

    def _update(self, table: Table) -> bool:
        if not self._by_spark:
            return False
        self.sql(f"UPDATE events SET tenant = 'b' WHERE id IN ({', '.join(map(str, self._some_ids()))})")
        return True

    def _merge(self, table: Table) -> bool:
        if not self._by_spark:
            return False
        ids = sorted({*self._some_ids(), self._next_id})
        self._next_id += 1
        others = [f.name for f in table.schema().fields if f.name != "id"]
        # Spark wants all columns without defaults: those of a row that is there.
        self.sql(
            "MERGE INTO events t USING (SELECT s.k, r.* FROM "
            f"(SELECT explode(array({', '.join(f'{n}L' for n in ids)})) k) s "
            f"CROSS JOIN (SELECT {', '.join(f'first({n}) {n}' for n in others)} FROM events) r) s "
            "ON t.id = s.k "
            "WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET tenant = 'm' "
            f"WHEN NOT MATCHED AND s.k = {ids[-1]} THEN INSERT (id, {', '.join(others)}) "
            f"VALUES (s.k, {', '.join(f's.{n}' for n in others)})"
        )
        return True

    def _overwrite(self, table: Table) -> bool:
        """Java writes all rows again, with new row ids."""
        if not self._by_spark:
            return False
        self.sql(f"INSERT OVERWRITE events SELECT * FROM events WHERE id % 5 <> {self._rng.randrange(5)}")
        return True

    def _add_column(self, table: Table) -> None:
        kind, given = self._rng.choice((("int", 7), ("string", "new"), ("double", 1.5), ("boolean", True)))
        has_default = table.metadata.format_version >= 3 and self._rng.random() < 0.7
        self._java("addColumn", self._name("added"), kind, json.dumps(given) if has_default else None)

    def _drop_column(self, table: Table) -> bool:
        names = self._free_columns(table)
        if not names:
            return False
        with table.update_schema() as change:
            change.delete_column(self._rng.choice(names))
        return True

    def _rename_column(self, table: Table) -> bool:
        names = self._free_columns(table)
        if not names:
            return False
        with table.update_schema() as change:
            change.rename_column(self._rng.choice(names), self._name("renamed"))
        return True

    def _widen_column(self, table: Table) -> bool:
        wider = {f.name: _wider(f.field_type) for f in table.schema().fields}
        names = [name for name in self._free_columns(table) if wider[name] is not None]
        if not names:
            return False
        name = self._rng.choice(names)
        with table.update_schema() as change:
            change.update_column(name, field_type=wider[name])
        return True

    def _free_columns(self, table: Table) -> list[str]:
        """Columns that may go: nothing is made of them."""
        used = {f.source_id for spec in table.specs().values() for f in spec.fields}
        used |= {f.source_id for order in table.sort_orders().values() for f in order.fields}
        return [
            f.name
            for f in table.schema().fields
            if f.field_id not in used and f.name not in ("id", "tenant", "at")
        ]

    def _partition(self, table: Table) -> bool:
        choices: list[tuple[str, Any]] = [("tenant", IdentityTransform()), ("id", BucketTransform(3))]
        if "at" in table.schema().column_names and self._by_spark:
            choices.append(("at", DayTransform()))
        name, transform = self._rng.choice(choices)
        now = [f.name for f in table.spec().fields]
        with table.update_spec() as change:
            if now and self._rng.random() < 0.5:
                change.remove_field(self._rng.choice(now))
            elif name in {table.schema().find_column_name(f.source_id) for f in table.spec().fields}:
                # PyIceberg calls some pairs of transforms of one column redundant.
                return False
            else:
                change.add_field(name, transform, self._name("q"))
        return True

    def _tag(self, table: Table) -> None:
        with table.manage_snapshots() as change:
            change.create_tag(self._rng.choice(table.snapshots()).snapshot_id, self._name("tag"))

    def _branch(self, table: Table) -> None:
        with table.manage_snapshots() as change:
            change.create_branch(self._rng.choice(table.snapshots()).snapshot_id, self._name("branch"))

    def _roll_back(self, table: Table) -> bool:
        head = table.current_snapshot()
        there = {s.snapshot_id for s in table.snapshots()}
        if head is None or head.parent_snapshot_id not in there:
            return False
        with table.manage_snapshots() as change:
            change.rollback_to_snapshot(head.parent_snapshot_id)
        return True

    def _upgrade(self, table: Table) -> bool:
        if not self._upgrades:
            return False
        self._java("upgrade", self._upgrades.pop(0))
        return True

    def _procedure_of_Java(self, table: Table) -> bool:
        """Java's own maintenance."""
        if not self._by_spark:
            return False
        call = self._rng.choice(
            (
                "rewrite_data_files({}, options => map('rewrite-all', 'true'))",
                "rewrite_manifests({})",
                "rewrite_position_delete_files({}, options => map('rewrite-all', 'true'))",
                "expire_snapshots({}, older_than => TIMESTAMP '2090-01-01 00:00:00', retain_last => 3)",
            )
        )
        self.sql(
            f"CALL {self._lake.spark}.system.{call.format(f'table => {chr(39)}db.{self.name}{chr(39)}')}"
        )
        return True

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    # Lithify

    def operate(self, what: str) -> None:
        """One operation of Lithify, and what the readers find then."""
        if what == "orphans":
            _path(self.table.location()).joinpath("data").mkdir(exist_ok=True)
            _path(self.table.location()).joinpath("data", ORPHAN).write_bytes(b"nothing")
            age_files(_path(self.table.location()), AN_AGE_S)
        table = self.table
        before = self.judge.before(table)
        self.log.append(f"Lithify: {what}")
        if self.shape.by_sql:
            self._hand_over(table.metadata_location)
        with self.timed("Lithify"):
            outcome = self._run(what)
        if self.shape.by_sql:
            self._java("point", self._lake.sql.load_table(self._identifier).metadata_location)
        now = self.table
        self.log[-1] += f" ({outcome})"
        if now.metadata_location != before.location or _files_in(now) != before.files:
            with self.timed("readers"):
                self.judge.check(before, now)
        self.counts[f"Lithify: {what}: {outcome}"] += 1

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.counts[f"milliseconds of {part}"] += round((time.monotonic() - started_s) * 1000)

    def _hand_over(self, location: str) -> None:
        """Let the catalog in SQLite know the table as it is now."""
        if not self._lake.sql.table_exists(self._identifier):
            self._lake.sql.register_table(self._identifier, location)
        uri = self._lake.sql.properties["uri"].removeprefix("sqlite:///")
        with closing(sqlite3.connect(uri)) as connection, connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (location, self.name)
            )

    def _opened(self) -> Dataset:
        catalog = self._lake.sql if self.shape.by_sql else self._lake.rest
        settings = {"store_options.uri": str(catalog.properties["uri"])}
        if not self.shape.by_sql:
            settings["store_options.type"] = "rest"
        url = f"iceberg://lake/db.{self.name}"
        return lithify.open(url, settings=settings, engine=InlineEngine(), clock=a_clock())

    def _run(self, what: str) -> str:
        """One word for what was done."""
        with self._opened() as dataset:
            dataset.show_status()
            if what == "data":
                done = dataset.compact(full=self._rng.random() < 0.5)
                expect(not done.failed, lambda: f"compactions failed: {done.failed}")
                self.counts.update(f"left alone: {_class_of(note)}" for note in done.left_alone)
                outcome = "compacted" if done.committed else "nothing to do"
                return outcome if not done.refused else f"{outcome}, some were refused"
            if what == "equality deletes":
                return dataset.rewrite_equality_deletes().outcome
            if what == "deletes":
                return dataset.rewrite_position_delete_files().outcome
            if what == "manifests":
                return dataset.rewrite_manifests().outcome
            if what == "expiry":
                retain = self._rng.randint(1, 4)
                grace_s = self._rng.choice((0, 3600))
                return dataset.expire(older_than=LATER, retain_last=retain, grace_s=grace_s).outcome
            if what == "orphans":
                dataset.remove_orphans(delete=True, max_percent=100)
                expect(_size(f"{self.table.location()}/data/{ORPHAN}") < 0, "an orphan is still there")
                return "removed"
            if what == "files":
                dataset.collect_garbage(delete=True)
                return "collected"
            return self._maintain(dataset)

    def _maintain(self, dataset: Dataset) -> str:
        done = dataset.maintain()
        expect(not done.errors, lambda: f"maintenance failed: {done.errors}")
        return "maintained" if done.is_done else "maintained in part"


WRITES = {
    "append": 6,
    "append an empty file": 0.5,
    "append by PyIceberg": 2,
    "delete by PyIceberg": 1,
    "overwrite by PyIceberg": 1,
    "delete by position": 3,
    "upsert": 2,
    "delete by Spark": 1.5,
    "update": 0.7,
    "merge": 0.7,
    "overwrite": 0.4,
    "add column": 1,
    "drop column": 0.5,
    "rename column": 0.5,
    "widen column": 0.7,
    "partition": 1,
    "tag": 0.7,
    "branch": 0.7,
    "roll back": 0.5,
    "upgrade": 2,
    "procedure of Java": 0.5,
}
"""By how likely they are."""


def _wider(kind: IcebergType) -> IcebergType | None:
    """A type to which a column of this one may be changed."""
    if isinstance(kind, IntegerType):
        return LongType()
    if isinstance(kind, FloatType):
        return DoubleType()
    if isinstance(kind, DecimalType) and kind.precision < 35:
        return DecimalType(kind.precision + 4, kind.scale)
    return None


def _class_of(note: str) -> str:
    return re.sub(r"[\d,]+ file", "n file", note)[:90]


def play(lake: Lake, seed: int) -> Counter[str]:
    """Play one table. Return how often what happened."""
    rng = random.Random(f"any {seed}")
    shape = shapes.draw(rng)
    subject = Subject(lake, f"t{seed}", shape, rng)
    try:
        _live(subject, rng)
    except BaseException as error:
        error.add_note(f"{shape.says}\n{'; '.join(subject.log)}\n{subject.drop()}")
        raise
    for aspect, says in shape.says.items():
        subject.counts[f"shape: {aspect}: {says}"] += 1
    axis = "without time" if shape.says["time"] == "none" else "with time"
    subject.counts[f"tables of version {shape.says['version']} {axis}: {served(subject.counts)}"] += 1
    shutil.rmtree(subject.drop())
    return subject.counts


def _live(subject: Subject, rng: random.Random) -> None:
    for _ in range(rng.randint(2, 5)):
        subject.write()
    operations = [*rng.sample(PARTS, STEPS - 2), "data", "expiry"]
    rng.shuffle(operations)
    for operation in operations:
        subject.operate(operation)
        for _ in range(rng.choice((0, 0, 1, 2))):
            subject.write()
    with subject.timed("readers"):
        subject.judge.read_all(subject.table)


def served(counts: Mapping[str, int]) -> str:
    """In which way Lithify did something for a table."""
    done = {
        "compacted": "Lithify: data: compacted",
        "rewritten": "rewritten",
        "expired": "expired",
        "maintained": "Lithify: all: maintained",
    }
    found = [
        word
        for word, end in done.items()
        if any(name.startswith("Lithify") and name.endswith(end) for name in counts)
    ]
    return ", ".join(found) or "not served at all"


# The command


@contextmanager
def _worker_lake() -> Iterator[tuple[Lake, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="lithify-any-"))
    with a_lake(folder) as lake:
        yield lake, folder
    shutil.rmtree(folder)  # a failure leaves it


def play_some(first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Play some tables in one lake; what happened, and what failed."""
    totals, failures = Counter[str](), list[str]()
    with _worker_lake() as (lake, folder):
        for seed in range(first, first + count):
            try:
                totals.update(play(lake, seed))
            except Exception as error:
                replay = f"replay: python -m tests.datasets.iceberg.any_random 1 {seed}"
                failures.append("".join(traceback.format_exception(error)) + f"{folder}\n{replay}")
                print(failures[-1], flush=True)
                totals["FAILED"] += 1
    return totals, failures


def main() -> None:
    """Play tables, and print what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("first", nargs="?", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    started_s, totals, failures, done = time.monotonic(), Counter[str](), list[str](), 0
    size = max(1, min(CHUNK, -(-given.count // given.jobs)))
    end = given.first + given.count
    chunks = [(first, min(size, end - first)) for first in range(given.first, end, size)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        running = {pool.submit(play_some, *chunk): chunk for chunk in chunks}
        for future in as_completed(running):
            counts, failed = future.result()
            totals.update(counts)
            done += running[future][1]
            failures += failed
            print(f"{done} of {given.count}, {time.monotonic() - started_s:.0f} s", flush=True)
    print_coverage(totals)
    sys.exit(1 if failures else 0)


def print_coverage(totals: Counter[str]) -> None:
    """The operations that were played."""
    for name, number in sorted(totals.items()):
        print(f"  {number:8,} {name}")


if __name__ == "__main__":
    main()

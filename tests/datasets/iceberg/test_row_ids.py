"""The identity of rows in format version 3: rows keep their id and the number of their last change through a
rewrite, whatever moves, sorts, cuts or spills them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from lithify.base.errors import LithifyError, Unsupported
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.compaction import parquet_source
from lithify.datasets.iceberg.compaction.commit import conflict
from lithify.datasets.iceberg.compaction.execute import run_rewrite
from lithify.datasets.iceberg.compaction.task import (
    RewriteTask,
    SourceFile,
    slim,
)
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, read_listing
from lithify.datasets.iceberg.format.row_ids import check_names
from lithify.datasets.iceberg.model import ChunkSpec, Lane, NewFile, SpecPart, TimeRange
from tests.datasets.iceberg.java_table import Identity, JavaTable, data_file, source
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    append,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)
from tests.judge.iceberg_java import IcebergJava

IO = PyArrowFileIO()
ROW_ID, LAST_UPDATED = 2147483540, 2147483539


def micros(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


def task_of(metadata: TableMetadata, sources: Sequence[SourceFile], **more: Any) -> RewriteTask:
    """The rewrite of these files."""
    given = {
        "metadata": slim(metadata, {}),
        "io": IO,
        "sources": tuple(sources),
        "range": TimeRange(None, None, with_nulls=True),
        "spec_id": 0,
        "time_field_id": 1,
        "sort_order_id": metadata.default_sort_order_id,
        "target_bytes": 1 << 26,
        "name_prefix": "rewritten",
    }
    return RewriteTask(**{**given, **more})


def rewritten(task: RewriteTask) -> list[NewFile]:
    """The outputs."""
    outputs = run_rewrite(task, RandomIds(), lambda _read, _written: None).outputs
    return [output for output in outputs if isinstance(output, NewFile)]


def stored(path: str) -> pa.Table:
    return pq.ParquetFile(path.removeprefix("file://").removeprefix("file:")).read()


def identities(outputs: Iterable[NewFile]) -> dict[int, Identity]:
    """The identity of each row by its column `id`, as the files store it."""
    found: dict[int, Identity] = {}
    for output in outputs:
        table = stored(output.path)
        of_columns = {int(field.metadata[b"PARQUET:field_id"]): field for field in table.schema}
        ids, numbers = of_columns[ROW_ID], of_columns[LAST_UPDATED]
        assert (ids.name, ids.type, ids.nullable) == ("_row_id", pa.int64(), True)
        assert (numbers.name, numbers.type) == ("_last_updated_sequence_number", pa.int64())
        rows = zip(table["id"].to_pylist(), table[ids.name], table[numbers.name], strict=True)
        added = {row_id: (one.as_py(), number.as_py()) for row_id, one, number in rows}
        assert len(added) == table.num_rows
        assert not found.keys() & added
        found |= added
    return found


def expected(files: Iterable[tuple[DataFile, int, int]], without: Iterable[int] = ()) -> dict[int, Identity]:
    """The identity of each row of files with these first row ids and numbers."""
    found: dict[int, Identity] = {}
    for file, first, number in files:
        ids = stored(file.file_path)["id"].to_pylist()
        found |= {row_id: (first + n, number) for n, row_id in enumerate(ids)}
    return {row_id: identity for row_id, identity in found.items() if row_id not in set(without)}


def make_files(catalog: Catalog, **properties: str) -> tuple[Table, list[DataFile]]:
    """Three files whose times meet, of several row groups each."""
    table = new_table(catalog, properties={"write.parquet.row-group-limit": "7", **properties})
    for n, device in enumerate("abc"):
        append(table, make_rows(40, START + n * timedelta(hours=7), DAY, device=device))
    return table, sorted(files_of(table), key=lambda file: file.lower_bounds[2])


def test_rows_of_files_without_the_columns_get_first_row_id_and_position(catalog: Catalog) -> None:
    table, files = make_files(catalog)
    known = [(file, 1000 * n, 10 + n) for n, file in enumerate(files)]
    sources = [source(n, file, first, number) for n, (file, first, number) in enumerate(known)]
    outputs = rewritten(task_of(table.metadata, sources))
    assert identities(outputs) == expected(known)
    for output in outputs:
        counts = output.value_counts, output.null_value_counts, output.lower_bounds
        assert all(column in found for column in (ROW_ID, LAST_UPDATED) for found in counts)


@pytest.mark.parametrize("kind", ["positions", "vector", "both", "equality"])
def test_positions_are_those_before_deletes(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(parquet_source, "BATCH_ROWS", 3)
    table, files = make_files(catalog)
    path, deleted = files[1].file_path, [0, 1, 9, 38]
    ids = stored(path)["id"].to_pylist()
    deletes: list[DataFile] = []
    equality: tuple[EqualityDelete, ...] = ()
    if kind == "equality":
        delete_equal(table, [ids[n] for n in deleted])
        equality = (EqualityDelete(delete_files_of(table)[0], 50, (2,)),)
    elif kind in ("positions", "both"):
        delete_positions(table, {path: deleted if kind == "positions" else [20, 21]})
        deletes += delete_files_of(table)
    if kind in ("vector", "both"):
        vector = DeletionVector.of(np.array(deleted))
        deletes += write_vectors(IO, str(tmp_path / "v.puffin"), [NewVector(path, vector, 0, Record())])
    known = [(file, 1000 * n, 10 + n) for n, file in enumerate(files)]
    sources = [
        source(n, file, first, number, deletes if n == 1 else ())
        for n, (file, first, number) in enumerate(known)
    ]
    outputs = rewritten(task_of(table.metadata, sources, equality_deletes=equality))
    assert identities(outputs) == expected(known, without=[ids[n] for n in deleted])


def test_ranges_cuts_orders_dictionaries_and_disks_move_rows_with_their_identity(catalog: Catalog) -> None:
    table, files = make_files(catalog, **{"write.target-file-size-bytes": "2000"})
    with fresh(table).update_sort_order() as update:
        update.desc("id", IdentityTransform())
    metadata = fresh(table).metadata
    known = [(file, 1000 * n, 10 + n) for n, file in enumerate(files)]
    sources = [replace(source(n, f, a, s), is_inside=False) for n, (f, a, s) in enumerate(known)]
    half = micros(START + DAY / 2)
    ranges = [
        TimeRange(None, half, (half - 3_600_000_000,), with_nulls=True),
        TimeRange(half, None, (half + 3_600_000_000,)),
    ]
    outputs = [
        output
        for one in ranges
        for output in rewritten(
            task_of(metadata, sources, range=one, target_bytes=1500, buffer_bytes=2000, repeating=(3,))
        )
    ]
    assert len(outputs) > 4
    assert identities(outputs) == expected(known)


def test_moved_rows_keep_their_identity_when_they_move_again(catalog: Catalog) -> None:
    """Though their new file has a first row id and a number of its own."""
    table, files = make_files(catalog)
    known = [(file, 1000 * n, 10 + n) for n, file in enumerate(files)]
    (first,) = rewritten(
        task_of(table.metadata, [source(n, f, a, s) for n, (f, a, s) in enumerate(known[:2])])
    )
    moved = as_data_file(first)
    again = [source(0, moved, 77_000, 99), source(1, files[2], 2000, 12)]
    assert identities(rewritten(task_of(table.metadata, again))) == expected(known)


def as_data_file(output: NewFile) -> DataFile:
    """An output as an input of the next rewrite."""
    return data_file(output.path, output.rows, output.size_bytes)


def written(path: Path, ids: list[int | None], numbers: list[int | None]) -> DataFile:
    """A file whose rows store these identities, as after Java's `UPDATE`."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "2"}),
            pa.field("_row_id", pa.int64(), metadata={"PARQUET:field_id": str(ROW_ID)}),
            pa.field(
                "_last_updated_sequence_number", pa.int64(), metadata={"PARQUET:field_id": str(LAST_UPDATED)}
            ),
        ]
    )
    pq.write_table(pa.table([list(range(len(ids))), ids, numbers], schema=schema), path)
    return data_file(str(path), len(ids), path.stat().st_size)


def test_stored_values_are_kept_and_missing_ones_inherited(catalog: Catalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    file = written(tmp_path / "x.parquet", [5, None, 7, None], [None, 2, 3, None])
    outputs = rewritten(task_of(table.metadata, [source(0, file, 100, 9)]))
    assert identities(outputs) == {0: (5, 9), 1: (101, 2), 2: (7, 3), 3: (103, 9)}


def test_rows_of_a_file_without_a_first_row_id_have_no_identity(catalog: Catalog, tmp_path: Path) -> None:
    """Whatever the file stores (a table that was upgraded, and no commit since)."""
    table = new_table(catalog)
    without = written(tmp_path / "x.parquet", [5, None], [None, 2])
    (output,) = rewritten(task_of(table.metadata, [source(0, without, None, 9)]))
    assert stored(output.path).column_names == ["event_time", "id", "device"]
    with_one = written(tmp_path / "y.parquet", [5], [2])
    (output,) = rewritten(task_of(table.metadata, [source(0, without, None, 9), source(1, with_one, 100, 9)]))
    assert sorted(
        zip(*(stored(output.path)[n].to_pylist() for n in ("id", "_row_id")), strict=True), key=str
    ) == [
        (0, 5),
        (0, None),
        (1, None),
    ]


@pytest.mark.parametrize("name", ["_row_id", "_last_updated_sequence_number"])
def test_a_column_of_a_reserved_name_is_refused(name: str) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(4, name, LongType()))
    with pytest.raises(Unsupported, match=f"^lake: format version 3 reserves the name of column {name}"):
        check_names(schema, "lake")
    check_names(SCHEMA, "lake")


def test_ids_that_are_no_numbers_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fields = [(2, "id", pa.int64()), (ROW_ID, "_row_id", pa.string())]
    schema = pa.schema(
        [pa.field(name, kind, metadata={"PARQUET:field_id": str(n)}) for n, name, kind in fields]
    )
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table([[1], ["5"]], schema=schema), path)
    with pytest.raises(LithifyError, match=r"store _row_id \(long\) as"):
        rewritten(task_of(table.metadata, [source(0, data_file(str(path), 1, path.stat().st_size), 0)]))


# Java


def test_rows_keep_the_identity_that_java_reports(java: IcebergJava, tmp_path: Path) -> None:
    table = JavaTable(java, tmp_path)
    table.create("event_time timestamp, id bigint, device string")
    at = f"timestamp_seconds({round(START.timestamp())} + id * 60)"
    table.sql(f"INSERT INTO events SELECT {at}, id, 'a' FROM range(0, 500)")
    table.sql("DELETE FROM events WHERE id % 7 = 0 OR id BETWEEN 200 AND 300")
    table.sql("UPDATE events SET device = 'b' WHERE id % 5 = 0")
    table.sql(f"INSERT INTO events SELECT {at}, id, 'c' FROM range(500, 520)")
    table.sql("DELETE FROM events WHERE id IN (1, 505, 510)")
    table.sql(
        "MERGE INTO events AS t USING (SELECT id + 495 AS id FROM range(0, 40)) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET device = 'd' "
        "WHEN NOT MATCHED THEN INSERT (event_time, id, device) "
        f"VALUES (timestamp_seconds({round(START.timestamp())}), s.id, 'e')"
    )
    sources = table.sources()
    assert any(one.delete_files for one in sources)
    outputs = rewritten(task_of(table.table.metadata, sources))
    assert identities(outputs) == table.identities()
    rows = [row for output in outputs for row in stored(output.path).to_pylist()]
    expected_rows = table.sql("SELECT id, device FROM events")
    assert {row["id"]: row["device"] for row in rows} == {row["id"]: row["device"] for row in expected_rows}


def test_an_upgraded_table_has_the_ids_that_java_assigns(java: IcebergJava, tmp_path: Path) -> None:
    """They come with the first commit after the upgrade; before, rows have none."""
    table = JavaTable(java, tmp_path)
    table.create("event_time timestamp, id bigint, device string", version=2)
    at = f"timestamp_seconds({round(START.timestamp())} + id * 60)"
    table.sql(f"INSERT INTO events SELECT {at}, id, 'a' FROM range(0, 100)")
    table.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='3')")
    (one,) = table.sources()
    assert one.first_row_id is None
    (output,) = rewritten(task_of(table.table.metadata, [one]))
    assert stored(output.path).column_names == ["event_time", "id", "device"]
    before = listed(table)
    table.sql(f"INSERT INTO events SELECT {at}, id, 'b' FROM range(100, 110)")
    (path,) = before.data
    assert conflict_of(before, listed(table), path) == (
        f"the rows of {path} were given ids meanwhile, which the outputs do not have"
    )
    assert conflict_of(before, before, path) is None
    sources = table.sources()
    assert identities(rewritten(task_of(table.table.metadata, sources))) == table.identities()


def listed(table: JavaTable) -> Listing:
    found = read_listing(table.table, "main", ManifestCache())
    assert found is not None
    return found


def conflict_of(base: Listing, head: Listing, path: str) -> str | None:
    spec = ChunkSpec("t", base.snapshot.snapshot_id, (), (SpecPart(Lane(0, ""), (), (path,)),), 0)
    return conflict(base, head, spec, Lane(0, ""), path)

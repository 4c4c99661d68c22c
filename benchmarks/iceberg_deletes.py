"""Whether rows that are deleted while a compactor works stay deleted.

1. Iceberg: the compactor works through a catalog that, when its first commit arrives, first deletes rows of
   two live files by position, in one commit each, and then appends a file (`iceberg_rest`). The table is
   one that deletes and appends at the same time (`write.delete.isolation-level` is `snapshot`). Then DuckDB
   counts the rows.
2. Delta: rows are deleted after the compactor has opened the table and before it starts.

A compactor may refuse to commit, or start again; both are safe. Only the rows count.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from duckdb_extensions import import_extension

from benchmarks.iceberg_data import NAME, Place, copy_for_a_run, data_files, open_catalog
from benchmarks.iceberg_rest import APPENDED_ROWS, DELETED_FILES, DELETED_ROWS_PER_FILE, served
from benchmarks.iceberg_tools import DELETED_DEVICE, DELTA_FOLDER, Format, Tool, delta_files
from benchmarks.watch import WatchedFailed, run_watched

REFUSALS = ("Conflict", "conflict", "Concurrent", "concurrent", "CommitFailed", "ValidationException")
"""Words in the errors of compactors that do not commit because something else was committed."""

FILES, ROWS_PER_FILE = 20, 2000


def resurrected_rows(tool: Tool, place: Place) -> int | None:
    """How many deleted rows a reader finds again; negative if it misses some that were not deleted.
    `None` where that is not tried."""
    folder = copy_for_a_run(place)
    before = _rows(data_files(folder))
    if tool.format is Format.ICEBERG:
        with open_catalog(folder).load_table(NAME).transaction() as transaction:
            transaction.set_properties({"write.delete.isolation-level": "snapshot"})
        with served(folder, deletes=True) as uri:
            _compact(tool.command(folder, uri))
        expected = before - DELETED_FILES * DELETED_ROWS_PER_FILE + APPENDED_ROWS
        return _rows_for_duckdb(folder) - expected
    if tool.format is Format.DELTA:
        deleted = _rows_of_a_device(data_files(folder))
        _compact(tool.command(folder, None, deletes=True))
        return _rows(delta_files(folder / DELTA_FOLDER)) - (before - deleted)
    return None


def _compact(command: list[str]) -> None:
    try:
        run_watched(command)
    except WatchedFailed as error:
        if not any(word in str(error) for word in REFUSALS):
            raise


def _rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(path).num_rows for path in files)


def _rows_for_duckdb(folder: Path) -> int:
    location = open_catalog(folder).load_table(NAME).metadata_location
    with duckdb.connect() as connection:
        import_extension("avro", con=connection)
        import_extension("iceberg", con=connection)
        connection.execute("LOAD avro; LOAD iceberg")
        query = f"SELECT count(*) FROM iceberg_scan('{location.removeprefix('file://')}')"
        return int(connection.execute(query).fetchall()[0][0])


def _rows_of_a_device(files: list[Path]) -> int:
    columns = (pq.read_table(path, columns=["device"]).column(0) for path in files)
    return sum(int(pc.sum(pc.equal(column, DELETED_DEVICE)).as_py() or 0) for column in columns)

"""Whether a table has exactly the right rows when somebody else commits while a compactor works.

- *deletes*: Iceberg: when the compactor's first commit arrives, its catalog first deletes rows of two live
  files by position, in one commit each, and appends a file (`iceberg_rest`); the table is one that deletes
  and appends at the same time (`write.delete.isolation-level` is `snapshot`). Delta: rows are
  deleted after the compactor has opened the table.
- *rewrite*: a file is replaced, as another compactor or an update would. Iceberg: at the compactor's first
  commit, one row of a file is deleted by writing the file anew. Delta: another compaction has run since the
  compactor has opened the table.

A compactor may refuse to commit, or start again; both are safe. Only the rows count: for Iceberg those
DuckDB finds.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from duckdb_extensions import import_extension

from benchmarks.iceberg_data import NAME, Place, copy_for_a_run, data_files, open_catalog
from benchmarks.iceberg_rest import APPENDED_ROWS, DELETED_FILES, DELETED_ROWS_PER_FILE, MEANWHILE, served
from benchmarks.iceberg_tools import DELETED_DEVICE, DELTA_FOLDER, Format, Tool, delta_files
from benchmarks.watch import WatchedFailed, run_watched

REFUSALS = ("onflict", "oncurrent", "CommitFailed", "ValidationException", "Cannot delete files")
"""Words in the errors of compactors that do not commit because something else was committed."""
FILES, ROWS_PER_FILE = 20, 2000
_CHANGE = {"deletes": APPENDED_ROWS - DELETED_FILES * DELETED_ROWS_PER_FILE, "rewrite": -1}
"""Rows an Iceberg table has more than before, whatever the compactor does."""


def surplus_rows(tool: Tool, place: Place) -> dict[str, int]:
    """For each of `MEANWHILE`, how many rows a reader finds that should not be there; negative when rows
    are missing. Empty for a compactor without a table, to which nobody else can commit."""
    measure = {Format.ICEBERG: _of_iceberg, Format.DELTA: _of_delta}.get(tool.format)
    return {} if measure is None else {what: measure(tool, place, what) for what in MEANWHILE}


def _of_iceberg(tool: Tool, place: Place, what: str) -> int:
    folder = copy_for_a_run(place)
    before = _rows(data_files(folder))
    with open_catalog(folder).load_table(NAME).transaction() as transaction:
        transaction.set_properties({"write.delete.isolation-level": "snapshot"})
    with served(folder, what) as uri:
        _compact(tool.command(folder, uri))
    return _rows_for_duckdb(folder) - (before + _CHANGE[what])


def _of_delta(tool: Tool, place: Place, what: str) -> int:
    folder = copy_for_a_run(place)
    inputs = data_files(folder)
    expected = _rows(inputs) - (_rows_of_a_device(inputs) if what == "deletes" else 0)
    _compact(tool.command(folder, None, what))
    return _rows(delta_files(folder / DELTA_FOLDER)) - expected


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

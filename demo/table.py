"""An Iceberg table: a month of small files, compacted by days, judged by PyIceberg and DuckDB.

1. Make a table in a catalog in SQLite with PyIceberg: a small file every few hours for a month. Devices
   that were offline send rows of days before, so that files reach over several days. Some rows are deleted,
   by position, as other engines do it.
2. Show the timeline, with what Lithify would do about it, and how much of the table a query of one day reads.
3. Run `lithify compact` in a process of its own.
4. Show the timeline again, read all rows with PyIceberg and with DuckDB, and compare.
5. Hold the snapshot that was there before, as a program does that reads it for hours, and expire the history:
   what goes, how much that gives back, and what the hold keeps, which PyIceberg reads.
6. Release it and expire again: the rest goes, and all rows are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from rich.filesize import decimal
from tests.datasets.iceberg.tables import delete_positions, duckdb_with_iceberg

from demo.shell import lithify, say

DAYS = 31
FILES_PER_DAY = 4
ROWS_PER_FILE = 5_000
LATE_EVERY = 5
"""In each so many files, some rows are late."""
LATE_DAYS = 4
DELETES = 5
SEED = 7
DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
URL = "iceberg://demo/db.events"
PROPERTIES = {"format-version": "2", "lithify.max-task-bytes": "5000000"}
"""Tasks of at most 5 MB, so that there are several."""
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("id", pa.int64()),
        ("device", pa.string()),
        ("value", pa.float64()),
    ]
)


def demonstrate(folder: Path) -> bool:
    """Whether every row was right."""
    folder.mkdir(parents=True)
    uri, warehouse = f"sqlite:///{folder}/catalog.db", (folder / "warehouse").as_uri()
    environment = {"PYICEBERG_CATALOG__DEMO__URI": uri, "PYICEBERG_CATALOG__DEMO__WAREHOUSE": warehouse}
    say(f"1. Making a table with PyIceberg: {folder}")
    catalog = SqlCatalog("demo", uri=uri, warehouse=warehouse)
    table = _make(catalog)
    before, touched = _rows(table), _touched(table)
    old = table.metadata.current_snapshot_id
    assert old is not None
    say(f"   {DAYS * FILES_PER_DAY} files of a month, {before.num_rows:,} rows, {DELETES} files with deletes")
    say("\n2. The timeline, and what Lithify would do")
    for name, value in environment.items():
        say(f"$ export {name}={value}")
    lithify("plan", URL, environment=environment)
    say("\n3. Compacting on Spark")
    lithify("compact", URL, environment=environment)
    say("\n4. The timeline again, and all rows")
    lithify("plan", URL, environment=environment)
    table = table.refresh()
    say(f"   a query of one day read {touched} before and reads {_touched(table)} now")
    verdicts = {
        "PyIceberg": _rows(table).equals(before),
        "DuckDB": _rows_by_duckdb(table).equals(before),
        "PyIceberg, the snapshot before": _rows(table, old).equals(before),
    }
    is_right = _tell(verdicts)

    def expire() -> Table:
        """All that nobody needs, at once: nobody but this program reads the table."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lithify("expire", "--older-than", now, "--grace", "0s", URL, environment=environment)
        left = table.refresh()
        say(f"   {len(left.snapshots())} snapshots and {_lie_in(folder / 'warehouse')} are left")
        return left

    say("\n5. Expiring history, while somebody reads the table as it was")
    say(f"   there are {len(table.snapshots())} snapshots and {_lie_in(folder / 'warehouse')}")
    lithify("hold", "--snapshot", str(old), "--name", "training", URL, environment=environment)
    table = expire()
    is_right = _tell({"PyIceberg, the snapshot that is held": _rows(table, old).equals(before)}) and is_right
    say("\n6. The reader is done: expiring the rest")
    lithify("hold", "--release", "training", URL, environment=environment)
    table = expire()
    verdicts = {
        "PyIceberg": _rows(table).equals(before),
        "DuckDB": _rows_by_duckdb(table).equals(before),
    }
    return _tell(verdicts) and is_right and len(table.snapshots()) == 1


def _tell(verdicts: Mapping[str, bool]) -> bool:
    """Say who reads what he should; whether all do."""
    for reader, is_right in verdicts.items():
        say(f"   {reader}: {'every row is right' if is_right else 'WRONG ROWS'}")
    return all(verdicts.values())


def _make(catalog: SqlCatalog) -> Table:
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", SCHEMA, properties=PROPERTIES)
    for number in range(DAYS * FILES_PER_DAY):
        table.append(_events(number))
    rng = np.random.default_rng(SEED)
    files = sorted(task.file.file_path for task in table.scan().plan_files())
    for path in rng.choice(files, DELETES, replace=False):
        delete_positions(table, {str(path): rng.choice(ROWS_PER_FILE, 20, replace=False).tolist()})
    return table.refresh()


def _events(number: int) -> pa.Table:
    """The rows of one file, in no order."""
    rng = np.random.default_rng([SEED, number])
    span_us = DAY // timedelta(microseconds=1) // FILES_PER_DAY
    start_us = round(START.timestamp() * 1_000_000)
    times = start_us + number * span_us + rng.integers(0, span_us, ROWS_PER_FILE)
    if number % LATE_EVERY == 0:
        late_us = rng.integers(0, LATE_DAYS * FILES_PER_DAY * span_us, ROWS_PER_FILE)
        times = np.maximum(start_us, times - np.where(rng.random(ROWS_PER_FILE) < 0.02, late_us, 0))
    ids = np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    devices = np.char.add("device-", rng.integers(0, 200, ROWS_PER_FILE).astype(str))
    columns = [times, ids, devices, rng.normal(20, 5, ROWS_PER_FILE)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _rows(table: Table, snapshot_id: int | None = None) -> pa.Table:
    """All rows as PyIceberg reads them, in order of id."""
    return _plain(table.scan(snapshot_id=snapshot_id).to_arrow())


def _rows_by_duckdb(table: Table) -> pa.Table:
    location = table.metadata_location.removeprefix("file://")
    return _plain(duckdb_with_iceberg().execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table())


def _plain(rows: pa.Table) -> pa.Table:
    return rows.cast(SCHEMA).sort_by("id").combine_chunks()


def _lie_in(folder: Path) -> str:
    """What there is of data, deletes and manifests."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.suffix in (".parquet", ".avro")]
    return f"{len(sizes):,} files with {decimal(sum(sizes))}"


def _touched(table: Table) -> str:
    """What a query of one day opens, on average over all days."""
    files = size_bytes = 0
    for day in range(DAYS):
        since, until = START + day * DAY, START + (day + 1) * DAY
        times = And(GreaterThanOrEqual("time", since.isoformat()), LessThan("time", until.isoformat()))
        for task in table.scan(row_filter=times).plan_files():
            files, size_bytes = files + 1, size_bytes + task.file.file_size_in_bytes
    return f"{decimal(size_bytes // DAYS)} in {files / DAYS:.1f} files"

"""A small table for `lithify demo`: two weeks of small files, made and read with PyIceberg."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.options import Sample
from lithify.views import text

DAYS = 14
FILES_PER_DAY = 6
ROWS_PER_FILE = 2_000
SEED = 7
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def sample(folder: Path) -> Sample:
    """Make the table in an empty folder."""
    uri = f"sqlite:///{folder}/catalog.db"
    table = _make_table(folder, uri)
    return Sample(
        what=f"A table: {DAYS} days, {DAYS * FILES_PER_DAY} small files",
        url="iceberg://demo/db.events",
        settings={"store_options.uri": uri},
        reader="PyIceberg",
        rows=_rows_of(table),
        read=lambda: _rows_of(table.refresh()),
        query_cost=lambda: _query_cost(table.refresh()),
    )


def _make_table(folder: Path, uri: str) -> Table:
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True)
    catalog = SqlCatalog("demo", uri=uri, warehouse=warehouse.as_uri())
    catalog.create_namespace("db")
    schema = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("id", pa.int64()), ("value", pa.float64())])
    table = catalog.create_table("db.events", schema)
    data = Path(table.location().removeprefix("file://")) / "data"
    data.mkdir(parents=True)
    rng = random.Random(SEED)
    paths = []
    for number in range(DAYS * FILES_PER_DAY):
        since = START + number * DAY / FILES_PER_DAY
        times = [since + rng.random() * DAY / FILES_PER_DAY for _ in range(ROWS_PER_FILE)]
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        path = data / f"{number:03}.parquet"
        values = [rng.gauss(20, 5) for _ in ids]
        pq.write_table(pa.table([times, list(ids), values], schema=schema), path)
        paths.append(path.as_uri())
    table.add_files(paths)
    return table.refresh()


def _rows_of(table: Table) -> pa.Table:
    return table.scan().to_arrow().sort_by("id").combine_chunks()


def _query_cost(table: Table) -> str:
    """Return what a query of one day reads, on average over all days."""
    sizes = []
    for day in range(DAYS):
        since, until = (START + n * DAY for n in (day, day + 1))
        times = f"time >= '{since.isoformat()}' and time < '{until.isoformat()}'"
        sizes += [task.file.file_size_in_bytes for task in table.scan(row_filter=times).plan_files()]
    files = text.number(len(sizes) / DAYS)
    return f"{text.size(sum(sizes) / DAYS)} in {files} {'file' if files == '1' else 'files'}"

"""How long deciding takes on large tables: `python -m benchmarks.iceberg_planning FOLDER FILES CHUNKS`.

Two tables are made whose data files exist in the metadata only; deciding never opens one.

1. *Many files*: as many small files over a year of days, appended a thousand at a time. Listing is reading
   the manifests; planning is everything from there to the proposals.
2. *Nothing changed*: one file for each of as many days, and a first plan that has been remembered. Then
   another process' dataset lists the table, and finds every chunk unchanged.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import TimestamptzType

from benchmarks.child import run_child
from benchmarks.iceberg_data import NAME, SCHEMA, START_US, US_PER_DAY
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.protocol.model import Ledger

FILES = 50_000
CHUNKS = 10_000
DAYS_OF_FILES = 365
FILE_BYTES = 1_000_000
ROWS = 10_000
FILES_PER_COMMIT = 1000


@dataclass(frozen=True, slots=True)
class PlanningRun:
    """Seconds, and what was decided."""

    files: int
    listing_s: float
    planning_s: float
    proposals: int
    chunks: int
    unchanged_listing_s: float
    unchanged_s: float
    unchanged_proposals: int
    unchanged_analysed: int
    """Chunks that were looked at again although nothing had changed."""


def measure_planning(folder: Path, files: int = FILES, chunks: int = CHUNKS) -> PlanningRun:
    """Plan both tables in a child process; they are made in an empty folder."""
    return PlanningRun(**run_child("benchmarks.iceberg_planning", str(folder), str(files), str(chunks)))


def _run(folder: Path, files: int, chunks: int) -> PlanningRun:
    many = _table(folder / "many", _spread(files, DAYS_OF_FILES))
    listing_s = _listing_s(many)
    dataset = _dataset(many)
    started_s = time.perf_counter()
    plan = dataset.propose(dataset.snapshot(), Ledger())
    planning_s = time.perf_counter() - started_s - listing_s

    calm = _table(folder / "calm", _spread(chunks, chunks))
    first = _dataset(calm)
    first.take_epoch()
    first.save_planner_state(first.propose(first.snapshot(), Ledger()), (), is_queue_empty=True)
    second = _dataset(calm)
    started_s = time.perf_counter()
    snapshot = second.snapshot()
    unchanged_listing_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    again = second.propose(snapshot, Ledger())
    unchanged_s = time.perf_counter() - started_s
    timeline = second.timeline(snapshot, Ledger())
    return PlanningRun(
        files=files,
        listing_s=listing_s,
        planning_s=planning_s,
        proposals=len(plan.proposals),
        chunks=len(timeline.chunks),
        unchanged_listing_s=unchanged_listing_s,
        unchanged_s=unchanged_s,
        unchanged_proposals=len(again.proposals),
        unchanged_analysed=sum(planned.analysed for planned in timeline.chunks),
    )


def _listing_s(table: Table) -> float:
    """The best of a few, since what planning takes is what is left."""
    seconds = []
    for _ in range(2):
        started_s = time.perf_counter()
        read_listing(table, "main", ManifestCache(sys.maxsize))
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def _dataset(table: Table) -> IcebergDataset:
    return IcebergDataset(table.catalog, TableUrl("bench", NAME), SystemClock(), RandomIds())


def _table(folder: Path, spans: Iterable[tuple[int, int]]) -> Table:
    folder.mkdir(parents=True)
    warehouse = (folder / "warehouse").as_uri()
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse)
    catalog.create_namespace(NAME[:-1])
    properties = {"format-version": "2", "lithify.time-column": "event_time"}
    table = catalog.create_table(NAME, SCHEMA, properties=properties)
    numbered = enumerate(spans)
    while batch := list(islice(numbered, FILES_PER_COMMIT)):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for number, (low, high) in batch:
                append.append_data_file(_data_file(f"{table.location()}/data/{number}.parquet", low, high))
    return table


def _spread(count: int, days: int) -> Iterator[tuple[int, int]]:
    """Least and greatest times of files that follow each other, evenly over some days."""
    step_us = days * US_PER_DAY // count
    for number in range(count):
        low = START_US + number * step_us
        yield low, low + step_us - 1


def _data_file(path: str, low: int, high: int) -> DataFile:
    kind = TimestamptzType()
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ROWS,
        file_size_in_bytes=FILE_BYTES,
        null_value_counts={1: 0},
        lower_bounds={1: to_bytes(kind, low)},
        upper_bounds={1: to_bytes(kind, high)},
    )
    file.spec_id = 0
    return file


if __name__ == "__main__":
    measured = _run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(asdict(measured)))

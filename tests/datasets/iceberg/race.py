"""A race on one table: an appender, a deleter, and two coordinators that keep taking over from each other.

    python -m tests.datasets.iceberg.race [SECONDS] [SEED]

The appender commits small files. The deleter removes rows, by position and by rewriting files. Each of the
two coordinators plans, rewrites and commits until it finds itself fenced, and then takes over again.
Every writer notes what it committed. In the end the table must have exactly the rows that were appended
and not deleted, for PyIceberg and for DuckDB, and no file of Lithify's may lie there that nothing names once
garbage was collected.

PyIceberg's own retries are off: after a conflict a writer looks at the table again, as it should.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from lithify.clock import SystemClock
from lithify.coordinator import Coordinator
from lithify.datasets.iceberg.catalogs import TableUrl
from lithify.datasets.iceberg.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.garbage import Kind, collect
from lithify.errors import Fenced, StoreError
from lithify.ids import RandomIds
from lithify.testing.engine import InlineEngine
from lithify.worker import Worker
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    append,
    delete_positions,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    read_by_duckdb,
)

Role = Callable[[Path, float, int], None]


@dataclass(frozen=True)
class Outcome:
    """How a race ended."""

    appends: int
    deletes: int
    compactions: int
    fenced: int
    rows: int
    expected: int
    is_exact: bool
    orphans_collected: int
    orphans_left: int


def _appender(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    table = new_catalog(folder).load_table(NAME)
    done: list[int] = []
    first, deadline_s = 0, time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        start = START + rng.randrange(3) * DAY + timedelta(minutes=rng.randrange(600))
        rows = [(at, first + n, device) for n, (at, _, device) in enumerate(make_rows(20, start, DAY / 3))]
        first += len(rows)
        # A locked database is a commit that did not happen.
        with suppress(CommitFailedException, OperationalError):
            append(table, rows)
            done += [row[1] for row in rows]
        time.sleep(rng.uniform(0, 0.2))
    _note(folder, "appended", done)


def _deleter(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    table = new_catalog(folder).load_table(NAME)
    done: list[int] = []
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        with suppress(CommitFailedException, OperationalError):
            done += _delete_some(table, rng)
        time.sleep(rng.uniform(0, 0.3))
    _note(folder, "deleted", done)


def _delete_some(table: Table, rng: random.Random) -> list[int]:
    now = fresh(table)
    tasks = list(now.scan().plan_files())
    if not tasks:
        return []
    if rng.random() < 0.3:
        row_id = int(rng.choice(now.scan().to_arrow()["id"].to_pylist()))
        now.delete(f"id = {row_id}")
        return [row_id]
    chosen = rng.choice(tasks)
    stored = now.io.new_input(chosen.file.file_path)
    with stored.open() as stream:
        ids = pq.read_table(stream)["id"].to_pylist()
    live = set(now.scan().to_arrow()["id"].to_pylist())
    positions = rng.sample(range(len(ids)), min(3, len(ids)))
    delete_positions(now, {chosen.file.file_path: positions}, is_current=True)
    return [ids[p] for p in positions if ids[p] in live]


def _coordinator(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    clock, ids = SystemClock(), RandomIds(random.Random(seed))
    committed = fenced = 0
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        with suppress(StoreError):
            dataset = IcebergDataset(new_catalog(folder), TableUrl("test", NAME), clock, ids)
            coordinator = Coordinator(dataset, clock, ids, worker_heartbeat_timeout_ms=2000)
            worker = Worker(dataset, InlineEngine(), clock, f"lithify-{ids.ulid(clock.now_ms())}")
            coordinator.start()
            try:
                while time.monotonic() < deadline_s:
                    with suppress(StoreError):
                        committed += len(coordinator.tick().committed)
                        worker.tick()
                    time.sleep(rng.uniform(0, 0.1))
                    if rng.random() < 0.02:
                        break  # as if killed
            except Fenced:
                fenced += 1
                time.sleep(rng.uniform(0, 1.0))
    _note(folder, f"coordinated-{seed}", [committed, fenced])


def _note(folder: Path, name: str, values: list[int]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(values))


def _noted(folder: Path, name: str) -> list[int]:
    found: list[int] = json.loads((folder / f"{name}.json").read_text())
    return found


ROLES: tuple[Role, ...] = (_appender, _deleter, _coordinator, _coordinator)


def race(folder: Path, seconds: float, seed: int, *, in_processes: bool) -> Outcome:
    """Let everybody run, then judge."""
    properties = {"commit.retry.num-retries": "0", "lithify.small-task-bytes": "1"}
    table = new_table(new_catalog(folder), properties=properties)
    context = multiprocessing.get_context("spawn")
    runners = [
        (context.Process if in_processes else threading.Thread)(target=role, args=(folder, seconds, seed + n))
        for n, role in enumerate(ROLES)
    ]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    appended, deleted = _noted(folder, "appended"), _noted(folder, "deleted")
    expected = sorted(set(appended) - set(deleted))
    found = [row[1] for row in read(table)]
    by_duckdb = [row[1] for row in read_by_duckdb(table)]
    dataset = IcebergDataset(table.catalog, TableUrl("test", NAME), SystemClock(), RandomIds())
    dataset.update_ledger(lambda ledger: type(ledger)(ledger.epoch, ()))  # whatever was cut off is over
    time.sleep(0.01)
    report = collect(dataset, SystemClock(), min_age_ms=0, dry_run=False)
    again = collect(dataset, SystemClock(), min_age_ms=0)
    files = (Kind.DATA, Kind.MANIFEST)
    summaries = [s.summary for s in fresh(table).snapshots()]
    return Outcome(
        appends=len(appended) // 20,
        deletes=len(deleted),
        compactions=len([s for s in summaries if s and COMPACTIONS_PROPERTY in s.additional_properties]),
        fenced=sum(_noted(folder, f"coordinated-{seed + n}")[1] for n in (2, 3)),
        rows=len(found),
        expected=len(expected),
        is_exact=found == by_duckdb == expected == [row[1] for row in read(table)],
        orphans_collected=len([g for g in report.garbage if g.kind in files]),
        orphans_left=len([g for g in again.garbage if g.kind in files]),
    )


def main() -> None:
    """Run a race of the length given, five minutes by default."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        outcome = race(Path(folder), seconds, seed, in_processes=True)
    print(outcome)
    sys.exit(0 if outcome.is_exact and not outcome.orphans_left else 1)


if __name__ == "__main__":
    main()

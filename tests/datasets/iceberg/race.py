"""A race on one table: an appender, a deleter, and two coordinators that keep taking over from each other.

    python -m tests.datasets.iceberg.race [SECONDS] [SEED]

The appender commits small files. The deleter removes rows, by position and by rewriting files; after a
conflict it looks at the table again and tries once more, as clients do. Each of the two coordinators plans,
rewrites and commits until it finds itself fenced, and then takes over again. Every writer notes what it
committed. In the end the table must have exactly the rows that were appended and not deleted, for PyIceberg
and for DuckDB, and no file of Lithify's may lie there that nothing names once garbage was collected.

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
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from lithify.base.clock import SystemClock
from lithify.base.errors import Fenced, StoreError
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, collect
from lithify.service.coordinator import Coordinator
from lithify.service.options import CoordinatorOptions
from lithify.service.worker import Worker
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    age_files,
    append,
    delete_positions,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
)

Role = Callable[[Path, float, int], None]
MAX_TRIES = 20
"""Of one delete."""
DAYS = 8
FIRST_REST_S = 2.0
MAX_REST_S = 8.0
"""Longest rest of a coordinator that was fenced; doubles until it commits something."""
MAX_EXTRA_S = 60.0
COMMITTED = "committed"
"""A file that says that some compaction was."""


@dataclass(frozen=True)
class Outcome:
    """How a race ended."""

    appends: int
    deletes: int
    """Commits of the deleter."""
    delete_conflicts: int
    """Tries of the deleter that somebody else's commit came before."""
    deleted_rows: int
    compactions: int
    """That were committed."""
    refused: int
    """Compactions that came to nothing, because rows of their inputs were deleted or for other reasons."""
    compaction_snapshots: int
    fenced: int
    rows: int
    expected: int
    is_exact: bool
    orphans_collected: int
    orphans_left: int


class _End:
    """When a race is over: after its time, but not before a compaction was committed; the machine may be
    busy. That takes `MAX_EXTRA_S` more at most."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._committed = folder / COMMITTED
        self._at_s = time.monotonic() + seconds

    def has_come(self) -> bool:
        late_s = time.monotonic() - self._at_s
        return late_s > 0 and (late_s > MAX_EXTRA_S or self._committed.exists())


def _appender(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    table = new_catalog(folder).load_table(NAME)
    done: list[int] = []
    first, end = 0, _End(folder, seconds)
    while not end.has_come():
        start = START + rng.randrange(DAYS) * DAY + timedelta(minutes=rng.randrange(600))
        rows = [(at, first + n, device) for n, (at, _, device) in enumerate(make_rows(20, start, DAY / 3))]
        first += len(rows)
        # A locked database is a commit that did not happen.
        with suppress(CommitFailedException, OperationalError):
            append(table, rows)
            done += [row[1] for row in rows]
        # Bursts: slower writers have a chance in between.
        time.sleep(rng.uniform(0, 0.2) if rng.random() < 0.8 else rng.uniform(0.5, 2.0))
    _note(folder, "appended", done)


def _deleter(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    table = new_catalog(folder).load_table(NAME)
    done: list[int] = []
    commits = conflicts = 0
    end = _End(folder, seconds)
    while not end.has_come():
        way = _delete_by_rewrite if rng.random() < 0.2 else _delete_by_position
        gone, tries = way(table, rng)
        done += gone
        commits += bool(gone)
        conflicts += tries - bool(gone)
        time.sleep(rng.uniform(0, 0.1))
    _note(folder, "deleted", done)
    _note(folder, "deleter", [commits, conflicts])


def _delete_by_rewrite(table: Table, rng: random.Random) -> tuple[list[int], int]:
    """The ids of the rows deleted, none after too many conflicts, and the number of tries."""
    row_id: int | None = None
    for tries in range(1, MAX_TRIES + 1):
        now = fresh(table)
        tasks = list(now.scan().plan_files())
        if not tasks:
            return [], 0
        if row_id is None:
            row_id = rng.choice(_stored_ids(now, rng.choice(tasks).file))
        with suppress(CommitFailedException, OperationalError):
            now.delete(f"id = {row_id}")
            return [row_id], tries
        time.sleep(rng.uniform(0, 0.05))
    return [], MAX_TRIES


def _delete_by_position(table: Table, rng: random.Random) -> tuple[list[int], int]:
    """The same, with a delete file. Another one is written for each try."""
    chosen: DataFile | None = None
    tries = 0
    while tries < MAX_TRIES:
        now = fresh(table)
        files = {task.file.file_path: task.file for task in now.scan().plan_files()}
        if not files:
            return [], tries
        if chosen is None or chosen.file_path not in files:  # compacted meanwhile
            chosen = rng.choice(sorted(files.values(), key=lambda file: file.file_path))
            ids = _stored_ids(now, chosen)
            positions = rng.sample(range(len(ids)), min(3, len(ids)))
        tries += 1
        with suppress(CommitFailedException, OperationalError):
            delete_positions(now, {chosen.file_path: positions}, files=files)
            return [ids[p] for p in positions], tries
        time.sleep(rng.uniform(0, 0.05))
    return [], tries


def _stored_ids(table: Table, file: DataFile) -> list[int]:
    """The ids in a data file, also those of deleted rows."""
    with table.io.new_input(file.file_path).open() as stream:
        found: list[int] = pq.read_table(stream, columns=["id"])["id"].to_pylist()
    return found


def _coordinator(folder: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    clock, ids = SystemClock(), RandomIds(random.Random(seed))
    committed = fenced = refused = 0
    rest_s = FIRST_REST_S
    end = _End(folder, seconds)
    while not end.has_come():
        with suppress(StoreError):
            dataset = IcebergDataset(new_catalog(folder), TableUrl("test", NAME), clock, ids)
            coordinator = Coordinator(dataset, clock, ids, options=CoordinatorOptions(2000))
            worker = Worker(dataset, InlineEngine(), clock, f"lithify-{ids.ulid(clock.now_ms())}")
            try:
                coordinator.start(Term(dataset.take_epoch()))
                while not end.has_come():
                    with suppress(StoreError):
                        tick = coordinator.tick()
                        if tick.committed:
                            rest_s = FIRST_REST_S
                        committed += len(tick.committed)
                        refused += len(tick.refused)
                        if committed:
                            (folder / COMMITTED).touch()
                        worker.tick()
                    time.sleep(rng.uniform(0, 0.3))
                    if rng.random() < 0.02:
                        break  # as if killed
            except Fenced:
                fenced += 1
                # Whoever has taken over gets the longer the slower the machine is.
                time.sleep(rng.uniform(0, rest_s))
                rest_s = min(2 * rest_s, MAX_REST_S)
    _note(folder, f"coordinated-{seed}", [committed, refused, fenced])


def _note(folder: Path, name: str, values: list[int]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(values))


def _noted(folder: Path, name: str) -> list[int]:
    found: list[int] = json.loads((folder / f"{name}.json").read_text())
    return found


ROLES: tuple[Role, ...] = (_appender, _deleter, _coordinator, _coordinator)


def race(folder: Path, seconds: float, seed: int, *, in_processes: bool) -> Outcome:
    """Let everybody run, then judge."""
    properties = {
        "commit.retry.num-retries": "0",
        "lithify.small-task-bytes": "1",
        "lithify.min-saved-files": "1",
    }
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
    deletes, delete_conflicts = _noted(folder, "deleter")
    coordinated = [_noted(folder, f"coordinated-{seed + n}") for n in (2, 3)]
    committed, refused, fenced = (sum(counts) for counts in zip(*coordinated, strict=True))
    expected = sorted(set(appended) - set(deleted))
    found = [row[1] for row in read(table)]
    by_others = [[row[1] for row in reader(table)] for reader in (read_by_duckdb, read_by_java)]
    dataset = IcebergDataset(table.catalog, TableUrl("test", NAME), SystemClock(), RandomIds())
    dataset.update_ledger(lambda ledger: type(ledger)(ledger.epoch, ()))  # whatever was cut off is over
    age_files(folder)
    report = collect(dataset, SystemClock(), GarbageOptions(dry_run=False))
    again = collect(dataset, SystemClock())
    files = (GarbageKind.DATA, GarbageKind.MANIFEST)
    summaries = [s.summary for s in fresh(table).snapshots()]
    return Outcome(
        appends=len(appended) // 20,
        deletes=deletes,
        delete_conflicts=delete_conflicts,
        deleted_rows=len(set(deleted)),
        compactions=committed,
        refused=refused,
        compaction_snapshots=len(
            [s for s in summaries if s and COMPACTIONS_PROPERTY in s.additional_properties]
        ),
        fenced=fenced,
        rows=len(found),
        expected=len(expected),
        is_exact=found == expected == [row[1] for row in read(table)] and by_others == [expected, expected],
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

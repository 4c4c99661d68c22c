"""What object stores are paid for: `python -m benchmarks.costs` prints the table of docs/operations.md.

Requests are those that a server of S3 in this process has been asked (`lithify.testing.s3`); tasks run in it
too, which asks for the same. An idle minute is the mean of `IDLE_MINUTES` of a manual clock, by the
loops of `benchmarks.idle`: a coordinator with its lease, and the worker of its process.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.compacting import compact as compact_database
from tests.compacting import dataset_at
from tests.datasets.iceberg.running import compact as compact_table
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import DAY, START, append, make_rows, new_table
from tests.judge.official import Put, open_db
from tests.s3 import store_options

from benchmarks.idle import IDLE_MINUTES, LOOP, SEED, turn
from lithify.base.clock import Clock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.iceberg.io.catalogs import open_catalog
from lithify.datasets.kind import DatasetPort
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.resilience.waiting import WaitPolicy
from lithify.testing.clock import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import LoggedRequest, Operation, S3Server

BUCKET = "costs"
L0S = 8
FILES, DAYS = 10, 2
ROWS = 200
READS = frozenset({Operation.GET, Operation.HEAD})
FREE = frozenset({Operation.DELETE, Operation.DELETE_MANY, Operation.ABORT_UPLOAD})
DOLLARS_A_READ, DOLLARS_A_WRITE = 0.0004 / 1000, 0.005 / 1000
"""The prices in docs/operations.md. A listing costs as much as a write."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What is paid for, by class."""

    reads: float
    """GET and HEAD."""
    writes: float
    """PUT, POST and LIST."""

    @property
    def dollars(self) -> float:
        """In S3 Standard, us-east-1."""
        return self.reads * DOLLARS_A_READ + self.writes * DOLLARS_A_WRITE


def counted(log: Sequence[LoggedRequest], share: float = 1.0) -> Requests:
    """The requests of a log, each counted so much."""
    reads = sum(request.operation in READS for request in log)
    return Requests(reads * share, (len(log) - reads - sum(r.operation in FREE for r in log)) * share)


def measure() -> dict[str, Requests]:
    """Each thing that costs, by what docs/operations.md calls it."""
    found: dict[str, Requests] = {}
    with S3Server() as server, tempfile.TemporaryDirectory(prefix="costs-") as name:
        server.create_bucket(BUCKET)
        folder, options = Path(name), store_options(server.url)
        url = f"s3://{BUCKET}/db"
        with open_db(url, store_options=options) as database:
            for flush in range(L0S):
                database.write_batch([Put(b"%06d" % n, bytes(100)) for n in range(flush, ROWS, 2)])
                database.flush()
        server.forget()
        clock = ManualClock(int(time.time() * 1000))
        compact_database(dataset_at(url, store_options=options, clock=clock), clock=clock)
        found |= _parts("database", server.log, lambda key: key.endswith(".sst"))
        found["database, an idle minute"] = _idle(
            server, lambda clock: dataset_at(url, store_options=options, clock=clock)
        )
        table = _table(_catalog(folder, options))
        server.forget()
        compact_table(dataset_of(table, catalog=_catalog(folder, options)))
        found |= _parts("table", server.log, lambda key: key.endswith(".parquet"), is_listed)
        found["table, an idle minute"] = _idle(server, lambda clock: dataset_of(table, clock=clock))
    return found


def is_listed(key: str) -> bool:
    """Whether an object of a table is a manifest, of which there may be many."""
    return key.endswith("-m0.avro") and "lithify-" not in key


def _parts(
    kind: str,
    log: Sequence[LoggedRequest],
    is_data: Callable[[str], bool],
    is_manifest: Callable[[str], bool] = lambda key: False,
) -> dict[str, Requests]:
    """A compaction: what it takes whatever there is to compact, and what comes with each file."""
    data = [r for r in log if is_data(r.key)]
    manifests = [r for r in log if is_manifest(r.key)]
    rest = [r for r in log if r not in data and r not in manifests]
    inputs = {r.key for r in data if r.operation in READS}
    outputs = {r.key for r in data if r.operation not in READS}
    found = {f"{kind}, a compaction": counted(rest)}
    found[f"{kind}, for each small input"] = Requests(counted(data).reads / len(inputs), 0)
    found[f"{kind}, for each small output"] = Requests(0, counted(data).writes / len(outputs))
    if manifests:
        found[f"{kind}, for each manifest"] = counted(manifests, 1 / len({r.key for r in manifests}))
    return found


def _catalog(folder: Path, options: Mapping[str, str]) -> Catalog:
    """As a process has it that has read nothing yet."""
    place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/lake"}
    return open_catalog("costs", {**options, **place}, WaitPolicy(10.0))


def _table(catalog: Catalog) -> Table:
    catalog.create_namespace("db")
    table = new_table(catalog)
    for number in range(FILES):
        append(table, make_rows(ROWS, START + DAY * DAYS * number / FILES, DAY * DAYS / FILES))
    return table


def _idle(server: S3Server, dataset_with: Callable[[Clock], DatasetPort]) -> Requests:
    clock, rng = ManualClock(int(time.time() * 1000)), random.Random(SEED)
    coordinated = dataset_with(clock)
    leadership = Leadership(coordinated, clock, RandomIds(rng))
    worker = Worker(coordinated, InlineEngine(), clock, leadership.holder)
    coordinator = Coordinator(coordinated, clock, RandomIds(rng), companion=worker)

    def coordinate() -> float:
        leadership.renew()
        tick = coordinator.tick()
        worker.tick(tick.seen)
        return LOOP.poll_interval_s

    with leadership.acquire(take_over=True) as term:
        coordinator.start(term)
        turn([coordinate], clock, rng, 60.0)
        server.forget()
        turn([coordinate], clock, rng, 60.0 * IDLE_MINUTES)
        return counted(server.log, 1 / IDLE_MINUTES)


def lines(found: Mapping[str, Requests]) -> list[str]:
    """The rows of the table in docs/operations.md."""
    whole = {
        name: Requests(round(requests.reads), round(requests.writes)) for name, requests in found.items()
    }
    return [
        f"| {name} | {requests.reads} | {requests.writes} | ${requests.dollars * 1e6:.1f} |"
        for name, requests in whole.items()
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))

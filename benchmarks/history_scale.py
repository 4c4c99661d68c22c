"""Lithify on very large tables: `python -m benchmarks.history_scale JOB FOLDER SIZE`, where the job is

- `orphans`: so many objects are listed under the table, by a store that makes them up as they are asked for.
  The first are the table's files, the others orphans; what would be deleted is found, and nothing is.
- `expire`: the older snapshot of the table goes, with the few files that only it names.
- `names`: that expiry holds the names of so many files.
- `plan`: what `lithify plan` decides and shows, with the history, and what a rewrite of the manifests would
  do. Then the same dataset looks again, as a coordinator does at every tick.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyiceberg.table import Table

from benchmarks.history_data import DAYS, REMOVED, name_of
from benchmarks.iceberg_data import NAME, open_catalog
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl, store_of
from lithify.datasets.iceberg.kind import KIND
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer
from lithify.datasets.iceberg.maintenance.orphans import DEFAULT_AGE_MS, OrphanOptions, remove_orphans
from lithify.datasets.iceberg.maintenance.reachable import FileKind, Names
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from lithify.datasets.options import CommandArgs
from lithify.protocol.model import Ledger
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore, folder_of

OBJECT_BYTES = 1_000_000


class MadeUpListing:
    """A store that lists objects under `folder` which nobody wrote; everything else is another store's."""

    def __init__(self, store: ObjectStore, folder: str, files: int, objects: int, now_ms: int) -> None:
        self._store = store
        self._folder = folder
        self._files, self._objects = files, objects
        self._written_ms = now_ms - 2 * DEFAULT_AGE_MS

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        yield from self._store.stream(prefix)
        for day in range(DAYS):
            folder = f"{self._folder}/{name_of(0, day).partition('/')[0]}"
            if f"{folder}/".startswith(f"{prefix}/"):
                for number in self._of(day):
                    key = f"{self._folder}/{name_of(number, day)}"
                    yield ObjectMeta(key, OBJECT_BYTES, self._written_ms, None)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        return self.stream(prefix)

    def folder(self, prefix: str) -> FolderListing:
        real = self._store.folder(prefix)
        if prefix == self._folder:
            days = (f"{prefix}/{name_of(0, day).partition('/')[0]}" for day in range(DAYS))
            return FolderListing((*real.folders, *days), real.objects)
        if self._folder.startswith(f"{prefix}/"):
            below = self._folder.removeprefix(f"{prefix}/").partition("/")[0]
            return FolderListing(tuple(dict.fromkeys((*real.folders, f"{prefix}/{below}"))), real.objects)
        return folder_of(prefix, self.stream(prefix))

    def _of(self, day: int) -> Iterator[int]:
        """Numbers of the objects of a day: the table's files, then others."""
        first, last = (-(-part * self._files // DAYS) for part in (day, day + 1))
        yield from range(first, last)
        yield from range(self._files + day, self._objects, DAYS)


def _orphans(folder: Path, objects: int) -> dict[str, float]:
    clock, ids = SystemClock(), RandomIds()
    files = _files_of(open_catalog(folder).load_table(NAME))

    def place(table: Table) -> tuple[ObjectStore, str]:
        store, root = store_of(table)
        made_up = MadeUpListing(store, f"{root}/data", files, objects, clock.now_ms())
        return made_up, root  # type: ignore[return-value]  # what it has not itself is the other's

    dataset = IcebergDataset(open_catalog(folder), TableUrl("bench", NAME), clock, ids, open_place=place)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    found = remove_orphans(dataset, clock, ids, OrphanOptions())
    assert found.found == objects - files, (found.found, objects, files)
    return {
        "listed": found.listed,
        "found": found.found,
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
    }


def _expire(folder: Path, files: int) -> dict[str, float]:
    clock, ids = SystemClock(), RandomIds()
    dataset = IcebergDataset(open_catalog(folder), TableUrl("bench", NAME), clock, ids)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    options = ExpireOptions(older_than_ms=clock.now_ms(), retain_last=1, grace_ms=0)
    found = Expirer(dataset, clock, ids).run(options)
    assert found.deleted[FileKind.DATA] == REMOVED, found
    return {
        "files": files,
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
    }


def _names(_: Path, files: int) -> dict[str, float]:
    location = "s3://warehouse/db/events"
    started_s, names = time.perf_counter(), Names(location)
    for number in range(files):
        names.add(f"{location}/data/{name_of(number, number % DAYS)}")
    assert names.has(f"{location}/data/{name_of(7, 7)}")
    assert not names.has(f"{location}/data/{name_of(7, 8)}")
    return {"files": files, "wall_s": time.perf_counter() - started_s}


def _plan(folder: Path, files: int) -> dict[str, float]:
    clock, ids = SystemClock(), RandomIds()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    dataset = IcebergDataset(open_catalog(folder), TableUrl("bench", NAME), clock, ids)
    ledger, snapshot = dataset.glance()
    known = ledger if ledger is not None else Ledger()
    listed_s = time.perf_counter() - started_s
    plan = KIND.planner(dataset, CommandArgs(), clock)(snapshot, known)
    KIND.show_plan(dataset, snapshot, known, plan, CommandArgs(), clock, dataset.plan_details())
    manifests = ManifestRewriter(dataset, clock).run(dry_run=True)
    plan_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    assert manifests.plan.manifests > 0
    started_s = time.perf_counter()
    again = dataset.propose(dataset.snapshot(), known)
    again_s = time.perf_counter() - started_s
    assert again.proposals == plan.proposals
    return {
        "files": files,
        "plan_s": plan_s,
        "cpu_s": cpu_s,
        "listing_s": listed_s,
        "proposals": len(plan.proposals),
        "again_s": again_s,
    }


def _files_of(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(str(snapshot.summary["total-data-files"]))


JOBS = {"orphans": _orphans, "plan": _plan, "expire": _expire, "names": _names}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))), flush=True)

"""Databases with garbage, and collecting it, for tests."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from lithify.base.clock import Clock, SystemClock
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import GarbageOptions, GarbageReport, collect
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.urls import open_store
from lithify.store.wrapped import WrappedStore
from lithify.testing import ManualClock
from tests.compacting import compact, dataset_at
from tests.judge.official import Database, Put, open_db

AT_ONCE = GarbageOptions(min_age_ms=0, dry_run=False)
HOUR_MS = 3_600_000
Model = dict[bytes, bytes]


def write(database: Database, batches: int, tag: bytes, keys: int = 50, *, wal_first: bool = False) -> Model:
    """So many overlapping L0 SSTs; what a scan of them shows. With `wal_first` no object of the WAL outlives
    its batch; otherwise the last one may, depending on the client's timer."""
    model: Model = {}
    for batch in range(batches):
        rows = {b"k%03d" % n: b"%s-%d" % (tag, batch) for n in range(batch, keys)}
        database.write_batch([Put(k, v) for k, v in rows.items()])
        if wal_first:
            database.flush_wal()
        database.flush()
        model |= rows
    return model


def gc(
    path: Path,
    *,
    clock: Clock | None = None,
    options: GarbageOptions = AT_ONCE,
    store: ObjectStore | None = None,
) -> GarbageReport:
    opened, root = open_store(str(path))
    paths = DatabasePaths(root)
    inner = store if store is not None else opened
    if clock is None:
        return collect(inner, paths, SystemClock(), options)
    return collect(StoreInTime(inner, clock), paths, clock, options)


class StoreInTime(WrappedStore):
    """A store whose own clock shows the time of `clock`; what was written keeps its times."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock

    def head(self, key: str) -> ObjectMeta:
        meta = super().head(key)
        return replace(meta, last_modified_ms=self._clock.now_ms()) if key.endswith("lithify/now") else meta


def in_an_hour() -> ManualClock:
    """When the checkpoints of commits have expired."""
    return ManualClock(int(time.time() * 1000) + HOUR_MS)


def names(path: Path, folder: str) -> set[str]:
    """The objects in a folder of a database. A store knows no folders: one without objects may be missing."""
    return {p.name for p in (path / folder).iterdir()} if (path / folder).exists() else set()


def compact_well(dataset: SlateDataset) -> None:
    result = compact(dataset)
    assert result.committed
    assert not result.failures


def aged_database(path: Path) -> Model:
    """A database of one run and two L0s with garbage of every kind."""
    with open_db(path) as database:
        model = write(database, 4, b"old")
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        model |= write(database, 3, b"mid")
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        model |= write(database, 2, b"new")
    return model


def age_files(folder: Path, seconds: int = 7200) -> None:
    """Everything in a folder was written that long ago."""
    for path in folder.rglob("*"):
        if path.is_file():
            then_ns = path.stat().st_mtime_ns - seconds * 10**9
            os.utime(path, ns=(then_ns, then_ns))


def check(path: Path, model: Model) -> None:
    with open_db(path) as database:
        assert dict(database.scan()) == model

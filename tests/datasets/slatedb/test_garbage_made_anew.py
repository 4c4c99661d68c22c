"""A database that is made anew at its URL, or restored from a backup, while its garbage is collected: at any
request of the collection. Written and read by the official client.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import LithifyError
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import DEFAULT_KINDS, GarbageKind, GarbageOptions, collect
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from tests.aging import age
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db
from tests.parts import in_parts

OPTIONS = GarbageOptions(min_age_ms=0, dry_run=False, kinds=DEFAULT_KINDS | {GarbageKind.WAL_FENCE})
Rows = dict[bytes, bytes]


def put(template: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template, path, copy_function=shutil.copyfile)


def written(path: Path, name: bytes, flushes: int) -> Rows:
    """Flush so often, each time as another writer, and leave a row in the write-ahead log."""
    found: Rows = {}
    for n in range(flushes):
        with open_db(path) as database:
            row = b"%s %d" % (name, n), b"flushed"
            database.write_batch([Put(*row)])
            database.flush()
            found |= [row]
    with open_db(path) as database:
        database.write_batch([Put(b"in the log", name)])
        database.flush_wal()
        shutil.copytree(path, path.with_name(f"{path.name} killed"))  # as if it were killed now
    shutil.rmtree(path)
    path.with_name(f"{path.name} killed").rename(path)
    return found | {b"in the log": name}


@dataclass
class Templates:
    old: Path
    """With garbage of every kind."""
    new: dict[str, tuple[Path, Rows]]
    """What is put in its place."""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    folder = tmp_path_factory.mktemp("templates")
    old = folder / "old"
    backup_rows = written(old, b"old", 5)
    put(old, folder / "backup")
    compact(dataset_at(old, checkpoint_lifetime_s=0))
    written(old, b"newer", 6)
    compact(dataset_at(old, checkpoint_lifetime_s=0))
    short = written(folder / "short", b"short", 2)
    long = written(folder / "long", b"long", 30)
    new = {"short": short, "long": long, "backup": backup_rows}
    return Templates(old, {name: (folder / name, rows) for name, rows in new.items()})


class Meanwhile(WrappedStore):
    """Runs `event` once, just before the call of this number. Not between the look at an object and its
    deletion, which no store makes one: within a request nobody makes a database anew and fills it."""

    def __init__(self, inner: ObjectStore, number: int, event: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self._number = 0, number
        self._event: Callable[[], object] | None = event
        self._lock = threading.Lock()

    def around(self, call: Call, action: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls += 1
            if self.calls >= self._number and call.method != "delete" and self._event is not None:
                event, self._event = self._event, None
                event()
        return action()

    @property
    def is_over(self) -> bool:
        """It did not happen."""
        return self._event is not None


@pytest.mark.parametrize("name", ["short", "long", "backup"])
@in_parts(10)
def test_nothing_of_the_new_one_goes(
    templates: Templates, tmp_path: Path, name: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.store.deleting.MAX_IN_FLIGHT", 1)
    path, (template, rows) = tmp_path / "db", templates.new[name]
    number, is_over = part + 1, False
    while not is_over:
        put(templates.old, path)
        age(path, 60_000)
        store = Meanwhile(LocalStore(), number, lambda: put(template, path))
        with suppress(LithifyError):
            collect(store, DatabasePaths(str(path).strip("/")), SystemClock(), OPTIONS)
        is_over = store.is_over
        if not is_over:
            with open_db(path) as database:
                assert {key: database.get(key) for key in rows} == rows, f"before call {number}"
        number += 10
    assert number > 40, "there was garbage"


def test_there_is_garbage_of_every_kind(templates: Templates, tmp_path: Path) -> None:
    put(templates.old, tmp_path / "db")
    age(tmp_path / "db", 60_000)
    report = collect(LocalStore(), DatabasePaths(str(tmp_path / "db").strip("/")), SystemClock(), OPTIONS)
    found = {kind for kind, count in report.counts.items() if count.deletable}
    assert found >= {
        GarbageKind.COMPACTED,
        GarbageKind.MANIFEST,
        GarbageKind.COMPACTIONS,
        GarbageKind.WAL,
        GarbageKind.WAL_FENCE,
    }

"""Moving instead of merging, when that is switched on and no two sources can show the same key."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.model import CompactionState
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.wrapped import Call
from lithify.testing import FaultyStore, ManualClock, MemoryStore, StoreFault, crash_at_every_call
from lithify.testing.engine import InlineEngine
from tests.compacting import check_state_files, compact, dataset_at
from tests.datasets.slatedb.collecting import Model, check, gc, in_an_hour, names, write
from tests.datasets.slatedb.coordinated import coordinate
from tests.judge.official import Database, copy_database, open_db


def write_disjoint(database: Database, batches: int) -> Model:
    """L0 SSTs of which each has its own keys, and a deletion."""
    model: Model = {}
    for batch in range(batches):
        rows = {b"%d-%02d" % (batch, n): b"v%d" % n for n in range(10)}
        for key, value in rows.items():
            database.put(key, value)
        database.delete(rows.popitem()[0])
        database.flush()
        model |= rows
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def moving(path: Path, **options: Any) -> SlateDataset:
    return dataset_at(path, enable_trivial_move=True, **options)


def test_l0s_of_different_keys_become_a_run_unread_as_the_official_coordinator_does_it(
    path: Path, tmp_path: Path
) -> None:
    with open_db(path) as database:
        model = write_disjoint(database, 4)
    official = copy_database(path, tmp_path / "official")
    ssts, engine = names(path, "compacted"), InlineEngine()
    result = compact(moving(path), full=False, engine=engine)
    assert len(result.committed) == 1
    assert engine.submitted == []
    assert names(path, "compacted") == ssts
    check_state_files(dataset_at(path), path)

    theirs = coordinate(
        official,
        lambda ledger: any(c.state is CompactionState.COMPLETED for c in ledger.compactions),
        scheduler={},
        trivial_move=True,
    )
    assert dataset_at(path).snapshot().root == theirs.manifest.root
    check(path, model)
    gc(path, clock=in_an_hour())
    check(path, model)


def test_an_open_database_goes_on_and_later_merges_find_the_rows(path: Path) -> None:
    with open_db(path) as database:
        model = write_disjoint(database, 4)
        assert compact(moving(path), full=False).committed
        assert dict(database.scan()) == model
        model |= write(database, 4, b"new")
        assert compact(moving(path), full=False).committed
        assert dict(database.scan()) == model
        assert database.get_many(model) == model
    engine = InlineEngine()
    assert compact(moving(path), engine=engine).committed  # asked for fully: it comes to an end, merged
    assert engine.submitted
    (run,) = dataset_at(path).snapshot().root.runs
    assert len(run.views) == 1
    check(path, model)


def test_without_the_option_or_with_common_keys_rows_are_merged(path: Path, tmp_path: Path) -> None:
    with open_db(path) as database:
        write_disjoint(database, 4)
    engine = InlineEngine()
    assert compact(dataset_at(path), full=False, engine=engine).committed
    assert engine.submitted
    other = tmp_path / "other"
    with open_db(other) as database:
        model = write(database, 4, b"v")
    engine = InlineEngine()
    assert compact(moving(other), full=False, engine=engine).committed
    assert engine.submitted
    check(other, model)


def test_a_lost_answer_is_no_failure(path: Path) -> None:
    """The local file system cannot tell whose write landed, so the move meets its own result."""
    with open_db(path) as database:
        model = write_disjoint(database, 4)
    creates = itertools.count(1)

    def lose(_number: int, call: Call) -> StoreFault | None:
        is_manifest = call.method == "create" and call.key.endswith(".manifest")
        return StoreFault.FAIL_AFTER if is_manifest and next(creates) == 2 else None

    result = compact(moving(path, wrap=lambda store: FaultyStore(store, lose)), full=False)
    assert next(creates) > 2
    assert (len(result.committed), result.refused) == (1, ())
    check(path, model)


def test_a_crash_at_any_store_call_loses_nothing_and_the_next_run_finishes(
    path: Path, tmp_path: Path
) -> None:
    with open_db(path) as database:
        model = write_disjoint(database, 4)
    now_ms = int(time.time() * 1000)
    root = open_store(str(path))[1]
    objects = {f"{root}/{f.relative_to(path)}": f.read_bytes() for f in path.rglob("*") if f.is_file()}

    def make_store() -> ObjectStore:
        store = MemoryStore(ManualClock(now_ms))
        for key, data in objects.items():
            store.put(key, data)
        return store

    def run(store: ObjectStore, at_ms: int = now_ms) -> None:
        clock = ManualClock(at_ms)
        compact(moving(path, wrap=lambda _: store, clock=clock), full=False, clock=clock)

    states: set[frozenset[str]] = set()
    for site, store in crash_at_every_call(make_store, run):
        state = frozenset(meta.key for meta in store.list(root))
        if state in states:
            continue
        states.add(state)
        run(store, now_ms + 60_000)
        copy = tmp_path / str(len(states))
        for meta in store.list(root):
            file = copy / meta.key.removeprefix(f"{root}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(store.get(meta.key))
        tree = dataset_at(copy).snapshot().root
        assert (len(tree.l0), [len(run.views) for run in tree.runs]) == (0, [4]), site
        check(copy, model)
    assert len(states) > 5

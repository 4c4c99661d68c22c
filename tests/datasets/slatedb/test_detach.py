"""A clone lets go of its parents once it reads nothing of them, as the official collector would do it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lithify.base.errors import Refused
from lithify.datasets.slatedb.garbage.collection import DEFAULT_KINDS, GarbageKind
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import crash_at_every_call
from tests.compacting import check_state_files, dataset_at
from tests.datasets.slatedb.collecting import (
    AT_ONCE,
    Model,
    check,
    compact_well,
    gc,
    in_an_hour,
    names,
    write,
)
from tests.judge.official import Admin, CloneSource, open_db, open_reader


def family(folder: Path, *, wal_first: bool = False) -> Model:
    """A parent and a clone of it, `folder/parent` and `folder/clone`, which has no WAL if `wal_first`."""
    with open_db(folder / "parent") as database:
        model = write(database, 3, b"v", wal_first=wal_first)
    compact_well(dataset_at(folder / "parent", checkpoint_lifetime_s=0))
    Admin(folder / "clone").clone_from(CloneSource(folder / "parent"))
    return model


def ties(path: Path) -> int:
    return len(dataset_at(path).snapshot().external_dbs)


def lasting_checkpoints(path: Path) -> int:
    return sum(1 for c in dataset_at(path).snapshot().checkpoints if not c.expire_time_s)


def test_a_clone_that_has_rewritten_everything_is_untied(tmp_path: Path) -> None:
    model = family(tmp_path)
    parent, clone = tmp_path / "parent", tmp_path / "clone"
    gc(clone, clock=in_an_hour())
    assert (ties(clone), lasting_checkpoints(parent)) == (1, 1)

    compact_well(dataset_at(clone))
    gc(clone)
    assert (ties(clone), lasting_checkpoints(parent)) == (1, 1)  # its commit pins a manifest that reads it
    report = gc(clone, clock=in_an_hour())
    assert (report.counts[GarbageKind.DETACH].found, report.counts[GarbageKind.DETACH].deletable) == (1, 1)
    assert (ties(clone), lasting_checkpoints(parent)) == (0, 0)
    check_state_files(dataset_at(clone), clone)
    check_state_files(dataset_at(parent), parent)

    check(clone, model)
    shutil.rmtree(parent)
    check(clone, model)


@pytest.mark.parametrize("wal_first", [False, True])
def test_the_official_collector_unties_the_same(tmp_path: Path, wal_first: bool) -> None:
    place, ours, before = tmp_path / "place", tmp_path / "ours", tmp_path / "before"
    family(place, wal_first=wal_first)
    assert names(place / "clone", "wal") == set() or not wal_first
    compact_well(dataset_at(place / "clone", checkpoint_lifetime_s=0))
    shutil.copytree(place, before)
    gc(place / "clone")
    place.rename(ours)  # a tie names a path, so each collector works at the same place
    before.rename(place)
    Admin(place / "clone").run_gc()
    for name in ("parent", "clone"):
        assert ties(ours / name) == ties(place / name) == 0
        assert lasting_checkpoints(ours / name) == lasting_checkpoints(place / name) == 0
        for folder in ("compacted", "manifest", "wal"):
            assert names(ours / name, folder) == names(place / name, folder)


def test_a_parent_that_is_gone_is_said_and_keeps_nothing_else(tmp_path: Path) -> None:
    model = family(tmp_path)
    clone = tmp_path / "clone"
    compact_well(dataset_at(clone, checkpoint_lifetime_s=0))
    (tmp_path / "parent").rename(tmp_path / "moved")
    before = len(names(clone, "manifest"))
    with pytest.raises(Refused, match=r"parent.*was not found"):
        gc(clone, clock=in_an_hour())
    assert ties(clone) == 1
    assert len(names(clone, "manifest")) < before
    check(clone, model)


def test_a_crash_at_any_store_call_leaves_what_the_next_run_unties(tmp_path: Path) -> None:
    place, before = tmp_path / "place", tmp_path / "before"
    model = family(place)
    compact_well(dataset_at(place / "clone", checkpoint_lifetime_s=0))
    gc(place / "clone", options=replace(AT_ONCE, kinds=DEFAULT_KINDS - {GarbageKind.DETACH}))
    shutil.copytree(place, before)

    def make_store() -> ObjectStore:
        shutil.rmtree(place)
        shutil.copytree(before, place)
        return open_store(str(place))[0]

    def run(store: ObjectStore) -> None:
        gc(place / "clone", store=store, options=replace(AT_ONCE, kinds=frozenset({GarbageKind.DETACH})))

    states = set()
    for site, store in crash_at_every_call(make_store, run):
        states.add((ties(place / "clone"), lasting_checkpoints(place / "parent")))
        run(store)
        assert (ties(place / "clone"), lasting_checkpoints(place / "parent")) == (0, 0), site
        with open_reader(place / "clone") as reader:
            assert dict(reader.scan()) == model
    assert states == {(1, 1), (1, 0), (0, 0)}

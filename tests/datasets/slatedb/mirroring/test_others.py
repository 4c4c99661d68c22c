"""Mirrors and restores beside other programs: writers, compactors and collectors between any two requests, a
store that fails, a checkpoint that is removed, a program that creates a database in the place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import CorruptObject, Fenced, LithifyError, Refused, StoreError
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import collect
from lithify.datasets.slatedb.mirroring import pin
from lithify.datasets.slatedb.mirroring.state import KeepPolicy
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.wrapped import Call
from lithify.testing.faulty import FaultyStore, StoreFault
from tests.compacting import compact, dataset_at
from tests.datasets.slatedb.collecting import AT_ONCE
from tests.datasets.slatedb.mirroring.drill import ALL, Drill, rows_of
from tests.judge.official import Database, open_db

NEWEST = KeepPolicy(keep_ms=0)


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(tmp_path)


def before_calls(meddle: Callable[[Call], object]) -> Callable[[ObjectStore], FaultyStore]:
    """A store before whose calls another program acts, but not while it does."""
    busy = [False]

    def decide(_number: int, call: Call) -> None:
        if not busy[0]:
            busy[0] = True
            try:
                meddle(call)
            finally:
                busy[0] = False

    return lambda store: FaultyStore(store, decide)


def collect_all(drill: Drill) -> None:
    store, root = open_store(str(drill.database))
    collect(store, DatabasePaths(root), SystemClock(), AT_ONCE)


class Neighbours:
    """A writer, a compactor and an eager collector, of which one acts at a time."""

    def __init__(self, drill: Drill, database: Database, seed: int) -> None:
        self._drill, self._database, self._rng = drill, database, random.Random(seed)
        self.written = 0

    def act(self) -> None:
        match self._rng.randrange(4):
            case 0:
                self.write()
                self._database.flush_wal()
            case 1:
                self.write()
                self._database.flush()
            case 2:
                compact(dataset_at(self._drill.database, checkpoint_lifetime_s=0), take_over=True)
            case _:
                collect_all(self._drill)

    def write(self) -> None:
        self._database.put(b"%06d" % self.written, b"v")
        self.written += 1


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.whole) for n in range(2, 12))])
def test_others_act_between_any_two_requests(drill: Drill, seed: int) -> None:
    rng, seen = random.Random(seed), list[tuple[int, int, int]]()
    with open_db(drill.database) as database:
        others = Neighbours(drill, database, seed)
        for _ in range(4):
            others.write()
            database.flush()
        for _ in range(6):
            least = others.written
            database.flush_wal()
            session = drill.session(before_calls(lambda _: others.act() if rng.random() < 0.05 else None))
            with suppress(StoreError):  # collected faster than it was copied
                report = session.take_point(ALL)
                seen.append((report.point.at_ms, least, others.written))
    assert drill.problems() == []
    assert len(seen) > 2
    for n, (at_ms, least, most) in enumerate(seen):
        place = drill.restore(at_ms) if n == len(seen) - 1 or seen[n + 1][0] > at_ms else None
        if place is not None:
            rows = rows_of(place)
            assert sorted(rows) == [b"%06d" % n for n in range(len(rows))]
            assert least <= len(rows) <= most


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_fail(drill: Drill, seed: int) -> None:
    """Each request may fail, with or without effect; sessions go on until one succeeds."""
    faults, policy = random.Random(seed), KeepPolicy(0, 2)
    with open_db(drill.database) as database:
        for n in range(6):
            database.put(b"%d" % n, b"v")
            database.flush()
            if n % 3 == 2:
                compact(dataset_at(drill.database, checkpoint_lifetime_s=0), take_over=True)
            for _ in range(100):
                session = drill.session(lambda store: FaultyStore.seeded(store, faults, 0.04))
                with suppress(StoreError):
                    session.take_point(policy)
                    break
            else:
                pytest.fail("no session came to its end")
            assert drill.problems() == []
    drill.session().take_point(policy)
    assert len(drill.state().points) == 2
    for _ in range(100):
        with suppress(StoreError):
            place = drill.restore(wrap=lambda store: FaultyStore.seeded(store, faults, 0.1), to="place")
            break
    assert rows_of(place) == {b"%d" % n: b"v" for n in range(6)}


def test_a_checkpoint_removed_meanwhile_and_the_ssts_collected(drill: Drill) -> None:
    removed = [0]

    def meddle(call: Call) -> None:
        """Remove the checkpoint as soon as the first SST is copied, and what it protected."""
        if call.method != "put" or "mirror/compacted" not in call.key or removed[0]:
            return
        removed[0] += 1
        drill.files().update_manifest(lambda _, manifest: replace(manifest, checkpoints=()))
        compact(dataset_at(drill.database, checkpoint_lifetime_s=0), take_over=True)
        collect_all(drill)

    with open_db(drill.database) as database:
        for n in range(8):
            database.put(b"%d" % n, b"v")
            database.flush()
        drill.session(before_calls(meddle)).take_point(ALL)
    assert removed == [1]
    assert drill.problems() == []
    assert drill.rows() == {b"%d" % n: b"v" for n in range(8)}
    assert not [c for c in dataset_at(drill.database).snapshot().checkpoints if c.name == pin.NAME]


def test_a_program_that_creates_its_database_while_it_is_restored(drill: Drill) -> None:
    with open_db(drill.database) as database:
        for n in range(5):
            database.put(b"%d" % n, b"v")
            database.flush_wal()
        drill.session().take_point(ALL)
    place, done = drill.folder / "place", list[str]()

    def meddle(call: Call) -> None:
        if "place/wal" in call.key and not done:
            done.append(call.key)
            with open_db(place) as created:
                created.put(b"mine", b"1")
                created.flush_wal()

    with pytest.raises(Refused, match="created a database there meanwhile; it was left as it is"):
        drill.restore(wrap=before_calls(meddle), to="place")
    with open_db(place) as created:
        assert dict(created.scan()) == {b"mine": b"1"}
    with pytest.raises(Refused, match="already has a database"):
        drill.restore(to="place")


def test_leftovers_of_a_former_database_count_as_files(drill: Drill) -> None:
    with open_db(drill.database) as database:
        database.put(b"k", b"v")
    drill.session().take_point(ALL)
    lease = drill.folder / "place" / "lithify" / "lease.json"
    lease.parent.mkdir(parents=True)
    lease.write_text("{}")
    with pytest.raises(Refused, match=r"is not empty: it has .*lithify/lease\.json"):
        drill.restore(to="place")
    assert sorted(path.name for path in lease.parent.parent.rglob("*")) == ["lease.json", "lithify"]


def test_a_damaged_log_is_found_and_mended_by_the_next_run(drill: Drill) -> None:
    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"%d" % n, b"v")
            database.flush_wal()
        drill.session().take_point(ALL)
        logs = sorted((drill.target / "wal").iterdir())
        logs[-1].write_bytes(logs[-1].read_bytes()[:-1])
        with pytest.raises(Refused, match=r"write-ahead log have \d+ bytes instead of"):
            drill.restore()
        logs[0].unlink()
        assert not drill.session().take_point(ALL).is_new
        assert drill.problems() == []
        assert drill.rows() == {b"%d" % n: b"v" for n in range(3)}


def test_a_lost_list_of_an_old_point_stops_nothing(drill: Drill) -> None:
    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"%d" % n, b"v")
            database.flush()
            drill.session().take_point(ALL)
            compact(dataset_at(drill.database, checkpoint_lifetime_s=0), take_over=True)
    lists = sorted((drill.target / "manifests").glob("*.json"))
    lists[0].unlink()
    lists[1].write_text("?")
    drill.session().take_point(NEWEST)
    assert drill.problems() == []
    assert drill.rows() == {b"%d" % n: b"v" for n in range(3)}


def test_objects_that_cannot_be_deleted_do_not_stop_copies(drill: Drill) -> None:
    """As in a bucket that forbids it: each run says so, and takes its point before."""

    def forbidding(store: ObjectStore) -> FaultyStore:
        return FaultyStore(store, lambda _, call: StoreFault.FAIL_BEFORE if call.method == "delete" else None)

    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"%d" % n, b"v")
            database.flush()
            with suppress(StoreError):
                drill.session(forbidding).take_point(NEWEST)
            assert drill.rows() == {b"%d" % m: b"v" for m in range(n + 1)}
            compact(dataset_at(drill.database, checkpoint_lifetime_s=0), take_over=True)
    assert not drill.state().doomed.is_empty
    drill.session().take_point(NEWEST)
    assert drill.state().doomed.is_empty
    assert drill.problems() == []


def test_a_state_that_lies_is_refused_before_the_first_write(drill: Drill) -> None:
    with open_db(drill.database) as database:
        database.put(b"k", b"v")
        database.flush()
        database.put(b"k", b"w")
        database.flush_wal()
        drill.session().take_point(ALL)
    newest = max((drill.target / "mirror").iterdir())
    written = json.loads(newest.read_bytes())
    (point,) = written["points"]
    (listed,) = (drill.target / "manifests").glob("*.json")

    def refused(match: str, **changes: int) -> None:
        newest.write_text(json.dumps({**written, "points": [{**point, **changes}]}))
        with pytest.raises((Refused, CorruptObject), match=match):
            drill.restore(to="place")
        assert not (drill.folder / "place").exists()

    refused("is missing", wal_to=2**62 - 1)
    refused("not those that its manifest needs", wal_after=point["wal_after"] - 1)
    refused("not those that its manifest needs", wal_to=point["wal_after"])
    newest.write_text(json.dumps(written))
    listed.write_text(json.dumps({"ssts": {}}))
    refused("not that of its manifest")


def test_two_mirrors_at_once(drill: Drill) -> None:
    """The second begins between any two requests of the first. One of them takes each point, whole."""
    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"%d" % n, b"v")
            database.flush()
            for at in range(1, 60, 7):
                calls = [0]

                def meddle(_call: Call, at: int = at, calls: list[int] = calls) -> None:
                    calls[0] += 1
                    if calls[0] == at:
                        drill.session().take_point(NEWEST)

                database.put(b"%d" % n, b"v")
                database.flush_wal()
                with suppress(Fenced):
                    drill.session(before_calls(meddle)).take_point(NEWEST)
                assert drill.problems() == []
    assert drill.rows() == {b"%d" % n: b"v" for n in range(3)}


def test_two_restores_of_one_point_at_once(drill: Drill) -> None:
    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"%d" % n, b"v")
            database.flush_wal()
        drill.session().take_point(ALL)
    for at in range(1, 40, 3):
        place, calls = f"place-{at}", [0]

        def meddle(_call: Call, at: int = at, calls: list[int] = calls, place: str = place) -> None:
            calls[0] += 1
            if calls[0] == at:
                drill.restore(to=place)

        with suppress(LithifyError):
            drill.restore(wrap=before_calls(meddle), to=place)
        assert rows_of(drill.folder / place) == {b"%d" % n: b"v" for n in range(3)}

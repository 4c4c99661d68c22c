"""Points in time of a mirror, restored and read by the official client."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import Fenced, Refused, Replaced
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import collect
from lithify.datasets.slatedb.mirroring.state import KeepPolicy
from lithify.store.urls import open_store
from tests.compacting import compact, dataset_at
from tests.datasets.slatedb.collecting import AT_ONCE
from tests.datasets.slatedb.mirroring.drill import ALL, Drill
from tests.judge.official import Admin, CloneSource, open_db

NEWEST = KeepPolicy(keep_ms=0)


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(tmp_path)


def test_every_point_is_what_the_client_saw_then(drill: Drill) -> None:
    session = drill.session()
    model: dict[bytes, bytes] = {}
    points: dict[int, dict[bytes, bytes]] = {}
    with open_db(drill.database) as database:

        def put(**rows: str) -> None:
            for key, value in rows.items():
                database.put(key.encode(), value.encode())
                model[key.encode()] = value.encode()

        def take() -> None:
            database.flush_wal()
            report = session.take_point(ALL)
            assert report.is_new
            points[report.point.at_ms] = dict(model)

        put(a="1", b="1")  # only in the write-ahead log
        take()
        put(c="1")
        database.delete(b"a")
        del model[b"a"]
        take()
        database.flush()
        take()
        put(b="2", d="1")
        database.flush()
        compact(dataset_at(drill.database))
        put(e="1")
        take()
        assert not session.take_point(ALL).is_new, "nothing has changed"
        put(f="1")
        take()
    session.take_point(ALL)  # closing flushes
    assert len(points) == 5
    for at_ms, rows in points.items():
        assert drill.rows(at_ms) == rows
        assert drill.rows(at_ms + 1) == rows
    assert drill.rows() == model
    assert drill.problems() == []
    with pytest.raises(Refused, match="the oldest point that can be restored"):
        drill.restore(min(points) - 1)
    assert [c.name for c in dataset_at(drill.database).snapshot().checkpoints] == [None], "only the commit's"


def test_dropped_points_free_what_no_other_point_needs(drill: Drill) -> None:
    with open_db(drill.database) as database:
        for n in range(3):
            database.put(b"k%d" % n, b"v")
            database.flush()
    drill.session().take_point(ALL)
    before = set(drill.mirror().ssts())
    foreign = drill.target / "compacted" / "notes.txt"
    foreign.write_text("not the mirror's")
    compact(dataset_at(drill.database))
    report = drill.session().take_point(NEWEST)
    assert report.points == 1
    assert report.deleted > 0
    after = drill.mirror()
    assert not before & set(after.ssts())
    assert set(after.ssts()) == set(after.copied(report.point.manifest_id).ssts)
    assert foreign.exists()
    assert after.read().doomed.is_empty
    assert drill.problems() == []
    assert drill.rows() == {b"k%d" % n: b"v" for n in range(3)}


def test_a_collector_beside_the_mirror_takes_nothing_from_it(drill: Drill) -> None:
    store, root = open_store(str(drill.database))
    session, model = drill.session(), {}
    with open_db(drill.database) as database:
        for n in range(4):
            key = b"k%d" % (n % 3)
            database.put(key, b"%d" % n)
            model[key] = b"%d" % n
            database.flush()
            compact(dataset_at(drill.database, checkpoint_lifetime_s=1), take_over=True)
            session.take_point(KeepPolicy(0, 2))
            collect(store, DatabasePaths(root), SystemClock(), AT_ONCE)
        assert dict(database.scan()) == model
    assert drill.problems() == []
    assert drill.rows() == model


def test_an_empty_database_and_one_without_a_log(drill: Drill, tmp_path: Path) -> None:
    with open_db(drill.database):
        pass
    drill.session().take_point(ALL)
    assert drill.rows() == {}
    other = Drill(tmp_path / "other")
    with open_db(other.database, settings={"wal_enabled": False}) as database:
        database.put(b"k", b"v")
        database.flush()
        other.session().take_point(ALL)
        assert other.rows() == {b"k": b"v"}


def test_a_clone_is_restored_with_the_ssts_of_its_parent(drill: Drill) -> None:
    parent = drill.folder / "parent"
    with open_db(parent) as database:
        database.put(b"parent", b"1")
        database.flush()
    Admin(drill.database).clone_from(CloneSource(parent))
    with open_db(drill.database) as database:
        database.put(b"own", b"2")
        database.flush()
        drill.session().take_point(ALL)
    shutil.rmtree(parent)
    shutil.rmtree(drill.database)
    assert drill.rows() == {b"parent": b"1", b"own": b"2"}


def test_places_that_are_not_empty_are_refused(drill: Drill) -> None:
    with open_db(drill.database) as database:
        database.put(b"k", b"v")
    drill.target.mkdir()
    (drill.target / "mine.txt").write_text("here first")
    with pytest.raises(Refused, match=r"is not empty and no mirror: it has .*mine\.txt"):
        drill.session().take_point(ALL)
    assert [path.name for path in drill.target.iterdir()] == ["mine.txt"]
    (drill.target / "mine.txt").unlink()
    drill.session().take_point(ALL)
    for place in ("db", "mirror"):
        with pytest.raises(Refused, match=r"not empty|already has a database"):
            drill.restore(to=place)
    with pytest.raises(Refused, match="two different places"):
        drill.restore(to="a?b")


def test_a_mirror_is_of_one_database(drill: Drill, tmp_path: Path) -> None:
    with open_db(drill.database) as database:
        database.put(b"k", b"v")
    drill.session().take_point(ALL)
    old = tmp_path / "old"
    shutil.copytree(drill.database, old)
    with open_db(drill.database) as database:
        database.put(b"k", b"w")
    drill.session().take_point(ALL)
    shutil.rmtree(drill.database)
    shutil.copytree(old, drill.database)
    with pytest.raises((Replaced, Refused)):
        drill.session().take_point(ALL)
    other = Drill(tmp_path / "other")
    with open_db(other.database):
        pass
    shutil.copytree(drill.target, other.target)
    with pytest.raises(Refused, match="is the mirror of"):
        other.session().take_point(ALL)


def test_of_two_sessions_the_older_stops(drill: Drill) -> None:
    with open_db(drill.database) as database:
        database.put(b"k", b"1")
        older = drill.session()
        older.take_point(ALL)
        newer = drill.session()
        database.put(b"k", b"2")
        database.flush_wal()
        newer.take_point(ALL)
        database.put(b"k", b"3")
        database.flush_wal()
        with pytest.raises(Fenced, match="another `lithify mirror`"):
            older.take_point(ALL)
        newer.take_point(ALL)
    assert drill.rows() == {b"k": b"3"}

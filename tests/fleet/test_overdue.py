"""Work that is wanted and that no process does: it is named within a minute, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.backlog import Backlog
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.documents import decode, encode
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.checks import check_fleet
from lithify.fleet.members import FleetMember, FleetRole, MemberFiles, OverdueDataset
from lithify.fleet.metrics import COLD_AFTER_S, FleetMetrics
from lithify.fleet.status import FleetStatus, fleet_status
from lithify.fleet.view import show_status
from lithify.observe.metrics import Metrics
from lithify.protocol.finding import Severity
from tests.cli.invoking import invoke, invoke_json
from tests.fleet.playing import playing
from tests.fleet.test_official import Fleet, fill, rows
from tests.judge.official import Admin, Put, compact_officially, compactor_settings, open_db

COMPACTOR = {
    **compactor_settings(scheduler={"min_compaction_sources": "4"}),
    "worker_heartbeat_timeout": "600s",
}


@pytest.fixture(scope="module")
def of_slatedb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that SlateDB's compactor has run on, and that has work again."""
    path = fill(tmp_path_factory.mktemp("once") / "db", 5)
    compact_officially(path)
    return fill(path, 6)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with playing(Fleet(tmp_path)) as made:
        yield made


def status(fleet: Fleet) -> FleetStatus:
    return fleet_status(fleet.files, fleet.clock.now_ms())


def findings(fleet: Fleet) -> dict[str, str]:
    """What doctor says that is not well: the remedy of each, by what it says."""
    found = status(fleet)
    datasets = {url: rule for one in fleet.coordinators for url, rule in one.datasets.items()}
    return {f.says: f.do or "" for f in check_fleet(found, datasets, {}) if f.severity is not Severity.OK}


def is_done(path: Path) -> bool:
    """What was flushed is compacted."""
    return all(not tree.l0 for tree in Admin(path).trees())


def take_over(fleet: Fleet, pattern: str) -> None:
    at_ms = fleet.clock.now_ms()
    fleet.change(lambda catalog: changes.take_over(catalog, [str(fleet.folder / pattern)], at_ms))


def test_a_database_that_slatedbs_compactor_has_run_on_is_named(fleet: Fleet, of_slatedb: Path) -> None:
    (path,) = fleet.put(of_slatedb, "a")
    fleet.coordinator()
    fleet.worker()
    fleet.run(75)
    assert [one.url for one in status(fleet).overdue] == [str(path)]
    assert status(fleet).overdue_count == (1, 1)
    (near, elsewhere), (_, remedy) = findings(fleet), findings(fleet).values()
    assert near.startswith(f"{path} is near its limit, and nothing is under way: 6 of 8 wait in root")
    assert elsewhere.startswith(f"{path}: work is wanted, but coordinated elsewhere: a SlateDB coordinator")
    assert "--take-over" not in elsewhere, "that is advice for a single database"
    assert "lithify fleet take-over memory://" in remedy
    assert str(fleet.folder / "*") in remedy
    document = show_status(status(fleet)).document
    assert (document["elsewhere"], document["near_limit"]) == (1, 1)
    assert document["overdue"][0]["url"] == str(path)
    fleet.run(600)
    assert fleet.times(events.CoordinatedElsewhere, path) == 1, "reported once"
    assert fleet.times(events.NearLimit, path) == 1
    assert fleet.times(events.EpochTaken, path) == 0


def test_a_rule_owner_without_an_owner_is_named(fleet: Fleet, of_slatedb: Path) -> None:
    (path,) = fleet.put(of_slatedb, "a")
    fleet.add("a", owner=True)
    fleet.coordinator()
    fleet.worker()
    fleet.run(60)
    assert [one.url for one in status(fleet).overdue] == [str(path)]
    elsewhere = next(says for says in findings(fleet) if "elsewhere" in says)
    assert "its rule leaves it to its owner, and no process begins the work" in elsewhere
    assert "start the owner's coordinator" in findings(fleet)[elsewhere]


def test_nothing_else_is_named(fleet: Fleet, of_slatedb: Path) -> None:
    """Neither a database that the fleet compacts, nor one that is quiet, nor one whose owner is alive."""
    busy = fill(fleet.folder / "busy", 7)
    quiet = fill(fleet.folder / "quiet", 2)
    (done,) = fleet.put(of_slatedb, "done")
    compact_officially(done)
    (owned,) = fleet.put(of_slatedb, "owned")
    fleet.add("owned", owner=True)
    fleet.coordinator()
    fleet.worker()
    with open_db(owned, settings={"compactor_options": COMPACTOR}):
        for _ in range(90):
            fleet.run(1)
            assert status(fleet).overdue == ()
    assert is_done(busy)
    assert not is_done(quiet)
    assert {f for f in findings(fleet) if "rule" not in f and "match" not in f} == set()


def test_it_is_taken_over_once_an_operator_asks(fleet: Fleet, of_slatedb: Path) -> None:
    first, second = fleet.put(of_slatedb, "a", "b")
    before = rows(of_slatedb)
    fleet.coordinator()
    fleet.worker()
    fleet.run(120)
    assert not is_done(first)
    take_over(fleet, "*")
    fleet.until(lambda: is_done(first) and is_done(second), 240)
    assert rows(first) == rows(second) == before
    fleet.run(60)
    assert status(fleet).overdue == ()
    later = fill(fleet.put(of_slatedb, "c")[0], 1)
    fleet.until(lambda: is_done(later), 600)


def test_a_process_that_compacts_is_never_fenced(fleet: Fleet, of_slatedb: Path) -> None:
    """It does its work within seconds, so its database never looks abandoned."""
    (path,) = fleet.put(of_slatedb, "a")
    fleet.coordinator()
    fleet.worker()
    take_over(fleet, "*")
    with open_db(path, settings={"compactor_options": COMPACTOR}) as database:
        for _ in range(30):
            fleet.run(10)
        database.write_batch([Put(b"99", b"later")])
        database.flush()
    assert fleet.times(events.EpochTaken, path) == 0
    assert rows(path) == {**rows(of_slatedb), b"99": b"later"}


def test_what_is_taken_back_is_not_taken_again(fleet: Fleet, of_slatedb: Path) -> None:
    (path,) = fleet.put(of_slatedb, "a")
    fleet.coordinator()
    fleet.worker()
    take_over(fleet, "*")
    fleet.until(lambda: is_done(path), 240)
    taken = fleet.times(events.EpochTaken, path)
    with open_db(path, settings={"compactor_options": COMPACTOR}):
        pass  # SlateDB's coordinator takes the next epoch
    fill(path, 6)
    fleet.run(1_000)
    assert fleet.times(events.EpochTaken, path) == taken
    (one,) = status(fleet).overdue
    assert "another system has taken it back since" in one.elsewhere
    take_over(fleet, "*")
    fleet.until(lambda: is_done(path), 600)


def test_members_of_before_are_read_and_texts_are_bounded(fleet: Fleet) -> None:
    files = MemberFiles(fleet.store, "fleet")
    member = FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1)
    overdue = tuple(OverdueDataset(f"s3://b/{n}", "x" * 5_000, "\udcff") for n in range(99))
    files.beat(replace(member, elsewhere=99, overdue=overdue))
    (seen,) = files.listed()
    assert seen.says is not None
    assert len(seen.says.overdue) == 50
    assert len(seen.says.overdue[0].elsewhere) == 1_000
    before = fleet.store.get("fleet/members/coordinator-1.json")
    document = json.loads(before)
    for name in ("elsewhere", "near_limit", "overdue"):
        del document[name]
    fleet.store.put("fleet/members/coordinator-1.json", json.dumps(document).encode())
    (seen,) = files.listed()
    assert seen.says is not None
    assert seen.says.overdue == ()


def test_an_operator_asks_by_command(fleet: Fleet, of_slatedb: Path) -> None:
    (path,) = fleet.put(of_slatedb, "a")
    url = f"{fleet.memory.url}/fleet"
    added = invoke_json("fleet", "add", "--take-over", "--tenant", "red", url, str(path))
    (rule,) = [rule for rule in added["rules"] if rule["pattern"] == str(path)]
    assert rule["take_over_ms"] == fleet.files.store_time.now_ms()
    fleet.clock.advance_s(60)
    asked = invoke_json("fleet", "take-over", url, str(path))
    (again,) = [rule for rule in asked["rules"] if rule["pattern"] == str(path)]
    assert again["take_over_ms"] > rule["take_over_ms"]
    assert again == {**rule, "take_over_ms": again["take_over_ms"]}, "all else stays"
    assert "no rule has this pattern" in invoke("fleet", "take-over", url, "/none").stderr
    refused = invoke("fleet", "add", "--take-over", "--coordinated-by", "owner", url, str(path))
    assert "coordinated by their owner" in refused.stderr


def test_a_catalog_in_which_nobody_asked_is_as_older_members_read_it() -> None:
    first = changes.first_catalog("Q0")
    plain = changes.add_rules(first, [DatasetRule("s3://b/x")])
    assert b"take_over" not in encode(plain)
    asked = changes.take_over(plain, ["s3://b/x/"], 7)
    assert decode(encode(asked), "key") == asked
    assert asked.rules == (DatasetRule("s3://b/x", take_over_ms=7),)


def test_series_of_a_backlog_are_served_while_a_dataset_is_hot(fleet: Fleet) -> None:
    of_datasets = Metrics(fleet.clock, coordinates=False)
    metrics = FleetMetrics(fleet.clock, of_datasets, [FleetRole.COORDINATOR])

    def series() -> dict[str, float]:
        found = (s for family in metrics.registry.collect() for s in family.samples)
        return {s.labels["dataset"]: s.value for s in found if s.name == "lithify_seconds_until_stall"}

    metrics.saw_backlog("a", (Backlog("root", 1, 8, None),))
    assert series() == {}, "it is cold"
    metrics.saw_backlog("a", (Backlog("root", 6, 8, 90_000),))
    assert series() == {"a": 90.0}, "it is near its limit"
    metrics.saw_backlog("a", (Backlog("root", 1, 8, 900_000),))
    assert series() == {"a": 900.0}, "and was so just now"
    fleet.clock.advance_s(COLD_AFTER_S + 1)
    metrics(events.Committed("b", "01"))
    assert series() == {}

"""Who lives, for those who ask from outside: by the store's clock alone."""

from __future__ import annotations

import random

import pytest

from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.checks import check_fleet
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import DEAD_AFTER_MS, IDLE_BEAT_EVERY_MS, MISSED_BEATS, FleetMember, FleetRole
from lithify.fleet.status import FleetStatus, fleet_status
from lithify.fleet.view import show_status, show_workers
from lithify.protocol.finding import Severity
from lithify.store.metered import Verb
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import ReadOnlyStore
from lithify.testing import ManualClock
from tests.fleet.worlds import World

COORDINATOR = FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1, at_ms=1)
DATASETS = {"s3://b/x": DatasetRule("s3://b/x")}
CLOCKS = pytest.mark.parametrize("off_s", [-3600, 0, 3600])


@pytest.fixture
def world() -> World:
    made = World()
    made.init()
    return made


def asked(world: World, off_s: int = 0, store: ObjectStore | None = None) -> FleetStatus:
    """As a process sees it whose clock is so far off."""
    clock = ManualClock(world.clock.now_ms() + off_s * 1000)
    store = world.store if store is None else store
    files = FleetFiles("memory://fleet", store, "fleet", clock, world.ids, random.Random(3))
    return fleet_status(files, clock.now_ms())


def problems(found: FleetStatus) -> list[str]:
    return [f.says for f in check_fleet(found, DATASETS, {}) if f.severity is Severity.PROBLEM]


@CLOCKS
def test_the_only_member_dies(world: World, off_s: int) -> None:
    world.files.members.beat(COORDINATOR)
    world.clock.advance_s((DEAD_AFTER_MS - 1000) / 1000)
    assert [member.seen.is_alive for member in asked(world, off_s).members] == [True]
    assert problems(asked(world, off_s)) == []
    world.clock.advance_s(1)
    found = asked(world, off_s)
    (member,) = found.members
    assert (member.seen.is_alive, member.seen.silent_ms) == (False, DEAD_AFTER_MS)
    assert problems(found) == ["no coordinator watches the 1 datasets"]
    assert show_status(found).document["members"][0]["is_alive"] is False


@CLOCKS
def test_all_members_die(world: World, off_s: int) -> None:
    worker = FleetMember("worker-1", FleetRole.WORKER, "host", "0.1.0", 1, beats_ms=IDLE_BEAT_EVERY_MS)
    world.files.members.beat(COORDINATOR)
    world.files.members.beat(worker)
    world.clock.advance_s(MISSED_BEATS * IDLE_BEAT_EVERY_MS / 1000 - 1)
    alive = {member.seen.name: member.seen.is_alive for member in asked(world, off_s).members}
    assert alive == {"coordinator-1": False, "worker-1": True}
    world.clock.advance_s(1)
    assert not any(member.seen.is_alive for member in asked(world, off_s).members)
    (row,) = show_workers(asked(world, off_s)).document["workers"]
    assert row["is_alive"] is False


def test_who_may_only_read_is_told_that_it_cannot_be_seen(world: World) -> None:
    world.files.members.beat(COORDINATOR)
    world.clock.advance_s(3600)
    found = asked(world, store=ReadOnlyStore(world.store))
    assert not found.is_timed
    warnings = [f.says for f in check_fleet(found, DATASETS, {}) if f.severity is Severity.WARNING]
    assert any("the time since members' last heartbeats is unknown" in says for says in warnings)


@CLOCKS
def test_a_machine_whose_clock_is_off_is_told_so(world: World, off_s: int) -> None:
    world.files.members.beat(COORDINATOR)
    found = [f.says for f in check_fleet(asked(world, off_s), DATASETS, {}) if "this machine's" in f.says]
    where = "ahead of" if off_s > 0 else "behind"
    assert found == ([f"this machine's clock is 3600 s {where} the store's"] if off_s else [])


def test_where_nobody_ever_was_nothing_is_written(world: World) -> None:
    world.store.reset()
    asked(world)
    assert not world.store.requests[Verb.PUT]

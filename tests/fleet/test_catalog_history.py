"""Old versions of the catalog: they can be asked for, none goes that somebody needs, and the others do."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

from lithify.base import events
from lithify.base.errors import Refused, StoreError
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.history import KEEP_MS, HistoryRunEnd
from lithify.fleet.catalog.model import QueueState
from lithify.fleet.members import FORGOTTEN_AFTER_MS, FleetMember, FleetRole
from lithify.testing import FaultyStore
from lithify.watermarks.model import BlockReason
from tests.fleet.playing import play, url_of
from tests.fleet.worlds import World

COORDINATOR = FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1, needs=1)


@pytest.fixture
def world() -> World:
    made = World()
    made.init()
    return made


def change(world: World, times: int = 1) -> int:
    """Publish so many versions; the number of the last."""
    number = 0
    for _ in range(times):
        weight = 1 + world.files.catalog.read().number
        change = partial(changes.set_tenant, name="red", weight=weight)
        number = world.files.catalog.update(change).number
    return number


def needs(world: World, name: str, number: int) -> None:
    world.files.members.beat(replace(COORDINATOR, name=name, catalog=number, needs=number))


def later(world: World, milliseconds: int = KEEP_MS) -> None:
    """And all members have written since."""
    world.clock.advance_s(milliseconds / 1000)
    for member in said(world):
        world.files.members.beat(member)


def there(world: World) -> list[int]:
    return world.files.catalog.versions.ids()


def test_what_nobody_needs_goes_after_a_day(world: World) -> None:
    change(world, 4)
    needs(world, "coordinator-1", 5)
    assert world.files.history.run() == HistoryRunEnd(reason=BlockReason.NOTHING_TO_DO)
    later(world)
    assert world.files.history.run().cut_below == 5
    assert there(world) == [5]
    assert world.files.catalog.read().number == 5
    assert world.files.history.run().reason is BlockReason.NOTHING_TO_DO
    assert change(world) == 6


def test_who_has_not_looked_for_long_changes_the_latest(world: World) -> None:
    """Also where nothing would have to change in what it had seen, of which nobody can tell any more."""
    sleeper = world.process()
    queue_id = sleeper.catalog.read().catalog.queues[0].id
    world.files.catalog.update(lambda catalog: changes.pause_queue(catalog, queue_id))
    needs(world, "coordinator-1", change(world, 3))
    later(world)
    world.files.history.run()
    sleeper.catalog.update(lambda catalog: changes.resume_queue(catalog, queue_id))
    assert world.files.catalog.read().catalog.queues[0].state is QueueState.ACTIVE


def test_what_was_the_newest_within_a_day_stays(world: World) -> None:
    change(world, 2)
    needs(world, "coordinator-1", 3)
    later(world, KEEP_MS // 2)
    change(world, 2)
    later(world, KEEP_MS // 2)
    assert world.files.history.run().cut_below == 3
    assert there(world) == [3, 4, 5]


def test_what_a_member_works_with_stays_however_old(world: World) -> None:
    change(world, 4)
    needs(world, "coordinator-1", 5)
    needs(world, "worker-1", 3)
    later(world)
    assert world.files.history.run() == HistoryRunEnd(cut_below=3, by="worker-1")
    assert there(world) == [3, 4, 5]
    assert world.files.history.run() == HistoryRunEnd(reason=BlockReason.HELD, by="worker-1")
    world.files.members.leave("worker-1")
    assert world.files.history.run().cut_below == 5


def test_what_a_reader_holds_stays_until_its_lease_is_over(world: World) -> None:
    change(world, 4)
    needs(world, "coordinator-1", 5)
    history = world.files.history
    history.holds.take("reader", "me", 2, KEEP_MS + 60_000, {})
    later(world)
    assert history.run() == HistoryRunEnd(cut_below=2, by="reader")
    assert history.at(2).tenants[0].weight == 2
    later(world, 61_000)
    assert history.run().cut_below == 5
    assert history.holds.list() == ()
    with pytest.raises(Refused, match="came too late"):
        history.holds.take("late", "me", 4, 60_000, {})


def test_a_member_that_has_not_said_what_it_needs_keeps_all(world: World) -> None:
    change(world, 4)
    needs(world, "coordinator-1", 5)
    world.files.members.beat(replace(COORDINATOR, name="coordinator-2", needs=0))
    later(world)
    assert world.files.history.run() == HistoryRunEnd(reason=BlockReason.UNPUBLISHED, by="coordinator-2")
    world.store.put("fleet/members/coordinator-2.json", b"junk")
    assert world.files.history.run() == HistoryRunEnd(reason=BlockReason.MISSING_MEMBER, by="coordinator-2")
    assert there(world) == [1, 2, 3, 4, 5]


def test_a_version_and_a_time_are_answered_or_too_old(world: World) -> None:
    first_ms = world.clock.now_ms()
    for _ in range(4):
        world.clock.advance_s(100)
        change(world)
    needs(world, "coordinator-1", 5)
    history = world.files.history
    assert [history.number_at(first_ms + ms) for ms in (0, 99_999, 100_000, 250_000, 10**9)] == [
        1,
        1,
        2,
        3,
        5,
    ]
    assert history.at(3).tenants[0].weight == 3
    with pytest.raises(Refused, match="no fleet at that time"):
        history.number_at(first_ms - 1)
    with pytest.raises(Refused, match="there is no catalog 6 yet"):
        history.at(6)
    later(world)
    history.run()
    with pytest.raises(Refused, match="catalog 3 is too old: those up to 4 were deleted"):
        history.at(3)
    with pytest.raises(Refused, match="of that time is too old"):
        history.number_at(first_ms + 250_000)
    # What a sleeper creates again behind the boundary is nobody's answer.
    world.store.put("fleet/catalog/00000000000000000003.json", b"{}")
    with pytest.raises(Refused, match="catalog 3 is too old"):
        history.at(3)


def test_a_run_may_die_at_any_request(world: World) -> None:
    """Then nothing that is needed is gone, and the next run does the rest."""
    change(world, 6)
    needs(world, "coordinator-1", 7)
    needs(world, "worker-1", 4)
    later(world)
    rng = random.Random(5)
    for _ in range(60):
        flaky = world.process(FaultyStore.seeded(world.store, rng, 0.2))
        with suppress(StoreError):
            flaky.history.run()
        assert set(there(world)) >= {4, 5, 6, 7}
        assert world.files.catalog.read().number == 7
    world.files.history.run()
    assert there(world) == [4, 5, 6, 7]


SHORT = mock.patch("lithify.fleet.catalog.history.KEEP_MS", 60_000)


def test_a_compaction_holds_the_catalog_it_was_admitted_under() -> None:
    with play() as world, SHORT:
        world.dataset("a", 5)
        coordinator, worker = world.coordinator(), world.worker(stepped=True)
        world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
        admitted = world.files.catalog.read().number
        newest = change(world, 3)
        world.run(320)
        assert {member.needs for member in said(world)} == {admitted}
        assert coordinator.truncation == HistoryRunEnd(cut_below=admitted, by=coordinator.name)
        assert there(world)[0] == admitted
        world.engines[worker.name].run_all()
        world.until(lambda: world.texts() == {"a": 1}, 60)
        world.run(320)
        assert there(world) == [newest]


def test_who_was_away_for_too_long_works_with_the_newest() -> None:
    with play() as world, SHORT:
        world.dataset("a", 5)
        sleeper, worker = world.coordinator(), world.worker(stepped=True)
        world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
        world.coordinators.remove(sleeper)
        world.workers.remove(worker)
        world.coordinator()
        newest = change(world, 3)
        world.run(FORGOTTEN_AFTER_MS // 1000 + 700)
        assert there(world) == [newest]
        world.coordinators.append(sleeper)
        world.workers.append(worker)
        world.run(40)
        assert {member.needs for member in said(world)} == {newest}


def said(world: World) -> list[FleetMember]:
    return [seen.says for seen in world.files.members.listed() if seen.says is not None]

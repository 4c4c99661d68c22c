"""A worker that has nothing to do says so more rarely; nobody takes it for dead, and it is there at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lithify.base import events
from lithify.fleet.catalog.changes import pause_queue
from lithify.fleet.members import BEAT_EVERY_MS, IDLE_BEAT_EVERY_MS, FleetMember
from tests.fleet.playing import Play, play, url_of


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def said_in(world: Play, seconds: int) -> list[FleetMember]:
    """What the only worker says in the time."""
    found: list[FleetMember] = []

    def look() -> None:
        (worker,) = (seen.says for seen in world.files.members.listed() if seen.says is not None)
        if worker not in found[-1:]:
            found.append(worker)

    world.run(seconds, look)
    return found[1:]


def test_it_beats_once_a_minute(world: Play) -> None:
    world.worker()
    world.run(2)
    said = said_in(world, 3_600)
    assert 60 <= len(said) <= 63
    assert {member.beats_ms for member in said[1:]} == {IDLE_BEAT_EVERY_MS}, "soon after its start"


def test_no_coordinator_takes_it_for_dead(world: Play) -> None:
    coordinator = world.coordinator()
    worker = world.worker()
    world.run(300)
    missed: list[str] = []

    def look() -> None:
        alive = {seen.name for seen in world.files.members.listed() if seen.is_alive}
        missed.extend({coordinator.name, worker.name} - alive)

    world.run(600, look)
    assert not missed


def test_it_says_at_once_that_it_is_busy(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    worker = world.worker(slots=1, stepped=True)
    world.run(300)
    assert not world.seen(events.Claimed)
    world.dataset("a", 4)
    world.files.wakes.wake(url_of("a"))
    world.until(lambda: bool(world.seen(events.Claimed)), 60)
    world.run(2)
    (says,) = (seen.says for seen in world.files.members.listed() if seen.name == worker.name)
    assert says is not None
    assert (len(says.running), says.beats_ms) == (1, BEAT_EVERY_MS)


def test_it_hears_of_a_new_catalog_as_soon_as_others(world: Play) -> None:
    worker = world.worker()
    world.run(300)
    world.change(lambda catalog: pause_queue(catalog, catalog.queues[0].id))
    world.run(BEAT_EVERY_MS // 1000 + 1)
    (says,) = (seen.says for seen in world.files.members.listed() if seen.name == worker.name)
    assert says is not None
    assert says.catalog == world.files.catalog.read().number

"""Compactions of a queue that share slots: more at once, and nothing else is different."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from lithify.base import events
from lithify.fleet.catalog import changes
from lithify.fleet.status import fleet_status
from tests.fleet.playing import Play, play, url_of

SMALL_BYTES = 1_000
PER_SLOT = 4


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        small = made.queue("small", SMALL_BYTES)
        made.change(partial(changes.set_queue, queue_id=small, per_slot=PER_SLOT))
        yield made


def running(world: Play) -> int:
    return sum(world.seen(events.Claimed).values()) - sum(world.seen(events.Compacted).values())


def test_so_many_run_to_a_slot_and_no_more(world: Play) -> None:
    for n in range(20):
        world.dataset(f"d{n:02}", 5)
    world.coordinator()
    worker = world.worker(slots=2, stepped=True)
    world.run(30)
    assert running(world) == 2 * PER_SLOT
    small = fleet_status(world.files, world.clock.now_ms()).queue("small")
    assert (small.slots, small.running) == (2 * PER_SLOT, 2 * PER_SLOT)
    world.run(60, world.engines[worker.name].run_all)
    assert set(world.committed().values()) == {1}


def test_what_is_large_has_a_slot_of_its_own(world: Play) -> None:
    world.dataset("large", 5, size=SMALL_BYTES)
    world.coordinator()
    world.worker(slots=2, stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("large")] == 1, 60)
    for n in range(20):
        world.dataset(f"d{n:02}", 5)
        world.files.wakes.wake(url_of(f"d{n:02}"))
    world.run(400)
    assert running(world) == 1 + PER_SLOT


def test_what_is_large_has_its_turn_though_something_small_always_waits(world: Play) -> None:
    """When only a part of a slot becomes free at a time."""
    names = [f"d{n:02}" for n in range(12)]
    for name in names:
        world.dataset(name, 5)
    world.dataset("large", 1, size=SMALL_BYTES)
    world.coordinator()
    worker = world.worker(slots=1, stepped=True)
    engine = world.engines[worker.name]

    def one_ends() -> None:
        engine.step()
        for name in names:
            if len(world.dataset(name).snapshot()) == 1:
                world.dataset(name, 4)
                world.files.wakes.wake(url_of(name))

    world.run(60, one_ends)
    assert running(world) >= PER_SLOT - 1
    world.dataset("large", 5, size=SMALL_BYTES)
    world.files.wakes.wake(url_of("large"))
    world.run(120, one_ends)
    assert world.committed()[url_of("large")] == 1

"""Who is slow is not dead, who hangs is; and of what is said by two at once the newest stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lithify.base import events
from lithify.fleet.coordinator import FleetCoordinator
from lithify.fleet.members import LONGEST_ROUND_S, FleetMember, FleetRole, MemberFiles, MemberHeartbeat
from lithify.fleet.status import fleet_status
from tests.fleet.playing import ALL, Play, play, url_of
from tests.fleet.worlds import World

NAMES = [f"d{n}" for n in range(12)]
LATE = [f"late{n}" for n in range(12)]


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def two_coordinators(world: Play) -> tuple[FleetCoordinator, FleetCoordinator]:
    """Both lead something, all of it runs, and there is more to be found."""
    for name in NAMES:
        world.dataset(name, 5)
    first, second = world.coordinator(), world.coordinator()
    world.worker(slots=20, stepped=True)
    world.until(lambda: len(world.seen(events.Claimed)) == len(NAMES), 60)
    for name in LATE:
        world.dataset(name, 2)
    return first, second


def slow_in(world: Play, slow: FleetCoordinator, prefix: str, each: Callable[[], None], seconds: int) -> None:
    """Play until a round of this coordinator takes so long, once, for what begins so."""
    is_ticking = is_over = False

    def slowly(what: str) -> None:
        nonlocal is_ticking, is_over
        if not is_ticking or is_over or not what.startswith(prefix):
            return
        is_ticking, is_over = False, True
        for _ in range(seconds):
            slow.beat()
            world.run(1)
            each()

    world.slowly = slowly
    world.coordinators.remove(slow)
    while not is_over:
        is_ticking = True
        slow.tick()
        is_ticking = False
        world.run(1)


@pytest.mark.parametrize("what", [ALL, url_of("late")])
def test_a_coordinator_in_a_slow_round_keeps_what_it_has(world: Play, what: str) -> None:
    first, second = two_coordinators(world)
    before = set(first.watched)
    assert before

    def is_left_alone() -> None:
        status = fleet_status(world.files, world.clock.now_ms())
        assert all(member.seen.is_alive for member in status.members)
        assert not before & set(second.watched)

    slow_in(world, first, what, is_left_alone, 120)
    world.coordinators.append(first)
    world.run(60)
    assert before <= set(first.watched)
    assert {world.dataset(name).epoch() for name in NAMES} == {1}


def test_a_coordinator_that_hangs_is_taken_over(world: Play) -> None:
    first, second = two_coordinators(world)
    taken_s: list[float] = []
    started_s = 0.0

    def is_taken() -> None:
        nonlocal started_s
        started_s = started_s or world.clock.monotonic_s()
        if {url_of(name) for name in NAMES} <= set(second.watched):
            taken_s.append(world.clock.monotonic_s())

    slow_in(world, first, url_of("late"), is_taken, round(LONGEST_ROUND_S) + 60)
    assert LONGEST_ROUND_S < taken_s[0] - started_s <= LONGEST_ROUND_S + 45
    world.coordinators.append(first)
    world.run(60)
    assert not set(first.watched) & set(second.watched)


def test_a_worker_that_opens_slowly_keeps_its_slots(world: Play) -> None:
    world.dataset("a", 5)
    world.coordinator()
    worker = world.worker()
    is_slow = False

    def slowly(what: str) -> None:
        if is_slow:
            for _ in range(120):
                worker.beat()
                world.run(1)
            (queue,) = fleet_status(world.files, world.clock.now_ms()).queues
            assert queue.slots == 2

    world.slowly = slowly
    world.workers.remove(worker)
    while world.texts()["a"] != 1:
        is_slow = True
        worker.tick()
        is_slow = False
        world.run(1)


class Interrupted(MemberFiles):
    """Something else happens before what is written is there."""

    before: Callable[[], None] | None = None

    def beat(self, member: FleetMember) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        super().beat(member)


@pytest.mark.parametrize("leaves", [True, False])
def test_of_what_two_say_at_once_the_newest_stands(leaves: bool) -> None:
    world = World()
    files = Interrupted(world.store, "fleet")
    old = FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1)
    new = replace(old, catalog=2)
    pulse = MemberHeartbeat(old.name, files, world.clock)
    with pulse.round():
        pulse.say(old)
        world.clock.advance_s(10)
        files.before = pulse.leave if leaves else lambda: pulse.say(new)
        pulse.beat()
    assert [seen.says for seen in files.listed()] == ([] if leaves else [new])


def test_between_rounds_nobody_says_anything() -> None:
    world = World()
    files = MemberFiles(world.store, "fleet")
    pulse = MemberHeartbeat("coordinator-1", files, world.clock)
    with pulse.round():
        pulse.say(FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1))
    (before,) = files.listed()
    world.clock.advance_s(20)
    pulse.beat()
    assert [seen.last_ms for seen in files.listed()] == [before.last_ms]

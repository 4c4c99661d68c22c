"""Who is beside coordinators and workers: writers, a vandal, a person, and members that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lithify.base.errors import LithifyError
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import Catalog, DatasetRule, Queue, QueueState
from lithify.testing.faulty import Crash
from simulator.fleet.judge import Judge
from simulator.fleet.scenario import (
    MAX_SOURCES,
    MIN_SOURCES,
    SMALL_QUEUE,
    SMALL_QUEUE_BYTES,
    Anew,
)
from simulator.fleet.seats import Seat
from simulator.fleet.shelves import PATTERN, Place
from simulator.fleet.world import FLEET, Process, World

_LOOK_MS = 1_000
_OWNER_LOOKS_MS = 5_000
_AWAY_MS = 25_000
_ANEW_MS = 30_000
_AT_A_WRITE_SHARE = 0.7
_LOSABLE = ("boards", "bells", "memory", "members", "wakes")
_LOST_SHARE = 0.2


class Arrivals:
    """Lets names arrive at a dataset."""

    def __init__(self, world: World, place: Place) -> None:
        self._world = world
        self._place = place
        self.is_over = False

    def run(self) -> None:
        """Until it is over; what is not hot ends when the world is calm."""
        world, place, rng = self._world, self._place, self._world.rng
        if place.plan.is_idle:
            return
        next_ms = world.now_ms + rng.randint(1, 2 * place.plan.pause_ms)
        while not self.is_over:
            world.scheduler.sleep_ms(_LOOK_MS)
            if place.plan.is_hot:
                for unit in range(place.plan.units):
                    place.add(unit, MAX_SOURCES)
            elif world.is_calm:
                return
            elif world.now_ms >= next_ms:
                place.add(rng.randrange(place.plan.units), rng.randint(1, 4))
                next_ms = world.now_ms + rng.randint(1, 2 * place.plan.pause_ms)


def trouble(world: World, place: Place) -> None:
    """Something is wrong with a dataset for a while."""
    if place.plan.trouble is None:
        return
    kind, start_ms, end_ms = place.plan.trouble
    world.scheduler.sleep_ms(start_ms)
    world.count(f"trouble: {kind.name.lower()}")
    world.log(place.plan.name, f"from now on {kind.value}")
    place.trouble = kind
    world.scheduler.sleep_ms(end_ms - start_ms)
    place.trouble = None
    world.log(place.plan.name, "is well again")


class MadeAnew:
    """Somebody deletes a dataset that is worked on, and makes another one in its place: at some time, or just
    before a process creates a version in it."""

    def __init__(self, world: World, judge: Judge, place: Place, backup: Mapping[str, bytes]) -> None:
        self._world = world
        self._judge = judge
        self._place = place
        self._backup = backup
        self._what = world.rng.choice(tuple(Anew))
        self._gap_ms = world.rng.choice((0, 0, 30_000))
        self.is_over = False

    def run(self) -> None:
        """Do it, within a time that is drawn."""
        world, place = self._world, self._place
        until_ms = world.now_ms + world.rng.randint(0, _ANEW_MS)
        if world.rng.random() < _AT_A_WRITE_SHARE:
            place.before_version = self._drop
        world.scheduler.sleep_ms(until_ms - world.now_ms)
        if place.before_version is not None or not self._is_dropped:
            place.before_version = None
            self._drop()
        while not self.is_over:
            world.scheduler.sleep_ms(_LOOK_MS)

    _is_dropped = False

    def _drop(self) -> None:
        world, what = self._world, self._what
        world.count(f"anew: {what.name.lower()}{' later' if self._gap_ms else ''}")
        world.log("world", f"{self._place.plan.name} is gone")
        self._is_dropped = True
        self._place.drop(keeps_own=what is Anew.BESIDE)
        self._judge.made_anew(self._place)
        if self._gap_ms:
            world.scheduler.spawn(self._make, self._gap_ms)
        else:
            self._make()

    def _make(self) -> None:
        place, what = self._place, self._what
        self._world.log("world", f"in the place of {place.plan.name} is {what.value}")
        if what is Anew.BACKUP:
            place.put_back(self._backup)
            self._judge.made_anew(place)
        for unit in range(place.plan.units):
            place.add(unit, MIN_SOURCES)
        self.is_over = True


def owner(world: World, place: Place) -> None:
    """Coordinates a dataset as its own process does, until nothing goes wrong any more."""
    while not world.is_calm:
        place.owner_compacts()
        world.scheduler.sleep_ms(_OWNER_LOOKS_MS)


def vandal(world: World, judge: Judge) -> None:
    """Deletes what may be lost."""
    while world.scenario.vandal_pause_ms:
        world.scheduler.sleep_ms(world.rng.randint(1, 2 * world.scenario.vandal_pause_ms))
        if world.is_calm:
            return
        for part in _LOSABLE:
            for meta in world.objects.list(f"{FLEET}/{part}"):
                if world.rng.random() < _LOST_SHARE:
                    judge.deletes(None, meta.key)
                    world.objects.delete(meta.key)
                    world.count(f"fault: {part} lost")


def coming(world: World, seats: Sequence[Seat]) -> None:
    """Lets members leave, and come back."""
    while world.scenario.coming_pause_ms:
        world.scheduler.sleep_ms(world.rng.randint(1, 2 * world.scenario.coming_pause_ms))
        if world.is_calm:
            return
        seat = world.rng.choice(seats)
        seat.is_wanted = False
        world.scheduler.sleep_ms(world.rng.randint(1, _AWAY_MS))
        seat.is_wanted = True


def person(world: World) -> None:
    """Changes the catalog, one process after the other."""
    process = world.process_of("person")
    while world.scenario.person_pause_ms:
        process.sleep_ms(world.rng.randint(1, 2 * world.scenario.person_pause_ms))
        if world.is_calm:
            return
        try:
            _change(world, process)
        except Crash:
            process = world.process_of("person")


def _change(world: World, process: Process) -> None:
    rng = world.rng

    def change(catalog: Catalog) -> Catalog:
        small, place = catalog.find(SMALL_QUEUE), rng.choice(tuple(world.places.values()))
        what = rng.choice(("queue", "queue", "tenant", "rule", "weight"))
        if what == "queue":
            if small is None:
                return changes.create_queue(catalog, small_queue(world))
            change = rng.choice(
                (changes.pause_queue, changes.resume_queue, changes.drain_queue, changes.delete_queue)
            )
            return change(catalog, small.id)
        if what == "tenant":
            return changes.set_tenant(catalog, "red", weight=rng.randint(1, 9))
        if what == "rule":
            if catalog.rule_for(place.url) == DatasetRule(PATTERN):
                return changes.add_rules(catalog, [DatasetRule(place.url, tenant="red")])
            return changes.remove_rules(catalog, [place.url])
        return changes.set_queue(catalog, catalog.queue("default").id, weight=rng.randint(1, 9))

    try:
        number = process.files.catalog.update(change).number
        world.count("event: catalog changed")
        process.log(f"makes catalog {number}")
    except LithifyError as error:
        process.log(f"cannot change the catalog: {error}")


def small_queue(world: World) -> Queue:
    """A queue for what is small."""
    return Queue(SMALL_QUEUE, world.ids.ulid(world.now_ms), SMALL_QUEUE_BYTES, **queue_limits(world))


def queue_limits(world: World) -> dict[str, Any]:
    """How much of a queue there is for whom."""
    scenario = world.scenario
    return {
        "largest_share": scenario.largest_share,
        "longest_backlog": scenario.longest_backlog,
        "reserved_slots": scenario.reserved_slots,
    }


def restore(world: World) -> None:
    """There is a small queue, and nothing is paused."""

    def change(catalog: Catalog) -> Catalog:
        small = catalog.find(SMALL_QUEUE)
        if small is None:
            return changes.create_queue(catalog, small_queue(world))
        if small.state is not QueueState.ACTIVE:
            return changes.resume_queue(catalog, small.id)
        return catalog

    world.files.catalog.update(change)

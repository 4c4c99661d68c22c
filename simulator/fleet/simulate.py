"""One run: a fleet over many datasets while things go wrong, then peace, then rest.

1. Fleet and datasets are made; coordinators and workers start.
2. For `BUSY_MS` work arrives and things go wrong. The judge sees everything that is written.
3. Then nothing goes wrong any more; clocks stay as they are. A person restores the queues and wakes what was
   left alone; healthy units that failed are forgiven. After `SETTLE_MS` it is peace.
4. Something new arrives everywhere, and the hot dataset goes on being hot; one drill is held. All other
   healthy work is done within the patience of the scenario.
5. Then the hot one is done as well. A dataset that has work is made anew, and what is there then is done too.
6. Leaderships are given back, and for `QUIET_MS` nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from simulator.core.outcome import Outcome
from simulator.core.recording import played
from simulator.fleet import rules
from simulator.fleet.judge import ADMITTED_AFTER_PAUSE_MS, Judge
from simulator.fleet.people import (
    Arrivals,
    MadeAnew,
    coming,
    owner,
    person,
    queue_limits,
    restore,
    small_queue,
    trouble,
    vandal,
)
from simulator.fleet.replaced import replacements
from simulator.fleet.scenario import (
    BUSY_MS,
    FAILOVER_MS,
    MAX_SOURCES,
    MIN_SOURCES,
    QUIET_MS,
    REST_S,
    SETTLE_MS,
    SMALL_QUEUE,
    TENANT,
    Drill,
)
from simulator.fleet.seats import CoordinatorSeat, Seat, WorkerSeat
from simulator.fleet.shelves import PATTERN
from simulator.fleet.world import World

_START_MS = 10_000
_LOOK_MS = 1_000
_FROZEN_MS = 60_000
_PAUSED_MS = 90_000
_WOKEN_MS = 70_000
"""After the start of the calm: who leaves a dataset to others has looked again by then."""
_WOKEN_SHARE = 0.5
"""Of datasets where something arrives; the others are looked at in their turn."""
_UNSETTLED_MS = 180_000
"""By the end of it all know who has come and gone."""
_TOLD_MS = 420_000
"""The longest pause between two polls, the pause of a dataset that is elsewhere, and the patience before
overdue work is reported."""
_REST_MS = round(REST_S * 1_000) + 60_000


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play one seed. `trace` is given a line for everything that happens."""
    world = World(seed, trace=trace)

    def play() -> None:
        world.make_places()
        _make_fleet(world)
        world.watcher = judge = Judge(world)
        try:
            _play(world, judge)
        finally:
            world.end()
            world.watcher = None
            judge.close()

    return played(world, replacements(world), play)


def _play(world: World, judge: Judge) -> None:
    scenario, until_ms = world.scenario, world.now_ms + BUSY_MS
    coordinators: list[Seat] = [CoordinatorSeat(world, judge) for _ in range(scenario.coordinators)]
    workers: list[Seat] = [WorkerSeat(world, judge, plan) for plan in scenario.workers]
    joins = CoordinatorSeat(world, judge)
    joins.is_wanted = False
    arrivals = [Arrivals(world, place) for place in world.places.values()]
    seats = [*coordinators, *workers]
    for seat in (*seats, joins):
        world.scheduler.spawn(seat.run, world.rng.randint(0, _START_MS))
    for one in arrivals:
        world.scheduler.spawn(one.run)
    for place in world.places.values():
        world.scheduler.spawn(partial(trouble, world, place))
        if place.plan.is_foreign:
            world.scheduler.spawn(partial(owner, world, place))
    world.scheduler.spawn(lambda: vandal(world, judge))
    world.scheduler.spawn(lambda: coming(world, seats))
    world.scheduler.spawn(lambda: person(world))
    world.scheduler.run_until(until_ms)
    _settle(world, judge, seats)
    backups = {name: place.backup() for name, place in world.places.items()}
    _siege(world, judge, coordinators, workers, joins)
    for one in arrivals:
        one.is_over = True
    _until_done(world, judge, rules.DONE, with_hot=True)
    _check_told(world, judge)
    _make_anew(world, judge, backups)
    world.scheduler.run_until(world.now_ms + _REST_MS)
    judge.check_end()
    judge.is_quiet = True
    world.scheduler.run_until(world.now_ms + QUIET_MS)
    judge.check_catalogs()
    judge.check_cared()


def _make_fleet(world: World) -> None:
    catalog = changes.first_catalog(world.ids.ulid(world.now_ms))
    catalog = changes.set_queue(catalog, catalog.queues[0].id, **queue_limits(world))
    catalog = changes.create_queue(catalog, small_queue(world))
    catalog = changes.set_tenant(catalog, TENANT, most_running=world.scenario.most_running)
    owned = [place for place in world.places.values() if place.plan.tenant is not None]
    of_tenant = [DatasetRule(place.url, tenant=place.plan.tenant) for place in owned]
    world.files.catalog.create(changes.add_rules(catalog, [DatasetRule(PATTERN), *of_tenant]))


def _settle(world: World, judge: Judge, seats: Sequence[Seat]) -> None:
    world.calm()
    until_ms = world.now_ms + SETTLE_MS
    for seat in seats:
        seat.is_wanted = True
    restore(world)
    world.scheduler.run_until(world.now_ms + _WOKEN_MS)
    restore(world)  # a change of a process that slept may have come late
    for place in world.places.values():
        place.trouble = place.trouble if place.plan.is_damaged else None
        for failure in place.truth.journal.failures():
            place.truth.journal.forgive(failure.compaction)
        if not place.plan.is_idle:
            world.files.wakes.wake(place.url)
    world.scheduler.run_until(until_ms)
    world.log("world", "it is peace")
    judge.begin_peace()


def _siege(
    world: World, judge: Judge, coordinators: Sequence[Seat], workers: Sequence[Seat], joins: Seat
) -> None:
    drill, scheduler = world.scenario.drill, world.scheduler
    world.count(f"drill: {drill.value}")
    world.log("world", f"drill: {drill.value}")
    seat = world.rng.choice(coordinators)
    _arrive(world)
    if drill not in (Drill.NOTHING, Drill.PAUSE):
        judge.unsettled(_UNSETTLED_MS)
    if drill is Drill.JOIN:
        joins.is_wanted = True
    elif drill is Drill.LEAVE:
        seat.is_wanted = False
    elif drill is Drill.KILL:
        seat.kill()
        scheduler.run_until(world.now_ms + FAILOVER_MS)
        judge.check_failover()
    elif drill is Drill.FREEZE and seat.process is not None:
        seat.process.frozen_until_ms = world.now_ms + _FROZEN_MS
    elif drill is Drill.KILL_WORKER:
        world.rng.choice(workers).kill()
    elif drill is Drill.PAUSE:
        _pause(world, judge)
    scheduler.run_until(world.now_ms + 20_000)
    seat.is_wanted = True
    if all(not plan.is_hot for plan in world.scenario.shelves):
        return
    _until_done(world, judge, rules.STARVED, with_hot=False)


def _pause(world: World, judge: Judge) -> None:
    small = world.files.catalog.read().catalog.queue(SMALL_QUEUE)
    world.files.catalog.update(lambda catalog: changes.pause_queue(catalog, small.id))
    judge.paused_ms = world.now_ms
    world.scheduler.run_until(world.now_ms + ADMITTED_AFTER_PAUSE_MS)
    _arrive(world)
    world.scheduler.run_until(world.now_ms + _PAUSED_MS - ADMITTED_AFTER_PAUSE_MS)
    judge.paused_ms = None
    restore(world)


def _check_told(world: World, judge: Judge) -> None:
    """The work of owners that are gone is reported, and taken over once that was requested."""
    foreign = [place for place in world.places.values() if place.plan.is_foreign]
    for place in foreign:
        place.add(0, MAX_SOURCES)
    world.scheduler.run_until(world.now_ms + _TOLD_MS)
    judge.check_told()
    asked_ms = world.files.store_time.now_ms()
    taken = [replace(DatasetRule(p.url, tenant=p.plan.tenant), take_over_ms=asked_ms) for p in foreign]
    if taken:
        world.files.catalog.update(lambda catalog: changes.add_rules(catalog, taken))
        judge.is_taken = True
        _until_done(world, judge, rules.DONE, with_hot=True)
        world.count("event: taken over")


def _make_anew(world: World, judge: Judge, backups: Mapping[str, Mapping[str, bytes]]) -> None:
    plans = [plan for plan in world.scenario.shelves if plan.is_healthy and not plan.is_idle]
    place = world.places[world.rng.choice(plans).name]
    anew = MadeAnew(world, judge, place, backups[place.plan.name])
    for unit in range(place.plan.units):
        place.add(unit, MIN_SOURCES)
    world.files.wakes.wake(place.url)
    world.scheduler.spawn(anew.run)
    while not anew.is_over:
        world.scheduler.run_until(world.now_ms + _LOOK_MS)
    _until_done(world, judge, rules.ANEW, with_hot=True)
    judge.check_anew()


def _arrive(world: World) -> None:
    """Something new for every healthy one that is not hot."""
    for place in world.places.values():
        if place.plan.is_healthy and not (place.plan.is_idle or place.plan.is_hot):
            for unit in range(place.plan.units):
                place.add(unit, MIN_SOURCES)
            if world.rng.random() < _WOKEN_SHARE:
                world.files.wakes.wake(place.url)


def _until_done(world: World, judge: Judge, rule: str, *, with_hot: bool) -> None:
    deadline_ms = world.now_ms + world.scenario.patience_ms()
    while (left := judge.what_is_left(with_hot=with_hot)) is not None:
        if world.now_ms >= deadline_ms:
            patience_s = world.scenario.patience_ms() / 1000
            raise world.fail(rule, f"{patience_s:.0f} s of peace were not enough: {left}")
        world.scheduler.run_until(world.now_ms + _LOOK_MS)

"""One run: several datasets in one pool while things go wrong, then peace, then nothing healthy may be left.

1. The datasets are made. Each has a coordinator; one or two pools of workers serve all of them.
2. For `BUSY_MS` work arrives: in a hot dataset as soon as something of it was committed, in others now and
   then. Meanwhile the seed's troubles come and go. The judge sees everything that is written, and looks every
   second.
3. Then nothing arrives and nothing goes wrong any more; poisoned units go on failing. Healthy units that
   failed because of their dataset are forgiven. Within the patience of the scenario everything healthy is
   done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lithify.base.errors import LithifyError
from lithify.base.ids import Ulid
from lithify.service import control
from simulator.core.outcome import Outcome
from simulator.core.recording import played
from simulator.several import rules
from simulator.several.databases import MIN_SOURCES, DatabasePlace
from simulator.several.judge import Judge
from simulator.several.places import Place
from simulator.several.replaced import replacements
from simulator.several.scenario import BUSY_MS, Kind, Period
from simulator.several.services import PoolSeat, run_coordinators
from simulator.several.tables import TablePlace
from simulator.several.waiting_rules import LOOK_MS
from simulator.several.world import World

_START_MS = 2_000
_KINDS: dict[Kind, Callable[..., Place]] = {Kind.DATABASE: DatabasePlace, Kind.TABLE: TablePlace}


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play one seed. `trace` is given a line for everything that happens."""
    world = World(seed, trace=trace)
    return played(world, replacements(world), lambda: _play(world))


def _play(world: World) -> None:
    busy_until_ms = world.now_ms + BUSY_MS
    places = {plan.name: _KINDS[plan.kind](world, plan) for plan in world.scenario.datasets}
    world.watcher = judge = Judge(world, places)
    _begin(world, judge, places)
    _run(world, judge, busy_until_ms)
    world.is_calm = True
    world.log("world", "from now on nothing arrives and nothing goes wrong")
    for place in places.values():
        for compaction in judge.forgive(place.name):
            place.truth.journal.forgive(Ulid(compaction))
    _drain(world, judge)


def _begin(world: World, judge: Judge, places: dict[str, Place]) -> None:
    scenario, spawn = world.scenario, world.scheduler.spawn
    for place in places.values():
        spawn(partial(run_coordinators, world, place), world.rng.randint(0, _START_MS))
        spawn(partial(_write, world, place), world.rng.randint(0, _START_MS))
        for period in place.plan.troubles:
            spawn(partial(_trouble, world, place, period), period.start_ms)
    seats = [PoolSeat(world, judge, places, number) for number in range(scenario.pools)]
    for seat in seats:
        spawn(seat.run, 2 * _START_MS)
    for times_ms, for_good in ((scenario.engine_ends_ms, True), (scenario.engine_stumbles_ms, False)):
        for at_ms in times_ms:
            spawn(partial(_take_down, world, seats, for_good=for_good), at_ms)
    for at_ms in scenario.kill_ms:
        spawn(partial(_kill, world, seats), at_ms)
    if scenario.person_pause_ms:
        spawn(lambda: _cancel(world, places), scenario.person_pause_ms)


def _run(world: World, judge: Judge, end_ms: int) -> None:
    while world.now_ms < end_ms:
        world.scheduler.run_until(min(end_ms, world.now_ms + LOOK_MS))
        judge.look()


def _drain(world: World, judge: Judge) -> None:
    patience_ms = max(map(world.scenario.patience_ms, world.scenario.datasets))
    deadline_ms = world.now_ms + patience_ms
    while (left := judge.what_is_left()) is not None:
        if world.now_ms >= deadline_ms:
            raise world.fail(rules.DRAINED, f"{patience_ms / 1000:.0f} s of peace were not enough: {left}")
        _run(world, judge, world.now_ms + LOOK_MS)


# Who has a part


def _write(world: World, place: Place) -> None:
    """Let work arrive."""
    rng, plan = world.rng, place.plan
    for unit in range(plan.units):
        place.add(unit, _batch(world, place))
    next_ms = world.now_ms + rng.randint(1, 2 * plan.pause_ms)
    before = place.sources()
    while not world.is_calm:
        world.scheduler.sleep_ms(LOOK_MS)
        now = place.sources()
        if plan.is_hot:
            for unit in range(plan.units):
                name = place.unit_name(unit)
                if not before.get(name, frozenset()) <= now.get(name, frozenset()):
                    place.add(unit, _batch(world, place))
        elif world.now_ms >= next_ms:
            place.add(rng.randrange(plan.units), _batch(world, place))
            next_ms = world.now_ms + rng.randint(1, 2 * plan.pause_ms)
        before = place.sources()


def _batch(world: World, place: Place) -> int:
    return world.rng.randint(MIN_SOURCES, place.plan.max_batch)


def _trouble(world: World, place: Place, period: Period) -> None:
    place.begin(period.trouble)
    world.scheduler.sleep_ms(period.end_ms - period.start_ms)
    place.end()


def _take_down(world: World, seats: list[PoolSeat], *, for_good: bool) -> None:
    engine = world.rng.choice(seats).engine
    if engine is not None and engine.failure is None:
        world.count("fault: engine ends" if for_good else "fault: engine stumbles")
        engine.go_down(for_good=for_good)


def _kill(world: World, seats: list[PoolSeat]) -> None:
    world.rng.choice(seats).kill()


def _cancel(world: World, places: dict[str, Place]) -> None:
    """A person who does not want some compaction now."""
    while not world.is_calm:
        place = world.rng.choice(list(places.values()))
        if place.trouble is None:
            dataset = place.open("person")
            try:
                if found := control.active(dataset):
                    control.cancel(dataset, world.clock, [world.rng.choice(found)])
                    world.count("event: person cancelled")
            except LithifyError as error:
                world.log("person", f"cannot cancel: {error}")
        world.scheduler.sleep_ms(world.rng.randint(1, 2 * world.scenario.person_pause_ms))

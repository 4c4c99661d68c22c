"""One run: a group that many change while its copies are compacted and things go wrong, then peace, then all
must be alike.

1. The group is made with its copies. Each has what was written before, or the beginning of it, and joins some
   time later, in any order.
2. For `BUSY_MS` everybody does what he does. The judge sees all of it.
3. Then nothing goes wrong any more, transactions end, nothing new comes, and who was removed stays away. All
   copies and readers must come to the end, and everything that may go must go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulator.core.outcome import Outcome
from simulator.core.recording import played
from simulator.groups import rules
from simulator.groups.copies import run_compactor, run_copier
from simulator.groups.judge import Judge
from simulator.groups.log import Log, extended
from simulator.groups.parts import seat
from simulator.groups.people import (
    empty_state,
    run_leader,
    run_overreach,
    run_person,
    run_producer,
    write,
)
from simulator.groups.readers import run_reader, run_scanner
from simulator.groups.replaced import replacements
from simulator.groups.scenario import BUSY_MS, SETTLE_MS
from simulator.groups.world import HOME, Process, World

_LEADERS = 2
_LOOK_MS = 5_000


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play one seed. `trace` is given a line for everything that happens."""
    world = World(seed, trace=trace)
    return played(world, replacements(world), lambda: _play(world))


def _play(world: World) -> None:
    world.watcher = judge = Judge(world)
    _begin(world)
    world.scheduler.run_until(world.now_ms + BUSY_MS)
    world.calm()
    until_ms = world.now_ms + SETTLE_MS
    while missing := judge.missing():
        if world.now_ms >= until_ms:
            raise world.fail(rules.CONVERGES, missing)
        world.scheduler.run_until(world.now_ms + _LOOK_MS)


def _begin(world: World) -> None:
    scenario = world.scenario
    world.logs[HOME] = Log(incarnation=world.ids.uuid().hex)
    for _ in range(scenario.written_before):
        write(world)
    written = world.logs[HOME].records
    copies = [HOME, *(f"copy{number}" for number in range(1, scenario.copies + 1))]
    for name in copies[1:]:
        lag = world.rng.randint(0, len(written))
        world.logs[name] = extended(Log(incarnation=world.ids.uuid().hex), written[:lag], lag)
    world.wanted |= set(copies)
    world.unjoined = set(copies)

    def begin_group() -> None:
        world.process("founder").files.begin(copies)

    world.scheduler.spawn(begin_group)
    world.scheduler.run_until(world.now_ms + 1_000)
    world.faults = scenario.faults
    world.scheduler.spawn(lambda: run_producer(world))
    for name in copies:
        world.scheduler.spawn(partial(_run_copy, world, name))
    for number in range(1, scenario.readers + 1):
        name = f"reader{number}"
        world.states[name] = empty_state(world)
        world.wanted.add(name)
        world.scheduler.spawn(partial(seat, world, name, partial(run_reader, name=name)))
    bodies: list[tuple[str, Callable[[Process], None]]]
    bodies = [("leader", run_leader)] * _LEADERS
    bodies += [("scanner", run_scanner)] * (scenario.scanners if scenario.retention_ms else 0)
    bodies += [("overreach", run_overreach), ("person", run_person)]
    for kind, body in bodies:
        world.scheduler.spawn(partial(seat, world, kind, body))


def _run_copy(world: World, name: str) -> None:
    """Begin the processes of a copy some time after the group was made."""
    world.scheduler.sleep_ms(world.rng.randint(0, world.scenario.begins_within_ms))
    for kind, run in (("copier", run_copier), ("compactor", run_compactor)):
        if name != HOME or run is run_compactor:
            world.scheduler.spawn(partial(seat, world, f"{kind} {name}", partial(run, name=name), name))

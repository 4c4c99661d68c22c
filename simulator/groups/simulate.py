"""One run: a group that many change while its copies are compacted and things go wrong, then peace, then all
must be alike.

1. The copy that producers write to begins the group, empty like the others.
2. For `BUSY_MS` everybody does what he does. The judge sees all of it.
3. Then nothing goes wrong any more, transactions end, nothing new comes, and who was removed stays away. All
   copies and readers must come to the end, and everything that may go must go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lithify.watermarks.groups import GroupRole
from lithify.watermarks.model import GroupMember
from simulator.core.outcome import Outcome
from simulator.core.recording import played
from simulator.groups import rules
from simulator.groups.copies import run_compactor, run_copier
from simulator.groups.judge import Judge
from simulator.groups.log import Log
from simulator.groups.parts import seat
from simulator.groups.people import (
    empty_state,
    run_leader,
    run_overreach,
    run_person,
    run_producer,
)
from simulator.groups.readers import run_reader, run_scanner
from simulator.groups.replaced import replacements
from simulator.groups.scenario import BUSY_MS, SETTLE_MS
from simulator.groups.world import HOME, PARTITION, World

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
    home = Log(incarnation=world.ids.uuid().hex)
    world.logs[HOME] = home

    def begin_group() -> None:
        member = GroupMember(HOME, home.incarnation)
        world.process("founder").files.join(member, GroupRole.COPY, {PARTITION: home.end})

    world.scheduler.spawn(begin_group)
    world.scheduler.run_until(world.now_ms + 1_000)
    world.faults = scenario.faults
    world.scheduler.spawn(lambda: run_producer(world))
    world.scheduler.spawn(partial(seat, world, "compactor home", lambda p: run_compactor(p, HOME), HOME))
    for number in range(1, scenario.copies + 1):
        name = f"copy{number}"
        world.logs[name] = Log(incarnation=world.ids.uuid().hex)
        world.wanted.add(name)
        for kind, run in (("copier", run_copier), ("compactor", run_compactor)):
            world.scheduler.spawn(partial(seat, world, f"{kind} {name}", partial(run, name=name), name))
    for number in range(1, scenario.readers + 1):
        name = f"reader{number}"
        world.states[name] = empty_state(world)
        world.wanted.add(name)
        world.scheduler.spawn(partial(seat, world, name, partial(run_reader, name=name)))
    bodies = [("leader", run_leader)] * _LEADERS
    bodies += [("scanner", run_scanner)] * (scenario.scanners if scenario.retention_ms else 0)
    bodies += [("overreach", run_overreach), ("person", run_person)]
    for kind, body in bodies:
        world.scheduler.spawn(partial(seat, world, kind, body))

"""Who writes to the log, who leads the group, and a person who changes it."""

from __future__ import annotations

from dataclasses import replace

from lithify.base.errors import Fenced
from lithify.coordination.groups import decode, encode
from lithify.store.versions import Version
from lithify.watermarks.groups import Thresholds, Track
from lithify.watermarks.model import Threshold
from simulator.groups.log import Kind, Record, extended
from simulator.groups.parts import now_and_then
from simulator.groups.world import HOME, PARTITION, Process, State, World

_PRODUCERS = 2
_MAX_ROWS = 4
_ROWS_PER_KEY = 5
_MAX_BACKUPS = 4
_MAX_OVERREACH = 20
_GARBAGE_SHARE = 0.1


def run_producer(world: World) -> None:
    """Write rows and tombstones, plain ones and those of transactions, which end some time. Nothing goes
    wrong with that: it is the broker's part."""
    scenario, rng = world.scenario, world.rng
    while not world.is_calm:
        world.scheduler.sleep_ms(rng.randint(1, 2 * scenario.produce_pause_ms))
        write(world)
    for open_one in tuple(world.truth.waiting):
        _end(world, open_one)


def write(world: World) -> None:
    """Write some rows, and sometimes end the open transactions."""
    rng = world.rng
    producer = rng.randint(1, _PRODUCERS) if rng.random() < world.scenario.transactions else None
    for _ in range(rng.randint(1, _MAX_ROWS)):
        _append(world, _row(world, producer))
    if rng.random() < 0.4:
        for open_one in tuple(world.truth.waiting):
            _end(world, open_one)


def _row(world: World, producer: int | None) -> Record:
    offset = world.truth.end
    is_tombstone = world.rng.random() < 0.45
    key = f"k{offset // _ROWS_PER_KEY + world.rng.randrange(world.scenario.keys)}"
    return Record(offset, key, None if is_tombstone else f"v{offset}", producer)


def _end(world: World, producer: int) -> None:
    kind = world.rng.choice((Kind.COMMIT, Kind.ABORT))
    world.count(f"event: {kind.value}")
    _append(world, Record(world.truth.end, producer=producer, kind=kind))


def _append(world: World, record: Record) -> None:
    world.truth.append(record)
    world.set_log("producer", HOME, extended(world.logs[HOME], (record,), record.offset + 1))


def run_leader(process: Process) -> None:
    """Take the next epoch and publish for a while, again and again."""
    now_and_then(process, 4 * process.world.scenario.publish_pause_ms, lambda: _lead(process))


def _lead(process: Process) -> None:
    world, rng = process.world, process.rng
    epoch = process.files.lead(process.name)
    process.count("event: leader")
    try:
        for _ in range(rng.randint(1, 15)):
            process.files.publish(epoch)
            if rng.random() < _GARBAGE_SHARE:
                process.files.collect_garbage()
            process.sleep_ms(rng.randint(1, 2 * world.scenario.publish_pause_ms))
    except Fenced:
        process.count("event: leader is fenced")


def run_overreach(process: Process) -> None:
    """A leader of another make, which reckons wrong: its thresholds are too high."""
    pause_ms = process.world.scenario.overreach_pause_ms
    if pause_ms:
        now_and_then(process, pause_ms, lambda: _overreach(process))


def _overreach(process: Process) -> None:
    world = process.world
    if world.is_calm:
        return

    def change(version: Version | None) -> bytes | None:
        assert version is not None
        group = process.files.files.decode(version, decode)
        old = group.thresholds_of(PARTITION)
        more = world.rng.randint(1, _MAX_OVERREACH)
        positions = (min(world.truth.end, old.of(track) + more) for track in Track)
        new = Thresholds(*(Threshold(position) for position in positions))
        return encode(replace(group, thresholds={**group.thresholds, PARTITION: new}))

    process.files.files.update(change, process.clock, process.rng)
    process.count("event: thresholds too high")


def run_person(process: Process) -> None:
    """Add and remove, restore and rewind."""
    pause_ms = process.world.scenario.person_pause_ms
    if pause_ms:
        now_and_then(process, pause_ms, lambda: _meddle(process))


def _meddle(process: Process) -> None:
    world, rng = process.world, process.rng
    if world.is_calm:
        _remove_the_unwanted(process)
        process.files.expect(sorted(world.wanted & set(world.logs)))
        return
    for name, log in world.logs.items():
        world.backups.setdefault(name, []).append(log)
    for name, state in world.states.items():
        world.past_states.setdefault(name, []).append(state)
    name = rng.choice([*world.logs, *world.states])
    if name == HOME:
        return
    if name not in world.wanted:
        world.wanted.add(name)
        if name in world.logs:
            process.files.expect([name])
        process.count("event: member comes back")
    elif rng.random() < 0.3:
        if name in world.logs:
            name = _slowest(world)
        world.wanted.discard(name)
        world.unjoined.discard(name)
        process.files.leave(name)
        process.count("event: member removed")
    elif name in world.states:
        _rewind(process, name)
    else:
        _restore(process, name)


def _slowest(world: World) -> str:
    """The copy that keeps the others, as they may think."""
    return min(sorted(world.wanted & set(world.logs) - {HOME}), key=lambda name: world.logs[name].end)


def _remove_the_unwanted(process: Process) -> None:
    """Some removal failed, or whoever was removed was just about to join."""
    group = process.files.read()
    for name in {*group.members, *group.expected}:
        if name not in process.world.wanted:
            process.files.leave(name)


def _rewind(process: Process, name: str) -> None:
    """An older state is back; or only the position, below which the reader has more than it knows."""
    world, rng = process.world, process.rng
    past = rng.choice(world.past_states[name][-_MAX_BACKUPS:])
    now = world.states[name]
    is_state = rng.random() < 0.5 or past.position > now.position
    world.set_state(process.name, name, past if is_state else replace(now, position=past.position))
    process.count("event: reader rewound")


def _restore(process: Process, name: str) -> None:
    """An older copy is back. Either its processes were stopped before, or it has a new incarnation."""
    world, rng = process.world, process.rng
    backup = rng.choice(world.backups[name][-_MAX_BACKUPS:])
    if rng.random() < 0.5:
        for one in world.living.pop(name, ()):
            one.is_dead = True
        process.log(f"restores {name} as it was")
    else:
        backup = replace(backup, incarnation=process.files.new_incarnation())
        process.log(f"restores {name} as another incarnation")
    world.set_log(process.name, name, backup)
    process.count("event: copy restored")


def empty_state(world: World) -> State:
    return State(world.ids.uuid().hex)

"""Readers: registered ones that keep state, and scanners whom nobody knows.

A registered reader does as a copy does: it notices that it has less than it has said, joins with what it has
or with nothing, reads copies that are as clean as what it has adopted, and keeps what it has read only if it
is still a member then. What it goes on from it looks at once it has read it: an older state may have been put
back since it found itself a member. It says what it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lithify.coordination.membership import Kept
from lithify.watermarks.groups import GroupRole, GroupState, Marks, is_source, lost
from simulator.groups import rules
from simulator.groups.copies import entered, is_still_member
from simulator.groups.log import Log, Record, latest, shown
from simulator.groups.parts import now_and_then
from simulator.groups.world import PARTITION, Process, State

_MAX_READ = 5
_MAX_CHUNK = 2
_CHUNK_PAUSE_MS = 4_000


def run_reader(process: Process, name: str) -> None:
    """Read what is new, again and again."""
    now_and_then(process, process.world.scenario.read_pause_ms, lambda: _read(process, name))


def _read(process: Process, name: str) -> None:
    member = entered(process, name, GroupRole.READER, ReaderMemberState(process, name))
    if member is None:
        return
    before = process.files.said(member)
    state = process.read_state(name)
    if state.incarnation != member.incarnation or lost(before, {PARTITION: state.standing}) is not None:
        return
    process.files.say(member, {PARTITION: state.standing})
    found = _some_copy(process, process.files.read())
    if found is None or not is_source(Marks(clean=state.clean), state.position, found[1].marks):
        return
    rows, position = _rows(found[1], state.position, process.rng.randint(1, _MAX_READ))
    if position == state.position or not is_still_member(process, name, member):
        return
    after = replace(state, position=position, rows={**state.rows, **latest(rows)})
    if process.change_state(name, lambda now: after if now == state else None):
        process.count("event: reader commits")
        process.log(f"has read {found[0]} to {position}")


class ReaderMemberState:
    """A reader's state, as far as a membership changes it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name

    def read(self) -> Kept:
        state = self._process.read_state(self._name)
        return Kept(state.incarnation, {PARTITION: state.standing})

    def renew(self, before: Kept, incarnation: str) -> bool:
        return self._change(before, lambda state: replace(state, incarnation=incarnation))

    def empty(self, before: Kept, incarnation: str) -> bool:
        return self._change(before, lambda state: State(incarnation))

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        return self._change(before, lambda state: replace(state, clean=marks[PARTITION].clean))

    def _change(self, before: Kept, change: Callable[[State], State]) -> bool:
        def changed(state: State) -> State | None:
            now = Kept(state.incarnation, {PARTITION: state.standing})
            return change(state) if before.is_in(now) else None

        return self._process.change_state(self._name, changed) is not None


def run_scanner(process: Process) -> None:
    """Read a copy from its beginning, without telling anybody, again and again."""
    now_and_then(process, process.world.scenario.read_pause_ms, lambda: _scan(process))


def _scan(process: Process) -> None:
    world = process.world
    began_ms = process.now_ms
    found = _some_copy(process, process.files.read())
    if found is None:
        return
    name, log = found
    rows: dict[str, Record] = {}
    position, incarnation = 0, log.incarnation
    most = process.rng.randint(1, len(log.records) + 1)  # what is old at once, what is new slowly
    while process.now_ms - began_ms < world.scenario.retention_ms and log.incarnation == incarnation:
        new, after = _rows(log, position, most)
        most = process.rng.randint(1, _MAX_CHUNK)
        if after == position:
            process.count("event: scan")
            return
        position = after
        rows.update(latest(new))
        wrong = world.truth.wrong(rows, position)
        if wrong is not None:
            raise world.fail(rules.FLOOR, f"{process.name} reads {name} to {position}: {wrong[1]}")
        process.sleep_ms(process.rng.randint(1, _CHUNK_PAUSE_MS))
        log = process.read_log(name)


def _some_copy(process: Process, group: GroupState) -> tuple[str, Log] | None:
    """A copy, if it is what the group knows."""
    copies = [one for one in group.members.values() if one.role is GroupRole.COPY]
    if not copies:
        return None
    chosen = process.rng.choice(copies).member
    log = process.read_log(chosen.name)
    return (chosen.name, log) if log.incarnation == chosen.incarnation else None


def _rows(log: Log, begin: int, most: int) -> tuple[list[Record], int]:
    """Up to so many rows from some position on, and the next position."""
    rows, end = shown(log)
    there, end = [row for row in rows if row.offset >= begin], max(begin, end)
    return there[:most], end if len(there) <= most else there[most - 1].offset + 1

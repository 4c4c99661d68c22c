"""The judge: sees every change of a copy and of a reader's state, every version of the group and all that its
members say, and knows from what was ever written what must hold (`rules`)."""

from __future__ import annotations

import json

from lithify.coordination.groups import decode
from lithify.store.keys import parse_key
from lithify.watermarks.groups import REQUIRED, GroupState, Marks, Track
from lithify.watermarks.model import GroupMember
from simulator.core.outcome import Violation
from simulator.groups import rules
from simulator.groups.log import Log, Record, latest, markers, shown, without_tombstones
from simulator.groups.world import FOLDER, PARTITION, Process, State, World

_SAID = ("clean", "resolved", "end", "markers_end")
_NOTHING = [0] * len(_SAID)
_LEADER, _OVERREACH = "leader", "overreach"


class Judge:
    """Watches; raises `Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._group = GroupState()
        self._number = 0
        self._said: dict[str, list[int]] = {}
        """What each incarnation has said (`_SAID`)."""
        self._adopted: dict[GroupMember, Marks] = {}

    # Copies and readers

    def changed(self, who: str, name: str, value: Log | State) -> None:
        if isinstance(value, State):
            wrong = self._world.truth.wrong(value.rows, value.position)
            if wrong is not None:
                raise self._fail(rules.READERS, f"{who}: {name} at {value.position}: {wrong[1]}")
            return
        rows, stable = shown(value)
        end = value.end
        if stable < self._world.truth.stable_end(end):
            raise self._fail(rules.STUCK, f"{who}: {name} to {end} waits at {stable}")
        aborted = [row.offset for row in rows if row.offset in self._world.truth.aborted]
        if aborted:
            raise self._fail(rules.ABORTED, f"{who}: {name} shows {aborted}")
        wrong = self._world.truth.wrong(latest(rows), stable)
        if wrong is not None:
            raise self._fail(wrong[0], f"{who}: {name}: {wrong[1]}")

    # The group

    def wrote(self, process: Process, key: str, data: bytes) -> None:
        if key.startswith(f"{FOLDER}/marks/"):
            self._wrote_marks(process, key, data)
        elif key.startswith(f"{FOLDER}/group/"):
            number = parse_key(key, f"{FOLDER}/group", ".json") or 0
            if number <= self._number:  # it came behind the boundary, and does not count
                return
            self._number = number
            before, self._group = self._group, decode(data, key)
            self._world.unjoined -= self._group.members.keys()
            if self._group.differing:
                raise self._fail(rules.OFFSETS, f"{process.name} finds {self._group.differing}")
            self._check_leader(process, before, self._group)
            self._check_thresholds(process, before, self._group)

    def _wrote_marks(self, process: Process, key: str, data: bytes) -> None:
        name = key.rpartition("/")[2]
        if name not in {_marks_name(one.member) for one in self._group.members.values()}:
            return  # it is over, and its marks may have been deleted meanwhile
        fields = json.loads(data)["marks"][str(PARTITION)]
        now = [fields[field] for field in _SAID]
        then = self._said.get(name, _NOTHING)
        if any(new < old for new, old in zip(now, then, strict=True)):
            raise self._fail(rules.MARKS, f"{process.name}: {name} says {now} after {then}")
        self._said[name] = now

    def _check_leader(self, process: Process, before: GroupState, after: GroupState) -> None:
        for name, one in after.members.items():
            if before.members.get(name) is None or before.members[name].member != one.member:
                self._adopted[one.member] = one.marks.get(PARTITION, Marks())
        if process.kind != _LEADER:
            return
        is_published = after.epoch == before.epoch
        if is_published and before.leader != process.name:
            text = f"{process.name} publishes in epoch {before.epoch}, which is that of {before.leader}"
            raise self._fail(rules.LEADERS, text)
        if not is_published and after.epoch != before.epoch + 1:
            raise self._fail(rules.LEADERS, f"{process.name} goes from epoch {before.epoch} to {after.epoch}")
        then = {one.member for one in before.members.values()}
        now = {one.member for one in after.members.values()}
        if now != then:
            raise self._fail(rules.LEADERS, f"{process.name} changes {sorted(map(str, then ^ now))}")

    def _check_thresholds(self, process: Process, before: GroupState, after: GroupState) -> None:
        old, new = before.thresholds_of(PARTITION), after.thresholds_of(PARTITION)
        for track in Track:
            if new.of(track) < old.of(track):
                text = f"{process.name} lowers {track} from {old.of(track)} to {new.of(track)}"
                raise self._fail(rules.THRESHOLDS, text)
            if new.of(track) > old.of(track) and process.kind != _OVERREACH:
                self._check_raised(process, after, track, new.of(track))

    def _check_raised(self, process: Process, group: GroupState, track: Track, position: int) -> None:
        if self._world.unjoined:
            text = (
                f"{process.name} raises {track} to {position}, {sorted(self._world.unjoined)} have not joined"
            )
            raise self._fail(rules.EXPECTED, text)
        for one in group.members.values():
            if one.role in REQUIRED[track]:
                said = self._said.get(_marks_name(one.member), _NOTHING)
                known = max(Marks(*said[:2]).of(track), self._adopted[one.member].of(track))
                if known < position:
                    text = f"{process.name} raises {track} to {position}, {one.member.name} is at {known}"
                    raise self._fail(rules.THRESHOLDS, text)

    # The end

    def missing(self) -> str:
        """What is still to be done once nothing goes wrong any more; nothing when all is as it should be."""
        world = self._world
        end, latest_rows = world.truth.end, world.truth.latest()
        members = {name for name, one in self._group.members.items()}
        if members != world.wanted:
            return f"the members are {sorted(members)}, not {sorted(world.wanted)}"
        for name in sorted(world.wanted & set(world.states)):
            state = world.states[name]
            if state.position != end or without_tombstones(state.rows) != latest_rows:
                return f"reader {name} is at {state.position} of {end}"
        for name in sorted(world.wanted & set(world.logs)):
            log = world.logs[name]
            if log.end != end or without_tombstones(latest(shown(log)[0])) != latest_rows:
                return f"copy {name} is at {log.end} of {end}, or has something else"
            if any(map(_may_go, log.records)) and not (world.scenario.keeps_transactions and _is_kept(log)):
                return f"copy {name} has something left that may go"
        thresholds = self._group.thresholds_of(PARTITION)
        if thresholds.clean != end or thresholds.resolved < world.truth.markers_end:
            return f"the thresholds are {self._group.thresholds_of(PARTITION)} of {end}"
        return ""

    def _fail(self, rule: str, text: str) -> Violation:
        return self._world.fail(rule, text)


def _may_go(record: Record) -> bool:
    return not record.is_row or record.is_tombstone or record.producer is not None


def _is_kept(log: Log) -> bool:
    """Whether transactions are all that is left, each with a row."""
    ends = markers(log.records)
    full = {marker.offset for marker in ends.values()}
    return all(
        not record.is_tombstone and (record.producer is None or record.offset in (full | ends.keys()))
        for record in log.records
    )


def _marks_name(member: GroupMember) -> str:
    return f"{member.name}~{member.incarnation}.json"

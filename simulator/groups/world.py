"""What the processes of one run share: a store with the group in it, the copies, and the states of readers.

Copies and states are values, replaced in one step on condition of what they were, and each call that does it
can go wrong like one of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lithify.coordination.groups import GroupFiles
from lithify.watermarks.groups import Marks, PartitionStanding
from simulator.core.processes import CallFaults, FaultyProcess, SharedWorld
from simulator.groups.log import Log, Record
from simulator.groups.scenario import Scenario
from simulator.groups.truth import Truth

FOLDER = "group of t"
PARTITION = 0
HOME = "home"
"""The copy that producers write to. It is never lost."""

ValueT = TypeVar("ValueT", bound="Log | State")


@dataclass(frozen=True, slots=True)
class State:
    """What a registered reader keeps: all below a position, and the newest row of each key there."""

    incarnation: str = ""
    position: int = 0
    clean: int = 0
    """Adopted when it had nothing."""
    rows: Mapping[str, Record] = field(default_factory=dict)

    @property
    def standing(self) -> PartitionStanding:
        return PartitionStanding(Marks(clean=max(self.clean, self.position)), self.position)


class Watcher(Protocol):
    """Is told of all changes once they are done."""

    def wrote(self, process: Process, key: str, data: bytes) -> None: ...

    def changed(self, who: str, name: str, value: Log | State) -> None: ...


class World(SharedWorld[Scenario, Watcher]):
    """All that the processes of one run share."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__("groups", seed, Scenario.draw, trace)
        self.faults = CallFaults()
        self.truth = Truth()
        self.logs: dict[str, Log] = {}
        self.states: dict[str, State] = {}
        self.backups: dict[str, list[Log]] = {}
        self.past_states: dict[str, list[State]] = {}
        self.wanted: set[str] = {HOME}
        """Copies and readers that are to be members."""
        self.compacted: dict[str, Log] = {}
        """By name, what the last whole round of a copy found and did not change."""
        self.unjoined: set[str] = set()
        """Copies that the group was made with and that have never joined. A copy that was removed is not
        among them."""
        self.living: dict[str, list[Process]] = {}
        """The processes of each copy."""

    def process(self, kind: str) -> Process:
        """A new process with a name of its own."""
        return Process(self, kind)

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.faults = CallFaults()
        self.is_calm = True
        self.log("world", "from now on nothing goes wrong, and everybody catches up")

    def set_log(self, who: str, name: str, log: Log) -> None:
        self.logs[name] = log
        self._changed(who, name, log)

    def set_state(self, who: str, name: str, state: State) -> None:
        self.states[name] = state
        self._changed(who, name, state)

    def _changed(self, who: str, name: str, value: Log | State) -> None:
        if self.watcher is not None:
            self.watcher.changed(who, name, value)


class Process(FaultyProcess):
    """One process: its view of the group, the copies and the readers' states."""

    def __init__(self, world: World, kind: str) -> None:
        super().__init__(world, world.objects, kind, 0)
        self.world = world
        self.files = GroupFiles(self.store, FOLDER, self.clock, self.ids, self.rng)

    def read_log(self, name: str) -> Log:
        return self.call(f"read copy {name}", lambda: self.world.logs[name])

    def change_log(self, name: str, what: str, change: Callable[[Log], Log | None]) -> Log | None:
        """Replace a copy by what `change` makes of it, in one step; `None` when it changes nothing."""

        def commit() -> Log | None:
            after = change(self.world.logs[name])
            if after is not None:
                self.log(f"{what}: {_told(after)}")
                self.world.set_log(self.name, name, after)
            return after

        return self.call(f"change copy {name}", commit)

    def read_state(self, name: str) -> State:
        return self.call(f"read the state of {name}", lambda: self.world.states[name])

    def change_state(self, name: str, change: Callable[[State], State | None]) -> State | None:
        """The same for the state of a reader."""

        def commit() -> State | None:
            after = change(self.world.states[name])
            if after is not None:
                self.world.set_state(self.name, name, after)
            return after

        return self.call(f"change the state of {name}", commit)


def _told(log: Log) -> str:
    rows = " ".join(map(_told_record, log.records))
    return f"{log.incarnation[:4]} to {log.end}, {log.marks.clean}/{log.marks.resolved}: {rows}"


def _told_record(record: Record) -> str:
    of = "" if record.producer is None else f" of {record.producer}"
    if not record.is_row:
        return f"[{record.offset} {record.kind.value}{of}]"
    return f"[{record.offset} {record.key}{'-' if record.is_tombstone else ''}{of}]"

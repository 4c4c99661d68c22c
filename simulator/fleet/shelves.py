"""A dataset of this world: a numbered list of names, in units. A compaction replaces names of a unit by one.

A *name* stands for something that has arrived, or for all that was put together under it. What that is stands
in `Place.contents`, which only the judge reads. Ledger, lease, journal and numbered files are Lithify's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.base.backlog import Backlog
from lithify.base.errors import CorruptObject, DatasetNotFound
from lithify.base.ids import Ulid, ulid_ms
from lithify.base.jsonvalues import text
from lithify.coordination.ledger_documents import LedgerFormat, Values
from lithify.datasets.own_ledger import OwnLedgerDataset
from lithify.planning.admission import Capacity
from lithify.protocol.lease import EpochHeld, Lease
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Proposal, TaskIdentity
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.versions import Version, VersionedFiles
from simulator.fleet.scenario import MAX_SOURCES, MIN_SOURCES, ShelfPlan, Trouble

if TYPE_CHECKING:
    from simulator.fleet.world import Process, World

Named = tuple[str, int]
"""A name, and how many bytes it stands for."""
Names = tuple[Named, ...]
Spec = tuple[str, ...]
ShelfCompaction = Compaction[Spec, None, Named]
ShelfLedger = Ledger[Spec, None, Named]
LEDGERS: LedgerFormat[Spec, None, Named] = LedgerFormat(
    Values(lambda spec: {"names": spec}, lambda found: tuple(map(text, found["names"]))),
    Values(lambda part: part, lambda found: None),
    Values(list, lambda found: (text(found[0]), int(found[1]))),
)
FOLDER = "data"
PATTERN = f"shelf:///{FOLDER}/*"


def url_of(name: str) -> str:
    return f"shelf:///{FOLDER}/{name}"


def unit_of(name: str) -> str:
    return name.partition("/")[0]


def is_own(key: str) -> bool:
    """Whether Lithify keeps this object beside a dataset."""
    return key.split("/")[2] == "_lithify"


def compaction_of(name: str) -> str | None:
    """Which compaction has made it; `None` for what has arrived."""
    made, dot, _ = name.partition("/")[2].partition(".")
    return made if dot else None


@dataclass(frozen=True, slots=True)
class Task:
    """What a range is to the engine."""

    shelf: str
    compaction: str
    sources: Spec
    size: int


def put_together(task: Task) -> Named:
    raise AssertionError("the engine of this world does it")


class Shelf(OwnLedgerDataset[Names, Spec, None, Named]):
    """One dataset, as a process opens it; without one, as it is."""

    def __init__(self, place: Place, process: Process | None) -> None:
        world, root = place.world, f"{FOLDER}/{place.plan.name}"
        store = world.told_objects if process is None else process.store_of(place)
        clock = world.clock if process is None else process.clock
        folder = f"{root}/_lithify"
        super().__init__(url_of(place.plan.name), store, folder, LEDGERS, clock, world.ids, world.rng)
        self._place = place
        self._process = process
        self.index = VersionedFiles(
            store,
            f"{root}/index",
            ".json",
            f"{root}/index.boundary",
            world.ids,
            clock=clock,
            bond=self._bond,
        )

    def change(self, change: Callable[[Names], Names]) -> None:
        """Publish what `change` makes of the names."""

        def apply(version: Version | None) -> bytes | None:
            before = () if version is None else decode(version.data, "")
            after = change(before)
            return None if after == before and version is not None else json.dumps(after).encode()

        self.index.update(apply, self._clock, self._rng)

    def _read_snapshot(self) -> Names:
        return self._names(self.index.confirmed())

    def glance(self) -> tuple[ShelfLedger | None, Names]:
        return self.observers.both(self._ledger.read(), self._names(self.index.latest()))

    def _names(self, version: Version | None) -> Names:
        if self._process is not None:
            self._place.check(self._process)
            if version is None:
                raise DatasetNotFound(f"{self.url} is not there")
            self._place.looked(self._process)
        return () if version is None else decode(version.data, self.index.key(version.id))

    def why_held(self, epoch: int, lease: Lease | None) -> EpochHeld | None:
        is_ours = lease is not None and lease.proves(epoch, self.has_taken, self.may_have_taken)
        return (
            EpochHeld("its owner may be alive", "") if self._place.plan.is_foreign and not is_ours else None
        )

    def backlog(self, snapshot: Names, now_ms: int) -> tuple[Backlog, ...]:
        return tuple(
            Backlog(unit, len(names), MAX_SOURCES, 0 if len(names) >= MAX_SOURCES else None)
            for unit, names in by_unit(snapshot).items()
        )

    def identify(self, spec: Spec) -> TaskIdentity:
        unit = unit_of(spec[0])
        return TaskIdentity(unit, unit, frozenset(spec), frozenset(spec))

    def capacity(self, snapshot: Names) -> Capacity:
        return Capacity(max_running=16)

    def newest_ms(self, snapshot: Names) -> int:
        return max((ulid_ms(Ulid(name.partition("/")[2][:26])) for name, _ in snapshot), default=0)

    def cost_bytes(self, spec: Spec, snapshot: Names) -> int:
        return sum(size for name, size in snapshot if name in spec)

    def output_name(self, output: Named) -> str:
        return output[0]

    def output_bytes(self, output: Named) -> int:
        return output[1]

    def priority(self, spec: Spec, snapshot: Names) -> float:
        return min(1.0, len(by_unit(snapshot).get(self.identify(spec).unit, ())) / MAX_SOURCES)

    def propose(self, snapshot: Names, ledger: ShelfLedger, held: Held = NOTHING_HELD) -> Plan[Spec]:
        busy = {self.identify(c.spec).unit for c in ledger.active()}
        proposals, notes = [], []
        for unit, names in by_unit(snapshot).items():
            spec = tuple(name for name in names if name not in held)
            if len(spec) < len(names):
                notes.append(held[next(name for name in names if name in held)])
            if unit not in busy and len(spec) >= MIN_SOURCES:
                cost_bytes = self.cost_bytes(spec, snapshot)
                proposals.append(Proposal(spec, self.priority(spec, snapshot), cost_bytes, "enough of them"))
        return Plan(tuple(sorted(proposals, key=lambda p: (-p.priority, p.spec))), tuple(notes))

    def save_planner_state(self, plan: Plan[Spec], shed: Sequence[Spec], *, is_queue_empty: bool) -> None: ...

    def validate(self, compaction: ShelfCompaction, snapshot: Names, ledger: ShelfLedger) -> str | None:
        if not set(compaction.spec) <= dict(snapshot).keys():
            return "some of it is not there any more"
        others = (c for c in ledger.active() if c.id != compaction.id)
        if any(set(c.spec) & set(compaction.spec) for c in others):
            return "another compaction has some of it"
        return None

    def needs_worker(self, compaction: ShelfCompaction, snapshot: Names) -> bool:
        return True

    def prepare(self, compaction: ShelfCompaction, snapshot: Names, slots: int = 0) -> RangeJob[None]:
        size = max((size for name, size in snapshot if name in compaction.spec), default=0)
        task = Task(self._place.plan.name, compaction.id, compaction.spec, size)
        return RangeJob((RangeWork(None, put_together, task, self.cost_bytes(compaction.spec, snapshot)),))

    def outcome(self, result: Named) -> RangeOutcome[Named]:
        return RangeOutcome((result,), result[1], result[1], {}, 0.0, 0)

    def commit(
        self,
        compactions: Sequence[ShelfCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        verdicts: dict[Ulid, str | None] = {}

        def change(names: Names) -> Names:
            self.check_epoch(epoch)
            for compaction in compactions:
                if set(compaction.outputs) <= set(names):
                    verdicts[compaction.id] = None  # by who crashed, or was fenced, after it
                    continue
                verdicts[compaction.id] = self.validate(compaction, names, Ledger())
                if verdicts[compaction.id] is None:
                    left = tuple(one for one in names if one[0] not in compaction.spec)
                    names = (*left, *compaction.outputs)
            return names

        self.change(change)
        return verdicts

    def was_committed(self, compaction: ShelfCompaction) -> bool:
        return set(compaction.outputs) <= set(self.snapshot())


class Place:
    """One dataset and what is true of it."""

    def __init__(self, world: World, plan: ShelfPlan) -> None:
        self.world = world
        self.plan = plan
        self.url = url_of(plan.name)
        self.contents: dict[str, tuple[int, ...]] = {}
        """What each name stands for that ever was."""
        self._arrived = 0
        self.incarnations = {True: 0, False: 0}
        """How often what Lithify keeps beside it was deleted, and how often the rest."""
        self._former: frozenset[str] = frozenset()
        """Names of what was deleted."""
        self.before_version: Callable[[], object] | None = None
        """Is called once, when a process is about to create a version of its index or ledger."""
        self.trouble = Trouble.DAMAGED if plan.is_damaged else None
        self.truth = Shelf(self, None)
        for unit in range(plan.units):
            self.add(unit, 1 if plan.is_idle else world.rng.randint(1, MIN_SOURCES))

    def open(self, process: Process) -> Shelf:
        """As a process opens it."""
        self.check(process)
        return Shelf(self, process)

    def check(self, process: Process) -> None:
        """Raises what is wrong with it."""
        if self.trouble in (Trouble.DAMAGED, Trouble.DEFECT) and self.world.watcher is not None:
            self.world.watcher.failed(process, self)
        if self.trouble is Trouble.DAMAGED:
            raise CorruptObject(f"{FOLDER}/{self.plan.name}/index", "does not decode")
        if self.trouble is Trouble.DEFECT:
            raise KeyError("nobody foresaw this")

    def looked(self, process: Process) -> None:
        """It was read."""
        if self.world.watcher is not None:
            self.world.watcher.looked(process, self)

    def add(self, unit: int, count: int) -> None:
        """Let so many names arrive, as far as their unit has room."""
        room = MAX_SOURCES - len(by_unit(self.names).get(f"u{unit}", ()))
        new: list[Named] = []
        for _ in range(min(count, room)):
            name = f"u{unit}/{self.world.ids.ulid(self.world.now_ms)}"
            self._arrived += 1
            self.contents[name] = (self._arrived,)
            new.append((name, self.plan.source_bytes))
        if new:
            self.truth.change(lambda names: (*names, *new))

    def owner_compacts(self) -> None:
        """Do what an owner does with all it finds."""
        for unit in self.wanting:
            task = Task(
                self.plan.name, self.world.ids.ulid(self.world.now_ms), tuple(by_unit(self.names)[unit]), 1
            )
            made = self.made(task, 0)
            self.truth.change(lambda names: (*(n for n in names if n[0] not in task.sources), made))  # noqa: B023

    def backup(self) -> dict[str, bytes]:
        """All its objects."""
        objects = self.world.objects
        return {meta.key: objects.get(meta.key) for meta in objects.list(f"{FOLDER}/{self.plan.name}")}

    def drop(self, *, keeps_own: bool) -> None:
        """Delete it, but perhaps not what Lithify keeps beside it."""
        self._former = frozenset(self.contents)
        gone = [key for key in self.backup() if not (keeps_own and is_own(key))]
        for key in gone:
            self.world.objects.delete(key)
        for part in self.incarnations:
            self.incarnations[part] += not (part and keeps_own)
        self.truth = Shelf(self, None)

    def put_back(self, backup: Mapping[str, bytes]) -> None:
        """Make it what it was, where nothing is."""
        for key, data in backup.items():
            self.world.objects.put(key, data)
        self.truth = Shelf(self, None)
        self._former -= dict(self.names).keys()

    def is_of_former(self, spec: Spec) -> bool:
        """Whether a compaction has something of the dataset that was here before."""
        return not self._former.isdisjoint(spec)

    def asks_before_version(self, key: str) -> None:
        """A process is about to create an object."""
        folder = key.removeprefix(f"{FOLDER}/{self.plan.name}/").rpartition("/")[0]
        if self.before_version is not None and folder in ("index", "_lithify/ledger"):
            event, self.before_version = self.before_version, None
            event()

    def made(self, task: Task, number: int) -> Named:
        """What a task has put together."""
        name = f"{unit_of(task.sources[0])}/{task.compaction}.{number}"
        self.contents[name] = tuple(sorted(n for source in task.sources for n in self.contents[source]))
        return name, task.size

    @property
    def names(self) -> Names:
        """As they are."""
        version = self.truth.index.latest()
        return () if version is None else decode(version.data, "")

    @property
    def ledger(self) -> ShelfLedger | None:
        """As it is."""
        return self.truth.ledger()

    @property
    def wanting(self) -> tuple[str, ...]:
        """Units with enough for a compaction."""
        return tuple(u for u, names in by_unit(self.names).items() if len(names) >= MIN_SOURCES)


def by_unit(names: Names) -> dict[str, list[str]]:
    """The names of each unit, in order."""
    found: dict[str, list[str]] = {}
    for name, _ in names:
        found.setdefault(unit_of(name), []).append(name)
    return found


def decode(data: bytes, key: str) -> Names:
    """The names of an index."""
    try:
        return tuple((text(name), int(size)) for name, size in json.loads(data))
    except (ValueError, TypeError) as error:
        raise CorruptObject(key, f"does not decode: {error}") from error

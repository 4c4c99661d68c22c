"""A dataset of this world: the real dataset as each process opens it, who adds work to it, and what is true
of it, by the words of its format.

A *unit* is a segment or a day. A *source* is what waits to be compacted there: an L0 SST, a file. Ranges are
toys: a task takes virtual time, and its output is made up when it is prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lithify.datasets.kind import DatasetPort
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.protocol.work import RangeOutcome
from lithify.store.versions import VersionedFiles
from lithify.testing.memory import MemoryStore
from simulator.several.scenario import DatasetPlan, Trouble
from simulator.several.world import PlaceStore, World

DAMAGED = b"this is no ledger"


@dataclass(frozen=True, slots=True)
class ToyTask:
    """What a range is to the engine."""

    compaction: str
    is_poisoned: bool
    outputs: tuple[Any, ...]


def toy(task: ToyTask) -> RangeOutcome:
    """What a range comes to. The engine lets time pass before."""
    return RangeOutcome(task.outputs, 1, 1, {}, 0.0, 0)


class Place(ABC):
    """One dataset and all that is known of it."""

    def __init__(self, world: World, plan: DatasetPlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.objects = MemoryStore(world.clock)
        self.trouble: Trouble | None = None
        self.well_since_ms = world.now_ms
        self._good: bytes | None = None
        self.create()
        self.truth = self.open("the judge")
        """The dataset as somebody sees it for whom nothing goes wrong."""
        self.poisoned = frozenset(self.unit_name(unit) for unit in plan.poisoned)

    @property
    def url(self) -> str:
        url: str = self.truth.url
        return url

    def store(self, who: str) -> PlaceStore:
        return PlaceStore(self.world, self.objects, who, self.name, self.is_ledger, lambda: self.trouble)

    def is_well_since(self, at_ms: int) -> bool:
        """Whether nothing has been wrong with it since that time."""
        return self.trouble is None and self.well_since_ms < at_ms

    def check_snapshot(self, who: str) -> None:
        """Raises what nobody foresaw while that is the trouble."""
        if self.trouble is Trouble.DEFECT and who != "the judge":
            raise KeyError("nobody foresaw this")

    # Trouble

    def begin(self, trouble: Trouble) -> None:
        """From now on something is wrong with it."""
        self.trouble = trouble
        self.world.count(f"trouble: {trouble.name.lower()}")
        self.world.log(self.name, f"from now on {trouble.value}")
        latest = self.ledgers.latest()
        if trouble is Trouble.DAMAGED and latest is not None:
            self._good = latest.data
            self.ledgers.publish(latest, DAMAGED)

    def end(self) -> None:
        """It is well again."""
        if self._good is not None:
            self.ledgers.publish(self.ledgers.latest(), self._good)
            self._good = None
        self.trouble, self.well_since_ms = None, self.world.now_ms
        self.world.log(self.name, "is well again")

    # What the kind says

    @abstractmethod
    def create(self) -> None:
        """Make the dataset, with nothing in it."""

    @abstractmethod
    def open(self, who: str) -> DatasetPort:
        """The dataset as `who` opens it."""

    @property
    @abstractmethod
    def ledgers(self) -> VersionedFiles:
        """The versions of the ledger, read past all trouble."""

    @abstractmethod
    def is_ledger(self, key: str) -> bool: ...

    @abstractmethod
    def is_manifest(self, key: str) -> bool:
        """Whether priorities may be others once this object is written."""

    @abstractmethod
    def decode_ledger(self, data: bytes, key: str) -> AnyLedger: ...

    @abstractmethod
    def unit_name(self, unit: int) -> str:
        """As `TaskIdentity.unit` calls it."""

    @abstractmethod
    def add(self, unit: int, count: int) -> None:
        """Let so many sources arrive in a unit."""

    @abstractmethod
    def sources(self) -> Mapping[str, frozenset[str]]:
        """What there is in each unit to be compacted, by the names of `TaskIdentity.inputs`; nothing where
        there is too little for a compaction."""

    @abstractmethod
    def may_plan(self, unit: str, ledger: AnyLedger) -> bool:
        """Whether what waits in a unit with sources can be planned beside what is active."""

    @abstractmethod
    def has_planner_slot(self, ledger: AnyLedger) -> bool:
        """Whether the planner may have one more compaction active."""

    @abstractmethod
    def priority(self, compaction: AnyCompaction) -> float:
        """How urgent a compaction is now, by what the documentation of its kind says."""

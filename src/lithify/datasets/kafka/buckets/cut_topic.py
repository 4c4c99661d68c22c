"""The common part of topics that are compacted while producers write: copied topics (`topic_copy.py`) and
live topics (`live_topic.py`).

1. A round covers a part of the listed objects, its *cut*. The round and its specs record the cut, so each
   process takes the same objects, whatever was added since.
2. There may always be more to do. A service continues; a command finishes rounds in progress, then makes one
   round of each partition. It recognizes earlier steps by the ids known at its first plan, not by clocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from lithify.base.ids import Ulid
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.layouts.contract import PartitionFolder
from lithify.datasets.kafka.layouts.objects import ObjectRange
from lithify.datasets.kafka.model import LogCompaction, LogLedger, LogSnapshot, LogSpec
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner
from lithify.protocol.work import RangeWork

IsPast = Callable[[Ulid], bool]
"""Returns whether a new round may follow this step."""


@dataclass(frozen=True, slots=True)
class CutSnapshot(LogSnapshot, ABC):
    """All partitions, and the objects that a round of each covers."""

    cuts: Mapping[str, ObjectRange] = field(default_factory=dict)
    """By partition, the cut of the next step, or of a round that begins now."""

    @abstractmethod
    def part(self, partition: str, cut: ObjectRange) -> PartitionFolder | None:
        """Return a partition restricted to the objects of this cut; `None` if it has none of them."""

    def as_of(self, spec: LogSpec) -> Self:
        """Return this snapshot with the spec's partition restricted to the spec's cut."""
        meant = None if spec.cut is None else self.part(spec.partition, spec.cut)
        return self.with_part(spec.partition, meant)


class CutTopic(LogDataset, ABC):
    """A topic that is compacted while producers write."""

    takes_cuts: ClassVar = True

    def planner(self, *, full: bool = False) -> Planner:
        before: frozenset[Ulid] | None = None

        def plan_once(
            snapshot: LogSnapshot, ledger: LogLedger, held: Held = NOTHING_HELD, /
        ) -> Plan[LogSpec]:
            nonlocal before
            if before is None:
                done = {id for found in snapshot.state.rounds.values() for id in found.done}
                before = frozenset(done | {compaction.id for compaction in ledger.active()})
            return self.propose_after(snapshot, ledger, held, before.__contains__, full=full)

        return plan_once

    @abstractmethod
    def propose_after(
        self, snapshot: LogSnapshot, ledger: LogLedger, held: Held, is_past: IsPast, *, full: bool
    ) -> Plan[LogSpec]:
        """Propose as `propose` does, but no new round of a partition whose last step is not past."""

    def cost_bytes(self, spec: LogSpec, snapshot: LogSnapshot) -> int:
        return super().cost_bytes(spec, _as_of(spec, snapshot))

    def _to_do(self, compaction: LogCompaction, snapshot: LogSnapshot) -> list[RangeWork[int]]:
        return super()._to_do(compaction, _as_of(compaction.spec, snapshot))


def _as_of(spec: LogSpec, snapshot: LogSnapshot) -> LogSnapshot:
    assert isinstance(snapshot, CutSnapshot)
    return snapshot.as_of(spec)

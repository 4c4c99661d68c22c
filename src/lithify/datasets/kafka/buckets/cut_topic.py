"""What topics have in common to which producers go on while they are compacted: copied ones (`topic_copy.py`)
and live ones (`live_topic.py`).

1. A round is about part of what is listed, its *cut*. The cut stands in the spec of each of its steps, and in
   the round; so whoever takes a step up looks at the same objects, whatever came since.
2. There may always be more to do. A service goes on with it; a command finishes what had begun before, and
   makes one round of each partition then. What is from before is told by the ids of compactions that were
   known when it planned first, not by clocks.
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
"""Whether a step may be followed by another round."""


@dataclass(frozen=True, slots=True)
class CutSnapshot(LogSnapshot, ABC):
    """All partitions, and which objects of each a round is about."""

    cuts: Mapping[str, ObjectRange] = field(default_factory=dict)
    """By partition: of the next step, or of a round that begins now."""

    @abstractmethod
    def part(self, partition: str, cut: ObjectRange) -> PartitionFolder | None:
        """A partition as if it had the objects of this cut only; `None` where it has none of them."""

    def as_of(self, spec: LogSpec) -> Self:
        """With those objects of its partition only that a step is about."""
        meant = None if spec.cut is None else self.part(spec.partition, spec.cut)
        return self.with_part(spec.partition, meant)


class CutTopic(LogDataset, ABC):
    """A topic to which producers go on."""

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
        """As `propose`, but for partitions whose last step is not past."""

    def cost_bytes(self, spec: LogSpec, snapshot: LogSnapshot) -> int:
        return super().cost_bytes(spec, _as_of(spec, snapshot))

    def _to_do(self, compaction: LogCompaction, snapshot: LogSnapshot) -> list[RangeWork[int]]:
        return super()._to_do(compaction, _as_of(compaction.spec, snapshot))


def _as_of(spec: LogSpec, snapshot: LogSnapshot) -> LogSnapshot:
    assert isinstance(snapshot, CutSnapshot)
    return snapshot.as_of(spec)

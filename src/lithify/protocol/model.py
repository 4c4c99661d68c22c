"""Compactions and the ledger that records them, independent of the kind of dataset.

A *ledger* is a dataset's versioned record of its compactions. It is an immutable value: every
change makes a new one (`lithify.protocol.transitions`), which is then published as the next version.

    Submitted -> Scheduled -> Running -> Compacted -> Completed
    Failed from any of the first four; Running -> Scheduled on release or reclaim.

Completed and Failed absorb. The type parameters are the dataset kind's own values: `SpecT` the spec
(what to compact), `RangeT` the range of one task, `OutputT` the metadata of one output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic

from typing_extensions import TypeVar

from lithify.base.ids import Ulid

SpecT = TypeVar("SpecT", default=Any)
RangeT = TypeVar("RangeT", default=Any)
OutputT = TypeVar("OutputT", default=Any)


class CompactionState(Enum):
    SUBMITTED = "submitted"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPACTED = "compacted"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the state is final."""
        return self in (CompactionState.COMPLETED, CompactionState.FAILED)


@dataclass(frozen=True, slots=True)
class AssignedWorker:
    """The owner of a compaction, and its last heartbeat in wall-clock milliseconds."""

    id: str
    last_heartbeat_ms: int = 0


@dataclass(frozen=True, slots=True)
class RangeProgress(Generic[RangeT, OutputT]):
    """One range of a compaction and the outputs finished so far, in order."""

    range: RangeT
    outputs: tuple[OutputT, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress(Generic[RangeT, OutputT]):
    """The checkpoint of a compaction. The ranges and the horizon never change once set; each
    range's outputs only grow."""

    ranges: tuple[RangeProgress[RangeT, OutputT], ...]
    horizon: int | None = None
    """The sequence number below which the compaction may drop old versions, for kinds that have one. A
    resumed compaction must use the same one."""


@dataclass(frozen=True, slots=True)
class Compaction(Generic[SpecT, RangeT, OutputT]):
    """One planned piece of work and its state."""

    id: Ulid
    spec: SpecT
    state: CompactionState = CompactionState.SUBMITTED
    outputs: tuple[OutputT, ...] = ()
    worker: AssignedWorker | None = None
    progress: Progress[RangeT, OutputT] | None = None


@dataclass(frozen=True, slots=True)
class Ledger(Generic[SpecT, RangeT, OutputT]):
    """All recorded compactions of a dataset, ascending by id, and the epoch of its coordinator.

    A ledger may have thousands of entries, so finding and changing one takes logarithmic time.
    """

    epoch: int = 0
    compactions: tuple[Compaction[SpecT, RangeT, OutputT], ...] = ()

    def get(self, compaction_id: Ulid) -> Compaction[SpecT, RangeT, OutputT] | None:
        """Return the compaction with this id, or `None`."""
        place = self._place(compaction_id)
        return None if place is None else self.compactions[place]

    def active(self) -> tuple[Compaction[SpecT, RangeT, OutputT], ...]:
        """Return the compactions whose state is not final."""
        return tuple(c for c in self.compactions if not c.state.is_terminal)

    def update(
        self,
        compaction_id: Ulid,
        change: Callable[[Compaction[SpecT, RangeT, OutputT]], Compaction[SpecT, RangeT, OutputT]],
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """Return the ledger with one compaction changed. Raise `KeyError` if the ledger does not have it."""
        place = self._place(compaction_id)
        if place is None:
            raise KeyError(compaction_id)
        all_ = self.compactions
        return replace(self, compactions=(*all_[:place], change(all_[place]), *all_[place + 1 :]))

    def _place(self, compaction_id: Ulid) -> int | None:
        place = bisect_left(self.compactions, compaction_id, key=lambda c: c.id)
        is_there = place < len(self.compactions) and self.compactions[place].id == compaction_id
        return place if is_there else None

    def add(self, *new: Compaction[SpecT, RangeT, OutputT]) -> Ledger[SpecT, RangeT, OutputT]:
        """Return the ledger with more compactions, ascending by id."""
        return replace(self, compactions=tuple(sorted((*self.compactions, *new), key=lambda c: c.id)))

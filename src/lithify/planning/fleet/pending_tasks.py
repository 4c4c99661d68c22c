"""Pending tasks: planned work that waits for admission, in the memory of the member that watches its
dataset."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.planning.admission import PlannedWork, WorkKey
from lithify.planning.fleet.priorities import PriorityClass, rank

MOST_BYTES = (1 << 53) - 1
"""Upper bound of costs: a number that every JSON reader supports."""
SMALL_BYTES = 64 << 20
"""Work of at most this cost is small: a second or two on one core."""


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A proposal, with the fields that decide about its admission."""

    key: WorkKey
    """The dataset's URL, and the name of the proposal in it."""
    band: PriorityClass
    priority: float
    """0 (may wait) to 1 (urgent), inside the priority class."""
    cost_bytes: int
    """Bytes that it reads; at most `MOST_BYTES`."""
    since_ms: int
    """When it was first seen."""
    tenant: str | None = None
    """The tenant that owns it."""
    after: tuple[WorkKey, ...] = ()
    """Predecessors that must end first."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 1:
            raise ValueError(f"{self.priority!r} is not a priority from 0 to 1")
        if not 0 <= self.cost_bytes <= MOST_BYTES:
            raise ValueError(f"{self.cost_bytes!r} is not a cost from 0 to {MOST_BYTES}")

    @property
    def dataset(self) -> str:
        return self.key.dataset

    @property
    def may_use_reserve(self) -> bool:
        """Whether it may use reserved slots."""
        return may_use_reserve(self.band, self.cost_bytes)

    @property
    def work(self) -> PlannedWork:
        """Return the task as a value of the task manager."""
        return PlannedWork(self.key, rank(self.band, self.priority), self.cost_bytes, self.after)

    @property
    def order(self) -> tuple[int, float, int, str, str]:
        """Sort key: priority class, then priority, then age; the most urgent first."""
        return self.band, -self.priority, self.since_ms, self.key.dataset, self.key.unit


def may_use_reserve(band: int, cost_bytes: int) -> bool:
    """Return whether work may use reserved slots: if it is small, or its writer stalls now or soon."""
    return band == PriorityClass.STALL or cost_bytes <= SMALL_BYTES

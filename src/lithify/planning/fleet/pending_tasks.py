"""A want: planned work that waits for admission, in the memory of the member that watches its dataset."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.planning.admission import PlannedWork, WorkKey
from lithify.planning.fleet.priorities import PriorityClass, rank

MOST_BYTES = (1 << 53) - 1
"""Nothing costs more: every reader of JSON has such a number."""
SMALL_BYTES = 64 << 20
"""What costs no more is small: a second or two on one core."""


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A proposal, and what a fleet goes by."""

    key: WorkKey
    """The dataset's URL, and the name of the proposal in it."""
    band: PriorityClass
    priority: float
    """0 (may wait) to 1 (urgent), inside the band."""
    cost_bytes: int
    """That it reads; at most `MOST_BYTES`."""
    since_ms: int
    """When it was first seen."""
    tenant: str | None = None
    """Whose work it is."""
    after: tuple[WorkKey, ...] = ()
    """What has to end before."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 1:
            raise ValueError(f"{self.priority!r} is no priority from 0 to 1")
        if not 0 <= self.cost_bytes <= MOST_BYTES:
            raise ValueError(f"{self.cost_bytes!r} is no cost from 0 to {MOST_BYTES}")

    @property
    def dataset(self) -> str:
        return self.key.dataset

    @property
    def may_use_reserve(self) -> bool:
        """Whether reserved slots are for it."""
        return may_use_reserve(self.band, self.cost_bytes)

    @property
    def work(self) -> PlannedWork:
        """It as the task manager knows it."""
        return PlannedWork(self.key, rank(self.band, self.priority), self.cost_bytes, self.after)

    @property
    def order(self) -> tuple[int, float, int, str, str]:
        """Band, then priority, then age; the most urgent first."""
        return self.band, -self.priority, self.since_ms, self.key.dataset, self.key.unit


def may_use_reserve(band: int, cost_bytes: int) -> bool:
    """Reserved slots are for what is small, and for writers that stand still or soon will."""
    return band == PriorityClass.STALL or cost_bytes <= SMALL_BYTES

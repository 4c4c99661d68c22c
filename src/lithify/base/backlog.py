"""The backlog of a unit, and how long until its writer stalls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detail:
    """A figure that only one kind of dataset has."""

    name: str
    value: float | None
    """`None` if unknown."""
    metric: str = ""
    """The gauge that shows it; none when empty."""
    help: str = ""
    """The gauge's help text."""
    by_unit: bool = True
    """Whether each unit has its own value."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How close a writer is to a stall, while it waits for the compaction of a unit."""

    unit: str
    waiting: int
    """Number of things that wait for their first compaction."""
    limit: int
    """The number at which the writer stalls."""
    stall_ms: int | None
    """Time until the writer stalls if nothing is compacted meanwhile: 0 when it is stalled now, `None` when
    it does not write or that is unknown."""
    details: tuple[Detail, ...] = ()
    """Further figures of its kind."""

    def __getitem__(self, name: str) -> float | None:
        """Return the value of one of the details."""
        return next(detail.value for detail in self.details if detail.name == name)

"""What waits for compaction, and how long its writer can wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detail:
    """A number that only one kind of dataset has."""

    name: str
    value: float | None
    """Unknown when `None`."""
    metric: str = ""
    """The gauge it is shown as; none when empty."""
    help: str = ""
    """Of the gauge."""
    by_unit: bool = True
    """Whether each unit has its own."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How close a writer that waits for the compaction of a unit is to a stall."""

    unit: str
    waiting: int
    """Things that wait to be compacted for the first time."""
    limit: int
    """So many of them, and the writer stalls."""
    stall_ms: int | None
    """Until it does if nothing is compacted meanwhile: 0 when it does now, `None` when it does not write or
    that is unknown."""
    details: tuple[Detail, ...] = ()
    """What its kind tells besides."""

    def __getitem__(self, name: str) -> float | None:
        """One of the details."""
        return next(detail.value for detail in self.details if detail.name == name)

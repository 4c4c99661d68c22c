"""What the calls of `lithify.api.client` answer, as values: what would be done, what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lithify.base.errors import LithifyError, Refused
from lithify.datasets.maintenance import PARTS
from lithify.observe.progress import Totals
from lithify.protocol.run_summary import FailedCompaction, RunSummary
from lithify.views.blocks import Line, Shown, Timeline


@dataclass(frozen=True, slots=True)
class Proposed:
    """Something worth compacting."""

    unit: str
    """What it is about: a segment, a time chunk."""
    bytes: int
    """That would be read."""
    priority: float
    """0 (may wait) to 1 (urgent)."""
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """What would be compacted now, most urgent first."""

    proposals: tuple[Proposed, ...]
    notes: tuple[str, ...]
    """Why the rest is left alone."""
    shown: Shown
    """All of it, to be drawn."""
    timeline: Timeline | None
    """`None` where times play no part."""

    @property
    def document(self) -> Mapping[str, Any]:
        """All of it as `lithify plan --json` prints it."""
        return self.shown.document

    def __iter__(self) -> Iterator[Proposed]:
        return iter(self.proposals)

    def __len__(self) -> int:
        return len(self.proposals)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did."""

    started: bool
    """Whether there was anything to do."""
    committed: tuple[str, ...]
    """Ids of compactions."""
    refused: tuple[FailedCompaction, ...]
    failed: tuple[FailedCompaction, ...]
    notes: tuple[str, ...]
    left_alone: tuple[str, ...]
    """Of the notes, those about what cannot be compacted."""
    stuck: tuple[str, ...]
    """Of these, those about what grows worse until a person acts."""
    bytes_read: int
    bytes_written: int
    rows: Mapping[str, int]
    """In, out and dropped, by reason; 0 for whatever did not happen."""
    seconds: float
    shown: Shown
    """All of it, to be drawn."""

    @property
    def document(self) -> Mapping[str, Any]:
        """All of it as `lithify compact --json` prints it."""
        return self.shown.document


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a whole maintenance did."""

    url: str
    parts: Mapping[str, Shown]
    """By name, in order; those that were left out are not there."""
    is_done: bool
    """Whether all was done that there was to do; else something failed, or stands in the way."""
    errors: Mapping[str, LithifyError] = field(default_factory=dict)
    """By name, what ended a part; the others were done without it."""

    @property
    def document(self) -> Mapping[str, Any]:
        """All of it as `lithify maintain --json` prints it."""
        found = {part: self.parts[part].document if part in self.parts else None for part in PARTS}
        return {"url": self.url, "is_done": self.is_done, **found}


def result_of(summary: RunSummary, totals: Totals, seconds: float, shown: Shown) -> Result:
    """What a run did, from how it ended and what its events told."""
    return Result(
        started=summary.started,
        committed=summary.committed,
        refused=summary.refused,
        failed=summary.failures,
        notes=summary.plan.notes,
        left_alone=summary.plan.left_alone,
        stuck=summary.plan.stuck,
        bytes_read=totals.bytes_read,
        bytes_written=totals.bytes_written,
        rows=Counter(totals.rows),
        seconds=seconds,
        shown=shown,
    )


def show_error(error: LithifyError) -> Shown:
    """Show what ended a part of maintenance."""
    outcome = "refused" if isinstance(error, Refused) else "failed"
    return Shown({"outcome": outcome, "why": str(error)}, (Line(str(error), is_bad=True),))

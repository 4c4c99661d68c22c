"""Results of the calls in `lithify.api.client`."""

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
    """A compaction that would run."""

    unit: str
    """The part of the dataset: a segment, a time chunk, a partition."""
    bytes: int
    """The bytes to read."""
    priority: float
    """From 0 (may wait) to 1 (urgent)."""
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """The compactions that would run now, the most urgent first. Iterable."""

    proposals: tuple[Proposed, ...]
    notes: tuple[str, ...]
    """Why everything else is not compacted."""
    shown: Shown
    """The whole result, for display."""
    timeline: Timeline | None
    """`None` for datasets without times."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The output of `lithify plan --json`."""
        return self.shown.document

    def _repr_html_(self) -> str:
        return self.shown._repr_html_()

    def __iter__(self) -> Iterator[Proposed]:
        return iter(self.proposals)

    def __len__(self) -> int:
        return len(self.proposals)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of `Dataset.compact`."""

    started: bool
    """False if there was nothing to do."""
    committed: tuple[str, ...]
    """Ids of committed compactions."""
    refused: tuple[FailedCompaction, ...]
    failed: tuple[FailedCompaction, ...]
    notes: tuple[str, ...]
    left_alone: tuple[str, ...]
    """The `notes` about data that cannot be compacted."""
    stuck: tuple[str, ...]
    """The entries of `left_alone` about data whose state grows worse until a person acts."""
    bytes_read: int
    bytes_written: int
    rows: Mapping[str, int]
    """Rows in, out, and dropped by reason; 0 for names that are not in it."""
    seconds: float
    shown: Shown
    """The whole result, for display."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The output of `lithify compact --json`."""
        return self.shown.document

    def _repr_html_(self) -> str:
        return self.shown._repr_html_()


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of `Dataset.maintain`."""

    url: str
    parts: Mapping[str, Shown]
    """Results by name of the part, in order, without parts that were left out."""
    is_done: bool
    """Whether everything was done that there was to do; if not, a part failed or is blocked."""
    errors: Mapping[str, LithifyError] = field(default_factory=dict)
    """Errors of parts that failed, by name. The other parts were done."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The output of `lithify maintain --json`."""
        found = {part: self.parts[part].document if part in self.parts else None for part in PARTS}
        return {"url": self.url, "is_done": self.is_done, **found}


def result_of(summary: RunSummary, totals: Totals, seconds: float, shown: Shown) -> Result:
    """Combine the summary of a run with the totals of its events."""
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
    """Return the display of a failed part of maintenance."""
    outcome = "refused" if isinstance(error, Refused) else "failed"
    return Shown({"outcome": outcome, "why": str(error)}, (Line(str(error), is_bad=True),))

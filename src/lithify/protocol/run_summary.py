"""What a run over a dataset came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lithify.base.ids import Ulid
from lithify.protocol.proposal import Plan


@dataclass(frozen=True, slots=True)
class FailedCompaction:
    """A compaction that is Failed now, and why."""

    compaction: Ulid
    reason: str


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did."""

    started: bool
    """False when there was nothing to do."""
    plan: Plan
    """What the planner said last."""
    committed: tuple[Ulid, ...] = ()
    dropped: tuple[FailedCompaction, ...] = ()
    """Parts of what was committed that were left out, because they did not hold any more."""
    refused: tuple[FailedCompaction, ...] = ()
    """Compactions found invalid: submitted by somebody, or left by an earlier coordinator."""
    failures: tuple[FailedCompaction, ...] = ()
    """Compactions of this run that could not be carried out."""
    before: Any = None
    """The snapshot that was planned on."""
    after: Any = None
    """The snapshot in the end."""

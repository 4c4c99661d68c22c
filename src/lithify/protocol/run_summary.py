"""The summary of a run over a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lithify.base.ids import Ulid
from lithify.protocol.proposal import Plan


@dataclass(frozen=True, slots=True)
class FailedCompaction:
    """A Failed compaction, with the reason."""

    compaction: Ulid
    reason: str


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The results of a run."""

    started: bool
    """False when there was nothing to do."""
    plan: Plan
    """The planner's last plan."""
    committed: tuple[Ulid, ...] = ()
    dropped: tuple[FailedCompaction, ...] = ()
    """Parts that were left out of commits, because they had become invalid."""
    refused: tuple[FailedCompaction, ...] = ()
    """Compactions found invalid: submitted by other programs, or left by an earlier coordinator."""
    failures: tuple[FailedCompaction, ...] = ()
    """Compactions of this run that failed."""
    before: Any = None
    """The snapshot that was planned on."""
    after: Any = None
    """The snapshot in the end."""

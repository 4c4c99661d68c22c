"""The common part of runs that rewrite delete files (`rewrite_deletes`) or manifests
(`rewrite_manifests`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lithify.datasets.iceberg.format.publish import MAX_TRIES


class RewriteOutcome(StrEnum):
    """The result of a run."""

    REWRITTEN = "rewritten"
    NOTHING_TO_DO = "nothing_to_do"
    LOST_RACE = "lost_race"


@dataclass(slots=True)
class Rewriting:
    """The changes of a run, or of a dry run's plan."""

    dry_run: bool
    outcome: RewriteOutcome = RewriteOutcome.NOTHING_TO_DO
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Return whether all planned work was done."""
        return self.outcome is not RewriteOutcome.LOST_RACE

    def lose(self) -> None:
        """Record that other commits came first in every attempt."""
        self.outcome, self.why = (
            RewriteOutcome.LOST_RACE,
            f"other writers committed first {MAX_TRIES} times in a row",
        )

"""What the runs have in common that rewrite delete files (`rewrite_deletes`) or manifests
(`rewrite_manifests`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lithify.datasets.iceberg.format.publish import MAX_TRIES


class RewriteOutcome(StrEnum):
    """What came of a run."""

    REWRITTEN = "rewritten"
    NOTHING_TO_DO = "nothing_to_do"
    LOST_RACE = "lost_race"


@dataclass(slots=True)
class Rewriting:
    """What a run did, or would do."""

    dry_run: bool
    outcome: RewriteOutcome = RewriteOutcome.NOTHING_TO_DO
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether all was done that there was to do."""
        return self.outcome is not RewriteOutcome.LOST_RACE

    def lose(self) -> None:
        """Others were faster, each time."""
        self.outcome, self.why = (
            RewriteOutcome.LOST_RACE,
            f"others committed first {MAX_TRIES} times in a row",
        )

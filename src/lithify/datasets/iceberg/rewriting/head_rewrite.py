"""The common parts of runs that rewrite deletes (`rewrite_equality`, `rewrite_deletes`) or manifests
(`rewrite_manifests`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.publish import (
    MAX_TRIES,
    PreparedSnapshot,
    Uncommitted,
    discard,
    publish,
)


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


def inputs_in_use(dataset: IcebergDataset) -> frozenset[str]:
    """Return the paths of the inputs of active compactions."""
    ledger = dataset.ledger()
    active = ledger.active() if ledger is not None else ()
    return frozenset(path for compaction in active for path in compaction.spec.inputs)


def published(
    dataset: IcebergDataset,
    clock: Clock,
    table: Table,
    prepared: PreparedSnapshot,
    uncommitted: Uncommitted,
    written: Sequence[str],
) -> bool:
    """Publish a snapshot. Return whether it is the head now; if another commit came first, or if garbage
    collection could soon delete its files, delete the files `written`, and change nothing."""
    if uncommitted.is_too_late(clock) or not publish(table, prepared, dataset.load):
        discard(table.io, written)
        return False
    dataset.lineage.advance(dataset.load())
    return True

"""Lithify on one Iceberg table, step by step or to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.events import Observer
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership, Term
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.engine.ports import Engine
from lithify.protocol.model import CompactionState
from lithify.protocol.run_summary import RunSummary
from lithify.service import one_shot
from lithify.service.coordinator import Coordinator, TickResult
from lithify.service.worker import Worker
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine


def dataset_of(
    table: Table,
    *,
    clock: Clock | None = None,
    catalog: Catalog | None = None,
    options: Mapping[str, str] | None = None,
) -> IcebergDataset:
    """The table as a dataset, with nothing cached; `options` win over its properties."""
    url = TableUrl("test", table.name())
    return IcebergDataset(
        catalog if catalog is not None else table.catalog,
        url,
        clock if clock is not None else a_clock(),
        RandomIds(),
        options=options or {},
    )


def a_clock() -> ManualClock:
    """A clock that starts now and moves only when somebody sleeps."""
    return ManualClock(int(time.time() * 1000))


def compact(
    dataset: IcebergDataset,
    *,
    engine: Engine | None = None,
    clock: Clock | None = None,
    observer: Observer = events.ignore,
) -> RunSummary:
    """Compact until nothing is left to do."""
    clock = clock if clock is not None else a_clock()
    ids = RandomIds()
    return one_shot.run(
        dataset,
        engine if engine is not None else InlineEngine(),
        clock,
        ids,
        Leadership(dataset, clock, ids),
        observer=observer,
    )


class Steps:
    """A coordinator and a worker, each turned by hand."""

    def __init__(self, dataset: IcebergDataset, *, name: str = "worker", clock: Clock | None = None) -> None:
        self.dataset = dataset
        self.clock = clock if clock is not None else a_clock()
        self.coordinator = Coordinator(dataset, self.clock, RandomIds())
        self.worker = Worker(dataset, InlineEngine(), self.clock, name)
        self.coordinator.start(Term(dataset.take_epoch()))

    def schedule(self) -> TickResult:
        """Plan and schedule."""
        return self.coordinator.tick()

    def execute(self) -> None:
        """Claim everything and rewrite it; nothing is committed."""
        self.worker.tick()
        while self.worker.is_busy:
            self.worker.tick()
        ledger = self.dataset.ledger()
        assert ledger is not None
        assert {c.state for c in ledger.active()} <= {
            CompactionState.COMPACTED,
            CompactionState.SUBMITTED,
            CompactionState.SCHEDULED,
        }

    def commit(self) -> TickResult:
        """Commit what was rewritten; the same tick may schedule more."""
        return self.coordinator.tick()

    def until_committed(self, meanwhile: Callable[[], None]) -> TickResult:
        """Plan, rewrite, let `meanwhile` happen, commit."""
        self.schedule()
        self.execute()
        meanwhile()
        return self.commit()

"""An observer that reports what a dataset's handle reads to the metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from lithify.base.backlog import Backlog
from lithify.base.clock import Clock
from lithify.base.ids import Ulid
from lithify.coordination.observers import DatasetObserver
from lithify.datasets.kind import DatasetPort
from lithify.observe.metrics import Metrics
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyLedger

DatasetT = TypeVar("DatasetT", bound=DatasetPort)


def metered(dataset: DatasetT, metrics: Metrics, clock: Clock) -> DatasetT:
    """Let `metrics` see what `dataset` reads, and return it."""
    dataset.observers.add(_Metered(dataset, metrics, clock))
    return dataset


def metered_backlog(
    dataset: DatasetT, saw_backlog: Callable[[str, Collection[Backlog]], None], clock: Clock
) -> DatasetT:
    """Let `saw_backlog` see the backlog of each snapshot that `dataset` reads, and return it."""
    dataset.observers.add(_MeteredBacklog(dataset, saw_backlog, clock))
    return dataset


class _MeteredBacklog(DatasetObserver):
    def __init__(
        self, dataset: DatasetPort, saw: Callable[[str, Collection[Backlog]], None], clock: Clock
    ) -> None:
        self._dataset = dataset
        self._saw = saw
        self._clock = clock

    def saw_snapshot(self, snapshot: Any) -> None:
        self._saw(self._dataset.url, self._dataset.backlog(snapshot, self._clock.now_ms()))


class _Metered(DatasetObserver):
    def __init__(self, dataset: DatasetPort, metrics: Metrics, clock: Clock) -> None:
        self._dataset = dataset
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: Any = None
        self._costs: dict[Ulid, int] = {}
        """The input bytes of each running compaction, in that snapshot."""

    def saw_snapshot(self, snapshot: Any) -> None:
        with self._lock:
            is_new = snapshot is not self._snapshot
            if is_new:
                self._snapshot, self._costs = snapshot, {}
        if is_new:
            self._metrics.saw_past(self._dataset.url, self._dataset.past(snapshot))
        self._metrics.saw_backlog(self._dataset.url, self._dataset.backlog(snapshot, self._clock.now_ms()))

    def saw_ledger(self, ledger: AnyLedger | None) -> None:
        self._metrics.looked_at(self._dataset.url)
        if ledger is not None:
            self._metrics.saw_ledger(self._dataset.url, ledger, self._running_bytes(ledger))

    def saw_plan(self, plan: Plan) -> None:
        self._metrics.saw_plan(self._dataset.url, plan)

    def _running_bytes(self, ledger: AnyLedger) -> int | None:
        with self._lock:
            if self._snapshot is None:
                return None
            snapshot, before = self._snapshot, self._costs
            running = [c for c in ledger.compactions if c.state is CompactionState.RUNNING]
            self._costs = {
                c.id: before[c.id] if c.id in before else self._dataset.cost_bytes(c.spec, snapshot)
                for c in running
            }
            return sum(self._costs.values())

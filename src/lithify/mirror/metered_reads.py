"""A wrapper of a dataset that reports its reads to the metrics. Everything else is forwarded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from lithify.base.clock import Clock
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort
from lithify.observe.metrics import Metrics
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan
from lithify.protocol.transitions import AnyLedger
from lithify.store.versions import PendingVersion

DatasetT = TypeVar("DatasetT", bound=DatasetPort)


def metered(dataset: DatasetT, metrics: Metrics, clock: Clock) -> DatasetT:
    """Wrap `dataset` so that `metrics` sees its reads."""
    return cast(DatasetT, _Metered(dataset, metrics, clock))


class _Metered:
    def __init__(self, dataset: DatasetPort, metrics: Metrics, clock: Clock) -> None:
        self._dataset = dataset
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: Any = None
        self._costs: dict[Ulid, int] = {}
        """The input bytes of each running compaction, in that snapshot."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def snapshot(self) -> Any:
        snapshot = self._dataset.snapshot()
        self._saw_snapshot(snapshot)
        return snapshot

    def ledger(self) -> AnyLedger | None:
        ledger = self._dataset.ledger()
        self._saw_ledger(ledger)
        return ledger

    def glance(self) -> tuple[AnyLedger | None, Any]:
        return self._saw_both(*self._dataset.glance())

    def known(self) -> tuple[AnyLedger | None, Any]:
        """Return the cached ledger and snapshot, which may have been published here and not read since."""
        return self._saw_both(*self._dataset.known())

    def update_ledger(
        self, change: Callable[[AnyLedger], AnyLedger], first: AnyLedger | None = None
    ) -> AnyLedger:
        ledger = self._dataset.update_ledger(change, first)
        self._saw_ledger(ledger)
        return ledger

    def write_ledger(
        self, change: Callable[[AnyLedger], AnyLedger], first: AnyLedger | None = None
    ) -> tuple[AnyLedger, PendingVersion]:
        ledger, counts = self._dataset.write_ledger(change, first)
        self._saw_ledger(ledger)
        return ledger, counts

    def propose(self, snapshot: Any, ledger: AnyLedger, held: Held = NOTHING_HELD) -> Plan:
        plan = self._dataset.propose(snapshot, ledger, held)
        self._metrics.saw_plan(self._dataset.url, plan)
        return plan

    def _saw_both(self, ledger: AnyLedger | None, snapshot: Any) -> tuple[AnyLedger | None, Any]:
        self._saw_snapshot(snapshot)
        self._saw_ledger(ledger)
        return ledger, snapshot

    def _saw_snapshot(self, snapshot: Any) -> None:
        with self._lock:
            is_new = snapshot is not self._snapshot
            if is_new:
                self._snapshot, self._costs = snapshot, {}
        if is_new:
            self._metrics.saw_past(self._dataset.url, self._dataset.past(snapshot))
        self._metrics.saw_backlog(self._dataset.url, self._dataset.backlog(snapshot, self._clock.now_ms()))

    def _saw_ledger(self, ledger: AnyLedger | None) -> None:
        self._metrics.looked_at(self._dataset.url)
        if ledger is not None:
            self._metrics.saw_ledger(self._dataset.url, ledger, self._running_bytes(ledger))

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

"""Observers of the state of a dataset, as one handle of it reads, publishes and plans it.

Metrics and the dashboard in the process of a service show what the service reads anyway, without a request of
their own. So each handle has `DatasetObservers`, and whatever reads for it (the dataset, its journal, lease
and commit records) tells them. Reads by which a handle only checks something, such as its epoch, are not
told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyLedger

LedgerT = TypeVar("LedgerT", bound=AnyLedger | None)
SnapshotT = TypeVar("SnapshotT")


class DatasetObserver:
    """An observer that ignores everything. Subclasses override what they need; any thread may call it, and it
    must be quick and raise nothing. All values are immutable."""

    def saw_ledger(self, ledger: AnyLedger | None) -> None:
        """A ledger was read or published."""

    def saw_snapshot(self, snapshot: Any) -> None:
        """A snapshot was read."""

    def saw_plan(self, plan: Plan) -> None:
        """A coordinator has planned."""


class DatasetObservers:
    """The observers of one handle; none at first."""

    def __init__(self) -> None:
        self._observers: tuple[DatasetObserver, ...] = ()

    def add(self, observer: DatasetObserver) -> None:
        """Tell `observer` from now on. Call it before other threads use the handle."""
        self._observers = (*self._observers, observer)

    def tell(self, what: Callable[[DatasetObserver], None]) -> None:
        """Call `what` with each observer, in order."""
        for observer in self._observers:
            what(observer)

    def ledger(self, ledger: LedgerT) -> LedgerT:
        """Tell of a ledger that was read or published, and return it."""
        self.tell(lambda observer: observer.saw_ledger(ledger))
        return ledger

    def snapshot(self, snapshot: SnapshotT) -> SnapshotT:
        """Tell of a snapshot that was read, and return it."""
        self.tell(lambda observer: observer.saw_snapshot(snapshot))
        return snapshot

    def both(self, ledger: LedgerT, snapshot: SnapshotT) -> tuple[LedgerT, SnapshotT]:
        """Tell of a snapshot and a ledger that were read together, in this order, and return them."""
        snapshot = self.snapshot(snapshot)
        return self.ledger(ledger), snapshot

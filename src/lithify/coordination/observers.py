"""Observers of the state of a dataset, as one handle of it reads, publishes and plans it.

Metrics and the dashboard in the process of a service show what the service reads anyway, without a request of
their own. So each handle has `DatasetObservers`, and whatever reads for it (the dataset, its journal, lease
and commit records) tells them. Reads by which a handle only checks something, such as its epoch, are not
told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.base.ids import Ulid
from lithify.protocol.attempts import Attempt, FailedAttempt, Movement
from lithify.protocol.lease import FoundLease, Lease
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyLedger

if TYPE_CHECKING:
    from lithify.coordination.commit_records import CommitRecord

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

    def saw_lease(self, found: FoundLease | None) -> None:
        """The lease was read."""

    def wrote_lease(self, lease: Lease, etag: str) -> None:
        """The lease was written."""

    def saw_movements(self, compaction_id: Ulid, movements: Mapping[str, Movement]) -> None:
        """What the tasks of a compaction report was read."""

    def saw_finished(self, compaction_id: Ulid, last_outputs: Collection[str]) -> None:
        """Finished ranges of a compaction were read or recorded; there may be others."""

    def saw_attempts(self, attempts: Mapping[Ulid, tuple[Attempt, ...]]) -> None:
        """All attempts were read."""

    def added_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None:
        """An attempt was recorded."""

    def cleared(self, compaction_id: Ulid) -> None:
        """The movements, finished ranges and attempts of a compaction were deleted."""

    def saw_failures(self, failures: Collection[FailedAttempt]) -> None:
        """All failures were read, as after each that is recorded."""

    def forgave(self, compaction_id: Ulid) -> None:
        """A failure was deleted."""

    def committed(self, record: CommitRecord) -> None:
        """The record of a commit, or of work for one, was written."""


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

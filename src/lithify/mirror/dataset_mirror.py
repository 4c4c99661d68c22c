"""A record of a service's reads and writes of one dataset, for a dashboard in the same process: viewing costs
no request.

1. The service's own handles of the dataset are wrapped by `sharing`: their reads and writes are recorded in
   one `DatasetMirror`, without further reads.
2. The dashboard's handle is wrapped by `watching`: it answers from the mirror, and calls the dataset only for
   operations without requests (`DatasetPort`: pure). It raises `StoreUnavailable` before the first read.
3. Details that no coordinator reads (holders of a table's history, history that could expire, earlier
   commits) are read separately (`read_beside`): once at the start, and at most once in `BESIDE_S` after a
   change. So the cost is the same for no viewers and for a hundred. A service that only works reads snapshots
   and the coordinator in this way too, once in `BESIDE_S`.

The progress of tasks here is as recent as the worker's last poll; of workers elsewhere, only finished ranges
in the ledger are known. All values are immutable; any thread may record and query.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from lithify.base.clock import Clock
from lithify.base.errors import StoreUnavailable
from lithify.base.ids import Ulid
from lithify.coordination.commit_records import CommitRecord, CommitRecords, merged
from lithify.datasets.kind import DatasetPort
from lithify.protocol.attempts import Attempt, FailedAttempt, Journal, Movement
from lithify.protocol.history import Arrival, History
from lithify.protocol.lease import FoundLease, Lease, LeaseFile, judge_lease
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.presence import CoordinatorStatus, Presence
from lithify.protocol.retained import Retained
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.store.versions import PendingVersion

BESIDE_S = 60.0
MAX_COMMITS = 50
"""As many as a page shows."""

DatasetT = TypeVar("DatasetT", bound=DatasetPort)
KeyT = TypeVar("KeyT")
_Stay = tuple[Ulid, CompactionState, str | None]
"""A compaction in a state, under a worker."""
_Beat = tuple[_Stay, int]
"""A stay, and the worker's last heartbeat."""


class DatasetMirror:
    """The state of the dataset at `url`, as known in this process."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        coordinates: bool = True,
        asks_coordinator: bool = False,
        most_commits: int = MAX_COMMITS,
    ) -> None:
        """`coordinates`: this process coordinates, so it reads snapshots and has the lease. With
        `asks_coordinator`, it coordinates only at times, and the coordinator is read with the details.
        `most_commits` is how many are kept."""
        self.url = url
        self._clock = clock
        self._coordinates = coordinates
        self._asks_coordinator = asks_coordinator
        self._most_commits = most_commits
        self._lock = threading.Lock()
        self._ledger: AnyLedger | None = None
        self._has_ledger = False
        self._snapshot: Any = None
        self._lease: FoundLease | None = None
        self._lease_seen_s: float | None = None
        """When this process wrote the lease; `None` if it only read it."""
        self._coordinator: CoordinatorStatus | None = None
        """The coordinator as last read, if this process does not coordinate."""
        self._arrivals: dict[_Stay, Arrival | None] = {}
        self._first_progress: dict[_Stay, Arrival | None] = {}
        """In these two, `None` marks entries that precede the first read."""
        self._heard: dict[_Beat, Arrival | None] = {}
        self._movements: dict[Ulid, Mapping[str, Movement]] = {}
        self._finished: dict[Ulid, frozenset[str]] = {}
        self._attempts: dict[Ulid, tuple[Attempt, ...]] = {}
        self._failures: dict[Ulid, FailedAttempt] = {}
        self._retained: Retained | None = None
        self._beside: Any = None
        self._commits: tuple[CommitRecord, ...] = ()
        self._has_changed = True
        """Whether ledger or snapshot have changed since the details were read."""
        self._beside_read_s: float | None = None
        self._glanced_s: float | None = None
        self._why_over = ""

    # Recording by the service

    def saw_ledger(self, ledger: AnyLedger | None) -> None:
        """Record a ledger that was read or published."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if ledger is not self._ledger:
                self._has_changed = True
            active = () if ledger is None else ledger.active()
            is_first, self._has_ledger, self._ledger = not self._has_ledger, True, ledger
            stays = {_stay_of(c): c for c in active}
            moving = {stay: c for stay, c in stays.items() if c.progress is not None}
            self._arrivals = _followed(self._arrivals, stays, None if is_first else now_ms)
            self._first_progress = _followed(self._first_progress, moving, None if is_first else now_ms)
            beats = {(_stay_of(c), c.worker.last_heartbeat_ms): c for c in active if c.worker is not None}
            self._heard = _followed(self._heard, beats, now_ms)
            for known in (self._movements, self._finished, self._attempts):
                for gone in known.keys() - {c.id for c in active}:
                    del known[gone]

    def saw_snapshot(self, snapshot: Any) -> None:
        """Record a snapshot that was read."""
        with self._lock:
            if snapshot is not self._snapshot:
                self._has_changed = True
            self._snapshot = snapshot

    def saw_lease(self, found: FoundLease | None, *, is_own: bool = False) -> None:
        """Record a lease that was read, or written here (`is_own`)."""
        with self._lock:
            self._lease, self._coordinator = found, None
            self._lease_seen_s = self._clock.monotonic_s() if is_own else None

    def saw_movements(self, compaction_id: Ulid, movements: Mapping[str, Movement]) -> None:
        """Record the progress of a compaction's ranges."""
        with self._lock:
            self._movements[compaction_id] = movements

    def saw_finished(self, compaction_id: Ulid, names: Iterable[str]) -> None:
        """Add finished ranges of a compaction."""
        with self._lock:
            self._finished[compaction_id] = self._finished.get(compaction_id, frozenset()) | frozenset(names)

    def saw_attempts(self, attempts: Mapping[Ulid, tuple[Attempt, ...]]) -> None:
        """Record all attempts."""
        with self._lock:
            self._attempts = dict(attempts)

    def added_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None:
        """Add an attempt."""
        with self._lock:
            self._attempts[compaction_id] = (*self._attempts.get(compaction_id, ()), attempt)

    def saw_failures(self, failures: Iterable[FailedAttempt]) -> None:
        """Record all failures."""
        with self._lock:
            self._failures = {failure.compaction: failure for failure in failures}

    def added_failure(self, failure: FailedAttempt) -> None:
        """Add a failure."""
        with self._lock:
            self._failures[failure.compaction] = failure

    def forgave(self, compaction_id: Ulid) -> None:
        """Remove a failure."""
        with self._lock:
            self._failures.pop(compaction_id, None)

    def cleared(self, compaction_id: Ulid) -> None:
        """Remove the progress and attempts of a compaction."""
        with self._lock:
            for known in (self._movements, self._finished, self._attempts):
                known.pop(compaction_id, None)

    def committed(self, record: CommitRecord) -> None:
        """Add a commit record."""
        with self._lock:
            self._commits = merged((*self._commits, record))[-self._most_commits :]

    def end(self, why: str) -> None:
        """Record that the service does not follow the dataset any more. Ledger and snapshot then raise
        `StoreUnavailable` with the reason."""
        with self._lock:
            self._why_over = why

    def read_beside(self, dataset: DatasetPort, records: CommitRecords) -> None:
        """Read the details that nothing else reads here, if they are due. `dataset` is a handle that
        `sharing` wraps and only this thread uses."""
        now_s = self._clock.monotonic_s()
        if not self._coordinates and (self._glanced_s is None or now_s - self._glanced_s >= BESIDE_S):
            self._glanced_s = now_s
            dataset.glance()
            self._coordinator = dataset.coordinator()
        if not self.is_beside_due():
            return
        with self._lock:
            ledger, snapshot = self._ledger, self._snapshot
            self._has_changed, self._beside_read_s = False, now_s
        if self._asks_coordinator:
            self._coordinator = dataset.coordinator()
        self.saw_failures(dataset.journal.failures())
        commits = records.newest(self._most_commits)
        retained = dataset.retained(snapshot, ledger if ledger is not None else Ledger())
        beside = dataset.plan_details()
        with self._lock:
            self._commits = merged((*commits, *self._commits))[-self._most_commits :]
            self._retained, self._beside = retained, beside

    def missed_beside(self) -> None:
        """Record that the details could not be read, because the dataset cannot be opened; they are due after
        the next change."""
        with self._lock:
            self._has_changed, self._beside_read_s = False, self._clock.monotonic_s()

    @property
    def beside_read_s(self) -> float:
        """When the details were read last, by the monotonic clock; minus infinity for never."""
        with self._lock:
            return -math.inf if self._beside_read_s is None else self._beside_read_s

    @property
    def was_read_beside(self) -> bool:
        """Whether the details were ever read."""
        return self.beside_read_s > -math.inf

    def is_beside_due(self) -> bool:
        """Return whether `read_beside` would read details now."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            last_s, is_seen = self._beside_read_s, self._has_ledger and self._snapshot is not None
            return is_seen and (last_s is None or (self._has_changed and now_s - last_s >= BESIDE_S))

    # Queries of a dashboard

    def both(self) -> tuple[AnyLedger | None, Any]:
        """Return ledger and snapshot. Raise `StoreUnavailable` if they were not read yet or the service has
        ended."""
        with self._lock:
            if self._why_over:
                raise StoreUnavailable(self._why_over)
            if not self._has_ledger or self._snapshot is None:
                raise StoreUnavailable(f"{self.url}: this process has not read it yet")
            return self._ledger, self._snapshot

    def now_ms(self) -> int:
        """Return the time by the clock of all records here, which is this machine's."""
        return self._clock.now_ms()

    def coordinator(self) -> CoordinatorStatus:
        """Return the coordinator's status, from the lease. The age of a lease written here is known from the
        monotonic clock. The age of one that was only read is unknown: its holder may have written it
        since."""
        with self._lock:
            if self._coordinator is not None:
                return self._coordinator
            found, seen_s = self._lease, self._lease_seen_s
            epoch = 0 if self._ledger is None else self._ledger.epoch
        if found is None or found.lease is None:
            return CoordinatorStatus(Presence.STOPPED if epoch else Presence.NEVER, epoch)
        taken = found.lease.taken
        age_ms = None if seen_s is None else round((self._clock.monotonic_s() - seen_s) * 1000)
        return judge_lease(
            epoch if taken is None else taken,
            found.lease,
            found.written_ms,
            lambda: None if age_ms is None else found.written_ms + age_ms,
        )

    def history(self) -> History:
        """Return since when each active compaction is in its state, as far as this process has seen it."""
        with self._lock:
            return _SeenHistory(dict(self._arrivals), dict(self._first_progress), dict(self._heard))

    def journal(self) -> Journal:
        """Return the journal's entries that were read or written here."""
        with self._lock:
            return cast(
                Journal,
                _SeenJournal(
                    dict(self._movements),
                    dict(self._finished),
                    dict(self._attempts),
                    tuple(sorted(self._failures.values(), key=lambda f: (f.at_ms, f.compaction))),
                ),
            )

    def plan_details(self) -> tuple[Retained | None, Any]:
        """Return the retained history with its holders, and `DatasetPort.plan_details`, as last read."""
        with self._lock:
            return self._retained, self._beside

    def newest(self, most: int | None = None, since_ms: int = 0) -> tuple[CommitRecord, ...]:
        """Return the last commits, as `CommitRecords.newest` does, but at most as many as are kept."""
        with self._lock:
            found = [record for record in self._commits if record.at_ms >= since_ms]
        return tuple(found if most is None else found[-most:] if most else ())


def sharing(dataset: DatasetT, shared: DatasetMirror, clock: Clock) -> DatasetT:
    """Wrap `dataset` so that its reads and writes are recorded in `shared`."""
    return cast(DatasetT, _Sharing(dataset, shared, clock))


def watching(dataset: DatasetT, shared: DatasetMirror) -> DatasetT:
    """Wrap `dataset` so that it answers from `shared`, for viewing only."""
    return cast(DatasetT, _Watching(dataset, shared))


def shared_of(dataset: DatasetPort) -> DatasetMirror | None:
    """Return the mirror in which a dataset's reads are recorded, if there is one."""
    return dataset._shared if isinstance(dataset, _Sharing) else None


class SharingRecords(CommitRecords):
    """Commit records whose additions are recorded in `shared`."""

    def __init__(self, records: CommitRecords, shared: DatasetMirror) -> None:
        self._records = records
        self._shared = shared

    def add(self, record: CommitRecord) -> None:
        self._records.add(record)
        self._shared.committed(record)

    def newest(self, most: int | None = None, since_ms: int = 0) -> tuple[CommitRecord, ...]:
        return self._records.newest(most, since_ms)

    def sweep(self, before_ms: int) -> int:
        return self._records.sweep(before_ms)


class _Sharing:
    """Forwards everything else to the dataset."""

    def __init__(self, dataset: DatasetPort, shared: DatasetMirror, clock: Clock) -> None:
        self._dataset = dataset
        self._shared = shared
        self.journal = _SharingJournal(dataset.journal, shared)
        self.lease = _SharingLease(dataset.lease, shared, clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def ledger(self) -> AnyLedger | None:
        ledger = self._dataset.ledger()
        self._shared.saw_ledger(ledger)
        return ledger

    def snapshot(self) -> Any:
        snapshot = self._dataset.snapshot()
        self._shared.saw_snapshot(snapshot)
        return snapshot

    def glance(self) -> tuple[AnyLedger | None, Any]:
        ledger, snapshot = self._dataset.glance()
        self._shared.saw_ledger(ledger)
        self._shared.saw_snapshot(snapshot)
        return ledger, snapshot

    def update_ledger(
        self, change: Callable[[AnyLedger], AnyLedger], first: AnyLedger | None = None
    ) -> AnyLedger:
        ledger = self._dataset.update_ledger(change, first)
        self._shared.saw_ledger(ledger)
        return ledger

    def write_ledger(
        self, change: Callable[[AnyLedger], AnyLedger], first: AnyLedger | None = None
    ) -> tuple[AnyLedger, PendingVersion]:
        ledger, counts = self._dataset.write_ledger(change, first)
        self._shared.saw_ledger(ledger)
        return ledger, counts


class _SharingLease:
    def __init__(self, lease: LeaseFile, shared: DatasetMirror, clock: Clock) -> None:
        self._lease = lease
        self._shared = shared
        self._clock = clock

    def read(self) -> FoundLease | None:
        found = self._lease.read()
        self._shared.saw_lease(found)
        return found

    def look(self) -> str | None:
        return self._lease.look()

    def write(self, lease: Lease, etag: str | None) -> str:
        written = self._lease.write(lease, etag)
        self._shared.saw_lease(FoundLease(lease, written, self._clock.now_ms()), is_own=True)
        return written


class _SharingJournal:
    """Forwards everything else to the journal."""

    def __init__(self, journal: Journal, shared: DatasetMirror) -> None:
        self._journal = journal
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def clear(self, compaction_id: Ulid) -> None:
        self._journal.clear(compaction_id)
        self._shared.cleared(compaction_id)

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        found = self._journal.movements(compaction_id)
        self._shared.saw_movements(compaction_id, found)
        return found

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        found = self._journal.finished(compaction_id)
        self._shared.saw_finished(compaction_id, found)
        return found

    def note_finished(self, compaction_id: Ulid, worker: str, last_outputs: Iterable[str]) -> None:
        names = tuple(last_outputs)
        self._journal.note_finished(compaction_id, worker, names)
        self._shared.saw_finished(compaction_id, names)

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        found = self._journal.attempts()
        self._shared.saw_attempts(found)
        return found

    def add_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None:
        self._journal.add_attempt(compaction_id, attempt)
        self._shared.added_attempt(compaction_id, attempt)

    def failures(self) -> tuple[FailedAttempt, ...]:
        found = self._journal.failures()
        self._shared.saw_failures(found)
        return found

    def add_failure(self, failure: FailedAttempt) -> None:
        self._journal.add_failure(failure)
        self._shared.added_failure(failure)

    def forgive(self, compaction_id: Ulid) -> None:
        self._journal.forgive(compaction_id)
        self._shared.forgave(compaction_id)


class _Watching:
    """Forwards operations without requests to the dataset."""

    def __init__(self, dataset: DatasetPort, shared: DatasetMirror) -> None:
        self._dataset = dataset
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    @property
    def journal(self) -> Journal:
        return self._shared.journal()

    def ledger(self) -> AnyLedger | None:
        return self._shared.both()[0]

    def snapshot(self) -> Any:
        return self._shared.both()[1]

    def glance(self) -> tuple[AnyLedger | None, Any]:
        return self._shared.both()

    known = glance

    def store_ms(self) -> int:
        return self._shared.now_ms()

    def coordinator(self) -> CoordinatorStatus:
        return self._shared.coordinator()

    def history(self) -> History:
        return self._shared.history()

    def retained(self, snapshot: Any, ledger: AnyLedger) -> Retained | None:
        found, _ = self._shared.plan_details()
        past = self._dataset.past(snapshot)
        return found if found is not None or past is None else Retained(past)

    def plan_details(self) -> Any:
        return self._shared.plan_details()[1]


class _SeenJournal:
    """The known entries of a journal, read-only."""

    def __init__(
        self,
        movements: Mapping[Ulid, Mapping[str, Movement]],
        finished: Mapping[Ulid, frozenset[str]],
        attempts: Mapping[Ulid, tuple[Attempt, ...]],
        failures: tuple[FailedAttempt, ...],
    ) -> None:
        self._movements = movements
        self._finished = finished
        self._attempts = attempts
        self._failures = failures

    def compactions(self) -> frozenset[Ulid]:
        return frozenset({*self._movements, *self._finished, *self._attempts})

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        return self._movements.get(compaction_id, {})

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        return self._finished.get(compaction_id, frozenset())

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        return self._attempts

    def failures(self) -> tuple[FailedAttempt, ...]:
        return self._failures


class _SeenHistory:
    """The history of a ledger, as seen by this process."""

    def __init__(
        self,
        arrivals: Mapping[_Stay, Arrival | None],
        progress: Mapping[_Stay, Arrival | None],
        heard: Mapping[_Beat, Arrival | None],
    ) -> None:
        self._arrivals = arrivals
        self._progress = progress
        self._heard = heard

    def arrival(self, compaction: AnyCompaction) -> Arrival | None:
        return self._arrivals.get(_stay_of(compaction))

    def first_progress(self, compaction: AnyCompaction) -> Arrival | None:
        return self._progress.get(_stay_of(compaction))

    def heard(self, compaction: AnyCompaction) -> Arrival | None:
        worker = compaction.worker
        return None if worker is None else self._heard.get((_stay_of(compaction), worker.last_heartbeat_ms))

    def last_entry(self, compaction_id: Ulid) -> AnyCompaction | None:
        return None


def _stay_of(compaction: AnyCompaction) -> _Stay:
    worker = compaction.worker if compaction.state is CompactionState.RUNNING else None
    return compaction.id, compaction.state, None if worker is None else worker.id


def _followed(
    before: Mapping[KeyT, Arrival | None], stays: Mapping[KeyT, AnyCompaction], now_ms: int | None
) -> dict[KeyT, Arrival | None]:
    """Return the known arrivals of these keys; new keys arrive now."""
    return {
        stay: before[stay] if stay in before else None if now_ms is None else Arrival(now_ms, c)
        for stay, c in stays.items()
    }

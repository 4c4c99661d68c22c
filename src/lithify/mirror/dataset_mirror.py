"""A record of a service's reads and writes of one dataset, for a dashboard in the same process: viewing costs
no request.

1. One `DatasetMirror` observes the service's own handles of the dataset
   (`lithify.coordination.observers`), without further reads.
2. The dashboard reads `DatasetMirror.state`, an immutable value, in place of the dataset; the dashboard's
   handle answers only what costs no request (`DatasetPort`: pure). Before the first read of the service,
   `state` raises `StoreUnavailable`.
3. Details that no coordinator reads (holders of a table's history, history that could expire, earlier
   commits) are read separately (`read_beside`): once at the start, and at most once in `BESIDE_S` after a
   change. So the cost is the same for no viewers and for a hundred. A service that only works reads snapshots
   and the coordinator in this way too, once in `BESIDE_S`.

The progress of tasks here is as recent as the worker's last poll; of workers elsewhere, only finished ranges
in the ledger are known. Any thread may record and query.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lithify.base.clock import Clock
from lithify.base.errors import StoreUnavailable
from lithify.base.ids import Ulid
from lithify.coordination.commit_records import CommitRecord, CommitRecords, merged
from lithify.coordination.observers import DatasetObserver
from lithify.datasets.kind import DatasetPort
from lithify.protocol.attempts import Attempt, FailedAttempt, Movement
from lithify.protocol.history import Arrival
from lithify.protocol.lease import FoundLease, Lease, judge_lease, without_lease
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.presence import CoordinatorStatus
from lithify.protocol.retained import Retained
from lithify.protocol.transitions import AnyCompaction, AnyLedger

BESIDE_S = 60.0
MAX_COMMITS = 50
"""As many as a page shows."""

KeyT = TypeVar("KeyT")
_Stay = tuple[Ulid, CompactionState, str | None]
"""A compaction in a state, under a worker."""
_Beat = tuple[_Stay, int]
"""A stay, and the worker's last heartbeat."""


class NotReadYet(StoreUnavailable):
    """The service in this process has not read the dataset yet."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: this process has not read it yet")


class DatasetMirror(DatasetObserver):
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
        self._read_ms = 0
        """When the service read or wrote the ledger last."""
        self._snapshot: Any = None
        self._lease: FoundLease | None = None
        self._lease_written_s: float | None = None
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
        now_ms = self._clock.now_ms()
        with self._lock:
            if ledger is not self._ledger:
                self._has_changed = True
            active = () if ledger is None else ledger.active()
            is_first, self._has_ledger, self._ledger = not self._has_ledger, True, ledger
            self._read_ms = now_ms
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
        with self._lock:
            if snapshot is not self._snapshot:
                self._has_changed = True
            self._snapshot = snapshot

    def saw_lease(self, found: FoundLease | None) -> None:
        with self._lock:
            self._lease, self._lease_written_s, self._coordinator = found, None, None

    def wrote_lease(self, lease: Lease, etag: str) -> None:
        found = FoundLease(lease, etag, self._clock.now_ms())
        with self._lock:
            self._lease, self._lease_written_s = found, self._clock.monotonic_s()
            self._coordinator = None

    def saw_movements(self, compaction_id: Ulid, movements: Mapping[str, Movement]) -> None:
        with self._lock:
            self._movements[compaction_id] = movements

    def saw_finished(self, compaction_id: Ulid, last_outputs: Collection[str]) -> None:
        with self._lock:
            self._finished[compaction_id] = self._finished.get(compaction_id, frozenset()).union(last_outputs)

    def saw_attempts(self, attempts: Mapping[Ulid, tuple[Attempt, ...]]) -> None:
        with self._lock:
            self._attempts = dict(attempts)

    def added_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None:
        with self._lock:
            self._attempts[compaction_id] = (*self._attempts.get(compaction_id, ()), attempt)

    def cleared(self, compaction_id: Ulid) -> None:
        with self._lock:
            for known in (self._movements, self._finished, self._attempts):
                known.pop(compaction_id, None)

    def saw_failures(self, failures: Collection[FailedAttempt]) -> None:
        with self._lock:
            self._failures = {failure.compaction: failure for failure in failures}

    def forgave(self, compaction_id: Ulid) -> None:
        with self._lock:
            self._failures.pop(compaction_id, None)

    def committed(self, record: CommitRecord) -> None:
        with self._lock:
            self._commits = merged((*self._commits, record))[-self._most_commits :]

    def end(self, why: str) -> None:
        """Record that the service does not follow the dataset any more. `state` then raises
        `StoreUnavailable` with the reason."""
        with self._lock:
            self._why_over = why

    def read_beside(self, dataset: DatasetPort, records: CommitRecords) -> None:
        """Read the details that nothing else reads here, if they are due. This mirror observes `dataset`, a
        handle that only this thread uses."""
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
        dataset.journal.failures()
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

    def state(self, dataset: DatasetPort) -> MirroredState:
        """Return the state of the dataset as known now, without a request; `dataset` is any handle of it.
        Raise `StoreUnavailable` if ledger or snapshot were not read yet, or the service has ended."""
        with self._lock:
            if self._why_over:
                raise StoreUnavailable(self._why_over)
            if not self._has_ledger or self._snapshot is None:
                raise NotReadYet(self.url)
            found = MirroredState(
                self._ledger,
                self._snapshot,
                self._judged(),
                MirroredJournal(
                    dict(self._movements),
                    dict(self._finished),
                    dict(self._attempts),
                    tuple(sorted(self._failures.values(), key=lambda f: (f.at_ms, f.compaction))),
                ),
                MirroredHistory(self._arrivals, self._first_progress, self._heard),
                self._clock.now_ms(),
                self._read_ms,
                self._retained,
                self._beside,
            )
        if found.known_retained is None and (past := dataset.past(found.known_snapshot)) is not None:
            return replace(found, known_retained=Retained(past))
        return found

    def _judged(self) -> CoordinatorStatus:
        """Return the coordinator's status, from the lease. The age of a lease written here is known from the
        monotonic clock. The age of one that was only read is unknown: its holder may have written it
        since."""
        if self._coordinator is not None:
            return self._coordinator
        found, written_s = self._lease, self._lease_written_s
        epoch = 0 if self._ledger is None else self._ledger.epoch
        if found is None or found.lease is None:
            return without_lease(epoch)
        taken = found.lease.taken
        age_ms = None if written_s is None else round((self._clock.monotonic_s() - written_s) * 1000)
        return judge_lease(
            epoch if taken is None else taken,
            found.lease,
            found.written_ms,
            lambda: None if age_ms is None else found.written_ms + age_ms,
        )

    def newest(self, most: int | None = None, since_ms: int = 0) -> tuple[CommitRecord, ...]:
        """Return the last commits, as `CommitRecords.newest` does, but at most as many as are kept."""
        with self._lock:
            found = [record for record in self._commits if record.at_ms >= since_ms]
        return tuple(found if most is None else found[-most:] if most else ())


@dataclass(frozen=True, slots=True)
class MirroredState:
    """The state of a dataset at one moment, as known in this process (`DatasetState`)."""

    known_ledger: AnyLedger | None
    known_snapshot: Any
    known_coordinator: CoordinatorStatus
    journal: MirroredJournal
    known_history: MirroredHistory
    at_ms: int
    """The time by the clock of all records here, which is this machine's."""
    read_ms: int
    """When the service read or wrote the ledger last, by the same clock."""
    known_retained: Retained | None
    known_details: Any

    def ledger(self) -> AnyLedger | None:
        return self.known_ledger

    def snapshot(self) -> Any:
        return self.known_snapshot

    def glance(self) -> tuple[AnyLedger | None, Any]:
        return self.known_ledger, self.known_snapshot

    def history(self) -> MirroredHistory:
        return self.known_history

    def store_ms(self) -> int:
        return self.at_ms

    def coordinator(self) -> CoordinatorStatus:
        return self.known_coordinator

    def retained(self, snapshot: Any, ledger: AnyLedger) -> Retained | None:
        return self.known_retained

    def plan_details(self) -> Any:
        return self.known_details


@dataclass(frozen=True, slots=True)
class MirroredJournal:
    """The entries of a journal that were read or written in this process (`JournalEntries`)."""

    known_movements: Mapping[Ulid, Mapping[str, Movement]]
    known_finished: Mapping[Ulid, frozenset[str]]
    known_attempts: Mapping[Ulid, tuple[Attempt, ...]]
    known_failures: tuple[FailedAttempt, ...]

    def compactions(self) -> frozenset[Ulid]:
        return frozenset({*self.known_movements, *self.known_finished, *self.known_attempts})

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        return self.known_movements.get(compaction_id, {})

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        return self.known_finished.get(compaction_id, frozenset())

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        return self.known_attempts

    def failures(self) -> tuple[FailedAttempt, ...]:
        return self.known_failures


@dataclass(frozen=True, slots=True)
class MirroredHistory:
    """Since when each active compaction is in its state, as far as this process has seen it (`History`)."""

    arrivals: Mapping[_Stay, Arrival | None]
    progress: Mapping[_Stay, Arrival | None]
    beats: Mapping[_Beat, Arrival | None]

    def arrival(self, compaction: AnyCompaction) -> Arrival | None:
        return self.arrivals.get(_stay_of(compaction))

    def first_progress(self, compaction: AnyCompaction) -> Arrival | None:
        return self.progress.get(_stay_of(compaction))

    def heard(self, compaction: AnyCompaction) -> Arrival | None:
        worker = compaction.worker
        return None if worker is None else self.beats.get((_stay_of(compaction), worker.last_heartbeat_ms))

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

"""Recording of each commit (`lithify.coordination.commit_records`), in the background.

1. `Recorder` is an observer: it sums the costs of a compaction from the events of this process. It makes a
   record when the compaction is committed here, or when its work here has ended and another process will
   commit it.
2. A thread writes the records one after another. Only the end of the process waits for it, for at most
   `CLOSE_LIMIT_S`. The first failure to write is logged; records that cannot be written are dropped.
3. Once a day, the thread deletes a dataset's expired records.

Invariant: no failure of a record affects anything else. Compactions under way and records to be written are
bounded; the oldest are dropped. A dataset is recorded from `follow` to `forget`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.concurrency import start_thread
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.base.events import Event
from lithify.base.ids import Ulid
from lithify.coordination.commit_records import CommitRecord, CommitRecords
from lithify.store.metered import RequestOutcome, Verb

CLOSE_LIMIT_S = 5.0
SWEEP_INTERVAL_S = 24 * 3600.0
MAX_KNOWN = 10_000
"""The maximum number of compactions under way whose costs are kept."""
MAX_WAITING = 1_000
"""The maximum number of records to be written."""
_Key = tuple[str, str]
"""A dataset and a compaction."""

_log = logging.getLogger("lithify")


@dataclass(slots=True)
class _OpenCompaction:
    """The costs of a compaction under way, as far as this process has seen them."""

    unit: str = ""
    reason: str = ""
    workers: dict[str, None] = field(default_factory=dict)
    claimed_s: float | None = None
    """The time of the claim, while the compaction runs here."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    ranges: int = 0
    rows: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Followed:
    """A dataset whose commits are recorded."""

    records: CommitRecords
    coordinates: bool
    """Whether this process commits its compactions."""
    keep_ms: int
    requests: Counter[str] = field(default_factory=Counter)
    swept_at_s: float | None = None


class Recorder:
    """The observer that keeps records; see the module. Thread-safe."""

    def __init__(self, clock: Clock, *, keep_ms: int) -> None:
        self._clock = clock
        self._keep_ms = keep_ms
        self._lock = threading.Condition()
        self._followed: dict[str, _Followed] = {}
        self._requests: dict[str, Counter[str]] = {}
        self._known: OrderedDict[_Key, _OpenCompaction] = OrderedDict()
        self._waiting: deque[tuple[_Followed, CommitRecord]] = deque()
        self._is_writing = False
        self._is_running = False
        self._is_closed = False
        self._has_complained = False

    def follow(
        self,
        url: str,
        records: CommitRecords,
        *,
        coordinates: bool,
        counted_as: str = "",
        keep_ms: int | None = None,
    ) -> None:
        """Record the work for the dataset that events call `url`; idempotent. `counted_as` is the name under
        which its requests are counted (`counting`), if that differs. `keep_ms` is how long its records are
        kept; the default is the recorder's."""
        with self._lock:
            requests = self._requests.setdefault(counted_as or url, Counter())
            keep_ms = self._keep_ms if keep_ms is None else keep_ms
            self._followed.setdefault(
                url, _Followed(records, coordinates, keep_ms, requests)
            ).keep_ms = keep_ms

    def forget(self, url: str) -> None:
        """Stop recording the dataset; waiting records are still written. A process that opens it again
        follows it again."""
        with self._lock:
            self._followed.pop(url, None)
            self._requests.pop(url, None)

    def counting(self, url: str) -> Callable[[Verb, RequestOutcome], None]:
        """Return the callback that counts requests to the dataset's store. `url` may be any name, see
        `follow`."""
        with self._lock:
            requests = self._requests.setdefault(url, Counter())

        def count(verb: Verb, _answer: RequestOutcome) -> None:
            with self._lock:
                requests[verb.value] += 1

        return count

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Wait until all records are written, for at most `limit_s`; then drop the rest."""
        with self._lock:
            self._lock.wait_for(lambda: not self._waiting and not self._is_writing, limit_s)
            self._is_closed = True
            self._lock.notify_all()

    def __call__(self, event: Event) -> None:
        with self._lock:
            followed = self._followed.get(event.dataset)
            if followed is not None:
                self._take_in(event, followed)

    def _take_in(self, event: Event, followed: _Followed) -> None:
        match event:
            case events.Submitted(compaction=compaction, reason=reason, unit=unit):
                work = self._work(event.dataset, compaction)
                work.reason, work.unit = reason, unit
            case events.Claimed(compaction=compaction, worker=worker):
                work = self._work(event.dataset, compaction)
                work.claimed_s = self._clock.monotonic_s()
                work.workers[worker] = None
            case events.RangeFinished(compaction=compaction):
                self._add(self._work(event.dataset, compaction), event)
            case (
                events.Compacted(compaction=compaction)
                | events.AttemptFailed(compaction=compaction)
                | events.EngineLost(compaction=compaction)
                | events.StoreLost(compaction=compaction)
                | events.Lost(compaction=compaction)
                | events.GivenBack(compaction=compaction)
            ):
                self._end_of_work(event.dataset, compaction, followed)
            case events.Committed(compaction=compaction, unit=unit):
                done = self._known.pop((event.dataset, compaction), None) or _OpenCompaction()
                done.unit = unit
                self._stop_clock(done)
                self._record(followed, compaction, done, is_commit=True)
            case events.CompactionRefused(compaction=compaction) | events.Failed(compaction=compaction):
                self._known.pop((event.dataset, compaction), None)
            case _:
                pass

    def _work(self, url: str, compaction: str) -> _OpenCompaction:
        key = url, compaction
        if key not in self._known:
            self._known[key] = _OpenCompaction()
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return self._known[key]

    def _add(self, work: _OpenCompaction, event: events.RangeFinished) -> None:
        work.bytes_read += event.bytes_read
        work.bytes_written += event.bytes_written
        work.cpu_seconds += event.cpu_s
        work.ranges += 1
        work.rows.update(event.rows)

    def _stop_clock(self, work: _OpenCompaction) -> None:
        if work.claimed_s is not None:
            work.seconds += self._clock.monotonic_s() - work.claimed_s
            work.claimed_s = None

    def _end_of_work(self, url: str, compaction: str, followed: _Followed) -> None:
        work = self._known.get((url, compaction))
        if work is None:
            return
        self._stop_clock(work)
        if not followed.coordinates:
            del self._known[url, compaction]
            if work.ranges:
                self._record(followed, compaction, work, is_commit=False)

    def _record(
        self, followed: _Followed, compaction: str, work: _OpenCompaction, *, is_commit: bool
    ) -> None:
        requests = dict(followed.requests)
        followed.requests.clear()
        record = CommitRecord(
            Ulid(compaction),
            self._clock.now_ms(),
            is_commit,
            unit=work.unit,
            reason=work.reason,
            workers=tuple(work.workers),
            bytes_read=work.bytes_read,
            bytes_written=work.bytes_written,
            rows=dict(work.rows),
            ranges=work.ranges,
            seconds=round(work.seconds, 3),
            cpu_seconds=round(work.cpu_seconds, 3),
            requests=requests,
        )
        if self._is_closed:
            return
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append((followed, record))
        self._lock.notify_all()
        if not self._is_running:
            self._is_running = True
            start_thread(self._run)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting or self._is_closed:
                    return
                followed, record = self._waiting.popleft()
                self._is_writing = True
            self._attempt(lambda: followed.records.add(record))  # noqa: B023  # called at once
            with self._lock:
                self._is_writing = False
                self._lock.notify_all()
            self._sweep(followed)

    def _sweep(self, followed: _Followed) -> None:
        now_s = self._clock.monotonic_s()
        if followed.swept_at_s is None or now_s - followed.swept_at_s >= SWEEP_INTERVAL_S:
            followed.swept_at_s = now_s
            before_ms = self._clock.now_ms() - followed.keep_ms
            self._attempt(lambda: followed.records.sweep(before_ms))

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            with contained("writing the record of a commit"):
                action()
        except LithifyError as error:
            if not self._has_complained:
                _log.warning("records of commits cannot be written: %s", error)
            self._has_complained = True

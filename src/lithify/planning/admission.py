"""The task manager: chooses which planned work runs now, within a capacity, for all kinds of datasets.

Work waits in a queue by priority, then in order of arrival, and runs until its end is reported.

1. *Offer*: planned work joins the queue. Work that is already queued keeps its place among equals; work that
already runs is ignored. After a failure, a unit is refused until its backoff ends; backoffs double.
2. *Shed*: while the queue is longer than `max_queued`, its last entry is dropped: the lowest priority, among
equals the youngest. Running work is never cancelled.
3. *Start*: go through the queue in order and start all work that fits the number and the bytes that may run,
and its dataset's share of both. Called after every end, so that free capacity is used at once. Work that is
too large for the whole capacity runs when nothing else does; likewise for a share.
4. Smaller work may pass over work that does not fit, but only `max_passed_over` times: after that nothing
behind it starts (nothing of its dataset, if only the share is exhausted) until it fits.
5. *Dependencies*: work waits while one of its predecessors is queued or running. When a predecessor is
dropped, fails or is cancelled, all work that waits for it is dropped too and has to be planned anew.

Invariants: the queue is never longer than `max_queued`; no more work runs than the capacity allows, except
for one oversized piece alone; all offered work is queued, running, ended or reported as dropped.

This module reads no clock and no store, and its state may be lost: running work is in the ledgers (`adopt`),
and the rest is planned again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lithify.base.backoff import GrowingPause
from lithify.base.errors import Refused

MAX_REMEMBERED_FAILURES = 10_000
"""Maximum number of units whose failures are remembered; those whose backoff ends first are forgotten
first."""
UNBOUNDED_BYTES = 1 << 63
"""More than the size of any dataset."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The limits on work that runs and waits at the same time."""

    max_running: int = 4
    max_running_bytes: int = 64 << 30
    """Maximum total cost of running work."""
    max_queued: int = 1000
    max_dataset_share: float = 1.0
    """The part of `max_running` and of `max_running_bytes` that one dataset may use; each dataset may always
    run one piece of work."""
    max_passed_over: int = 8
    """How often smaller work may start before work that does not fit yet."""
    first_pause_ms: int = 60_000
    """The backoff of a unit after its first failure; doubles with each further failure."""
    max_pause_ms: int = 6 * 3_600_000

    def __post_init__(self) -> None:
        for name in ("max_running", "max_running_bytes", "max_queued", "first_pause_ms"):
            if getattr(self, name) < 1:
                raise Refused(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.max_dataset_share <= 1:
            raise Refused(f"max_dataset_share is {self.max_dataset_share}; it must be above 0 and at most 1")
        if self.max_passed_over < 0:
            raise Refused(f"max_passed_over is {self.max_passed_over}; it must not be negative")
        if self.max_pause_ms < self.first_pause_ms:
            raise Refused(f"max_pause_ms {self.max_pause_ms} is below first_pause_ms {self.first_pause_ms}")

    @property
    def pause(self) -> GrowingPause:
        """The backoff of a unit after failures."""
        return GrowingPause(self.first_pause_ms, self.max_pause_ms, factor=2)


@dataclass(frozen=True, slots=True)
class WorkKey:
    """The key of a piece of work: a dataset and a unit."""

    dataset: str
    unit: str


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """A planned piece of work."""

    key: WorkKey
    priority: float
    """0 (may wait) to 1 (urgent)."""
    cost_bytes: int
    after: tuple[WorkKey, ...] = ()
    """Predecessors that must end first. Unknown keys count as ended."""
    takes_capacity: bool = True
    """Whether the work counts towards the capacity; its dependents wait for its end in any case."""


class DropReason(Enum):
    """The reason why work is not in the queue any more."""

    SHED = "shed"
    """The queue was full of more urgent work."""
    BACKING_OFF = "backing off"
    """The unit failed, and its backoff is not over."""
    PREDECESSOR = "predecessor"
    """A predecessor was dropped, failed or was cancelled."""


@dataclass(frozen=True, slots=True)
class DroppedWork:
    """Work that was refused or removed from the queue."""

    work: PlannedWork
    why: DropReason


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    until_ms: int


@dataclass(slots=True)
class _Waiting:
    """Work in the queue."""

    work: PlannedWork
    number: int
    """Order of arrival."""
    passed_over: int = 0

    @property
    def order(self) -> tuple[float, int]:
        return -self.work.priority, self.number


class Budget:
    """The queue and the running work under one capacity. Not thread-safe."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._queue: list[_Waiting] = []
        self._queued: dict[WorkKey, _Waiting] = {}
        self._running: dict[WorkKey, PlannedWork] = {}
        self._failures: dict[WorkKey, _Failures] = {}
        self._arrivals = 0
        self._queued_with_after = 0
        """Number of queued works that have predecessors."""

    @property
    def queued(self) -> tuple[PlannedWork, ...]:
        """The waiting work, in the order in which it would start."""
        return tuple(waiting.work for waiting in self._queue)

    @property
    def running(self) -> tuple[PlannedWork, ...]:
        """The running work, in the order in which it started."""
        return tuple(self._running.values())

    def copy(self) -> Budget:
        """Return an independent copy."""
        twin = Budget(self.capacity)
        twin._queued = {key: replace(waiting) for key, waiting in self._queued.items()}
        twin._queue = [twin._queued[waiting.work.key] for waiting in self._queue]
        twin._running, twin._failures = dict(self._running), dict(self._failures)
        twin._arrivals, twin._queued_with_after = self._arrivals, self._queued_with_after
        return twin

    def adopt(self, works: Iterable[PlannedWork]) -> None:
        """Record work that has been running since before this budget was created."""
        for work in works:
            self._remove(work.key)
            self._running[work.key] = work

    def offer(self, works: Sequence[PlannedWork], now_ms: int) -> tuple[DroppedWork, ...]:
        """Queue planned work. Return the works dropped because of it, from these or earlier offers. `now_ms`
        is the time of any clock that never goes back."""
        dropped: list[DroppedWork] = []
        for work in works:
            if self._is_backing_off(work.key, now_ms):
                dropped.append(DroppedWork(work, DropReason.BACKING_OFF))
            elif work.key not in self._running:
                self._enqueue(work)
        dropped += self._drop_waiting_for({drop.work.key for drop in dropped})
        while len(self._queue) > self.capacity.max_queued:
            last = self._queue[-1].work
            self._remove(last.key)
            dropped.append(DroppedWork(last, DropReason.SHED))
            dropped += self._drop_waiting_for({last.key})
        return tuple(dropped)

    def start(self) -> tuple[PlannedWork, ...]:
        """Return the work to start now, most urgent first; it counts as running from now on."""
        started: list[PlannedWork] = []
        behind = _Behind(self.capacity.max_passed_over)
        usage = _Usage.of(self._running.values())
        for waiting in list(self._queue):
            if usage.count >= self.capacity.max_running or behind.all_wait:
                break
            work = waiting.work
            if behind.waits(work) or self._has_predecessor(work):
                continue
            if not usage.leaves_share(work, self.capacity):
                behind.add(waiting, only_its_dataset=True)
            elif not usage.leaves_room(work, self.capacity):
                behind.add(waiting, only_its_dataset=False)
            else:
                self._remove(work.key)
                self._running[work.key] = work
                usage.add(work)
                behind.pass_over(work)
                started.append(work)
        if self._queue and not self._running:
            raise ValueError(
                f"queued work waits only for queued work: {[waiting.work for waiting in self._queue][:9]}"
            )
        return tuple(started)

    def ready(self) -> tuple[PlannedWork, ...]:
        """Return queued work that waits only for capacity, in queue order. For callers that have their own
        order and report with `begin` which work they start."""
        return tuple(w.work for w in self._queue if not self._has_predecessor(w.work))

    def begin(self, key: WorkKey) -> None:
        """Mark queued work as running."""
        work = self._queued[key].work
        self._remove(key)
        self._running[key] = work

    def rests_until_ms(self, key: WorkKey) -> int:
        """Return when the backoff after the last failure ends; 0 if the work has not failed."""
        failures = self._failures.get(key)
        return 0 if failures is None else failures.until_ms

    def finished(self, key: WorkKey) -> None:
        """Record that the work succeeded. Call `start` next."""
        self._running.pop(key, None)
        self._failures.pop(key, None)

    def failed(self, key: WorkKey, now_ms: int) -> tuple[DroppedWork, ...]:
        """Record that the work failed; its unit backs off. Return the dropped dependents."""
        self._running.pop(key, None)
        before = self._failures.pop(key, None)
        count = before.count + 1 if before is not None else 1
        self._failures[key] = _Failures(count, now_ms + self.capacity.pause.after_ms(count))
        if len(self._failures) > MAX_REMEMBERED_FAILURES:
            del self._failures[min(self._failures, key=lambda key: self._failures[key].until_ms)]
        return self._drop_waiting_for({key})

    def cancelled(self, key: WorkKey) -> tuple[DroppedWork, ...]:
        """Record that the work, running or queued, is cancelled. Return the dropped dependents."""
        self._running.pop(key, None)
        self._remove(key)
        return self._drop_waiting_for({key})

    def _enqueue(self, work: PlannedWork) -> None:
        known = self._queued.get(work.key)
        if known is not None:
            self._remove(work.key)
            waiting = _Waiting(work, known.number, known.passed_over)
        else:
            self._arrivals += 1
            waiting = _Waiting(work, self._arrivals)
        self._queued[work.key] = waiting
        self._queued_with_after += bool(work.after)
        insort(self._queue, waiting, key=lambda waiting: waiting.order)

    def _remove(self, key: WorkKey) -> None:
        waiting = self._queued.pop(key, None)
        if waiting is not None:
            del self._queue[bisect_left(self._queue, waiting.order, key=lambda waiting: waiting.order)]
            self._queued_with_after -= bool(waiting.work.after)

    def _is_backing_off(self, key: WorkKey, now_ms: int) -> bool:
        failures = self._failures.get(key)
        return failures is not None and now_ms < failures.until_ms

    def _has_predecessor(self, work: PlannedWork) -> bool:
        return any(key in self._queued or key in self._running for key in work.after)

    def _drop_waiting_for(self, gone: set[WorkKey]) -> tuple[DroppedWork, ...]:
        """Drop all direct and indirect dependents of these works."""
        dropped: list[DroppedWork] = []
        while gone and self._queued_with_after:
            orphans = [waiting.work for waiting in self._queue if not gone.isdisjoint(waiting.work.after)]
            for work in orphans:
                self._remove(work.key)
            dropped += (DroppedWork(work, DropReason.PREDECESSOR) for work in orphans)
            gone = {work.key for work in orphans}
        return tuple(dropped)


@dataclass(slots=True)
class _Usage:
    """The amount of running work, in total and per dataset."""

    count: int
    size_bytes: int
    by_dataset: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, works: Iterable[PlannedWork]) -> _Usage:
        usage = cls(0, 0, {})
        for work in works:
            if work.takes_capacity:
                usage.add(work)
        return usage

    def add(self, work: PlannedWork) -> None:
        self.count += 1
        self.size_bytes += work.cost_bytes
        count, size_bytes = self.by_dataset.get(work.key.dataset, (0, 0))
        self.by_dataset[work.key.dataset] = count + 1, size_bytes + work.cost_bytes

    def leaves_share(self, work: PlannedWork, capacity: Capacity) -> bool:
        count, size_bytes = self.by_dataset.get(work.key.dataset, (0, 0))
        return not count or (
            count < max(1, math.floor(capacity.max_running * capacity.max_dataset_share))
            and size_bytes + work.cost_bytes <= capacity.max_running_bytes * capacity.max_dataset_share
        )

    def leaves_room(self, work: PlannedWork, capacity: Capacity) -> bool:
        return not self.count or self.size_bytes + work.cost_bytes <= capacity.max_running_bytes


class _Behind:
    """Work that did not fit, and how much may still start behind it."""

    def __init__(self, max_passed_over: int) -> None:
        self.all_wait = False
        self._max_passed_over = max_passed_over
        self._everywhere: list[_Waiting] = []
        self._by_dataset: dict[str, list[_Waiting]] = {}
        self._datasets_that_wait: set[str] = set()

    def add(self, waiting: _Waiting, *, only_its_dataset: bool) -> None:
        if only_its_dataset:
            self._by_dataset.setdefault(waiting.work.key.dataset, []).append(waiting)
        else:
            self._everywhere.append(waiting)
        self._close(waiting, only_its_dataset)

    def waits(self, work: PlannedWork) -> bool:
        return work.key.dataset in self._datasets_that_wait

    def pass_over(self, work: PlannedWork) -> None:
        for waiting in self._everywhere:
            waiting.passed_over += 1
            self._close(waiting, only_its_dataset=False)
        for waiting in self._by_dataset.get(work.key.dataset, ()):
            waiting.passed_over += 1
            self._close(waiting, only_its_dataset=True)

    def _close(self, waiting: _Waiting, only_its_dataset: bool) -> None:
        if waiting.passed_over < self._max_passed_over:
            return
        if only_its_dataset:
            self._datasets_that_wait.add(waiting.work.key.dataset)
        else:
            self.all_wait = True

"""When a worker deserves a heartbeat, and when a coordinator takes a worker for silent.

*Deserving one*: a running compaction must have made progress.

1. Moved bytes: for each range the bytes its tasks have reported, or those of its result once it is finished,
whichever is more.
2. A heartbeat is due when `heartbeat_bytes` have moved since the last one, or a range was finished.
3. Ranges wait for a free slot, or for the engine to start, without moving a byte. While none of the open
ranges is being executed, a heartbeat is due as well, until `range_start_timeout_ms` have passed since bytes
moved last.

So a range may take any time while it moves bytes, and a hung one ends the heartbeats. Times are of a
monotonic clock.

*Silence* is detected by the coordinator's own clock. A heartbeat in the ledger carries the time of the
worker's clock, which may be wrong. So the coordinator compares no clocks: a worker is silent when the
coordinator has seen its heartbeat in the ledger unchanged for longer than the timeout. A coordinator that has
just started has seen nothing yet and gives every worker the whole timeout. After a long time without a poll,
because the coordinator's machine was suspended or its process stopped, it counts at most half the timeout for
that time: the worker may have been stopped as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lithify.base.ids import Ulid
from lithify.protocol.attempts import Movement
from lithify.protocol.model import AssignedWorker, CompactionState
from lithify.protocol.transitions import AnyLedger


@dataclass(slots=True)
class ProgressGate:
    """The progress of one claim, as seen by its worker."""

    moved_at_ms: int
    """When bytes moved last; at first, the time of the claim."""
    _reported: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes by range and by run of its task."""
    _read: dict[int, int] = field(default_factory=dict)
    """Bytes read, by active range, of the run of its task that has read most."""
    _finished: dict[int, int] = field(default_factory=dict)
    _beaten_bytes: int = 0
    _beaten_ranges: int = 0
    _is_executing: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written since the claim."""
        indexes = self._reported.keys() | self._finished.keys()
        return sum(max(self._finished.get(i, 0), sum(self._reported.get(i, {}).values())) for i in indexes)

    @property
    def reading(self) -> Mapping[int, int]:
        """Bytes read, by active range."""
        return self._read

    @property
    def has_news(self) -> bool:
        """Whether a range was finished since the last heartbeat."""
        return len(self._finished) > self._beaten_ranges

    def finish(self, index: int, bytes_moved: int, now_ms: int) -> None:
        """Record that a range is finished."""
        self._finished[index] = bytes_moved
        self._read.pop(index, None)
        self.moved_at_ms = now_ms

    def look(self, movements: Mapping[str, Movement], now_ms: int) -> None:
        """Record the current reports of this claim's tasks."""
        before = self.moved_bytes
        for name, movement in movements.items():
            runs = self._reported.setdefault(movement.index, {})
            runs[name] = max(runs.get(name, 0), movement.bytes_read + movement.bytes_written)
            if movement.index not in self._finished:
                self._read[movement.index] = max(self._read.get(movement.index, 0), movement.bytes_read)
        self._is_executing = any(m.index not in self._finished for m in movements.values())
        if self.moved_bytes > before:
            self.moved_at_ms = now_ms

    def deserves_heartbeat(self, now_ms: int, heartbeat_bytes: int, range_start_timeout_ms: int) -> bool:
        """Return whether a heartbeat is due by the rules above, as of the last `look`."""
        if self.has_news or self.moved_bytes - self._beaten_bytes >= heartbeat_bytes:
            return True
        return not self._is_executing and now_ms - self.moved_at_ms <= range_start_timeout_ms

    def beat(self) -> None:
        """Record that a heartbeat was written."""
        self._beaten_bytes = self.moved_bytes
        self._beaten_ranges = len(self._finished)


@dataclass(frozen=True, slots=True)
class _Sighting:
    worker: AssignedWorker
    unchanged_s: float = 0.0
    """How long it has been seen unchanged."""


class SilenceWatch:
    """Tracks the heartbeats of Running compactions for one coordinator. Times are of a monotonic clock."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._seen: dict[Ulid, _Sighting] = {}
        self._looked_s = 0.0

    def silent(self, ledger: AnyLedger, now_s: float) -> tuple[Ulid, ...]:
        """Read the latest ledger. Return the Running compactions whose worker has been silent for longer than
        the timeout, and those that name no worker at all."""
        passed_s = min(now_s - self._looked_s, self._timeout_s / 2)
        self._looked_s = now_s
        running = [c for c in ledger.compactions if c.state is CompactionState.RUNNING]
        self._seen = {c.id: self._sight(c.id, c.worker, passed_s) for c in running if c.worker is not None}
        return tuple(
            c.id for c in running if c.worker is None or self._seen[c.id].unchanged_s > self._timeout_s
        )

    def _sight(self, compaction_id: Ulid, worker: AssignedWorker, passed_s: float) -> _Sighting:
        before = self._seen.get(compaction_id)
        if before is None or before.worker != worker:
            return _Sighting(worker)
        return _Sighting(worker, before.unchanged_s + passed_s)

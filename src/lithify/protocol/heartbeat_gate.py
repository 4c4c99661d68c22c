"""Whether a running compaction moves enough for a heartbeat.

1. What has moved: for each range the bytes its tasks have reported, or those of its result once it is
   finished, whichever is more.
2. A heartbeat is deserved when `heartbeat_bytes` have moved since the last one, or a range was finished.
3. Ranges wait for a free slot, or for the engine to start, without moving a byte. While none of the open
   ranges is being executed, a heartbeat is deserved as well, until `range_start_timeout_ms` have passed
   since bytes moved last.

So a range may take as long as it likes while it moves, and a hung one ends the heartbeats. Times are those
of a clock that does not jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lithify.protocol.attempts import Movement


@dataclass(slots=True)
class ProgressGate:
    """The movements of one claim, as its worker sees them."""

    moved_at_ms: int
    """When bytes moved last; at first, when the compaction was claimed."""
    _reported: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes by range and by run of its task."""
    _read: dict[int, int] = field(default_factory=dict)
    """Bytes by range under way that the run of its task that is furthest has read."""
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
        """Bytes read, by range that is under way."""
        return self._read

    @property
    def has_news(self) -> bool:
        """Whether a range was finished since the last heartbeat."""
        return len(self._finished) > self._beaten_ranges

    def finish(self, index: int, bytes_moved: int, now_ms: int) -> None:
        """A range is finished."""
        self._finished[index] = bytes_moved
        self._read.pop(index, None)
        self.moved_at_ms = now_ms

    def look(self, movements: Mapping[str, Movement], now_ms: int) -> None:
        """Take in what the tasks of this claim report now."""
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
        """By the rules above, as of the last look."""
        if self.has_news or self.moved_bytes - self._beaten_bytes >= heartbeat_bytes:
            return True
        return not self._is_executing and now_ms - self.moved_at_ms <= range_start_timeout_ms

    def beat(self) -> None:
        """A heartbeat was written."""
        self._beaten_bytes = self.moved_bytes
        self._beaten_ranges = len(self._finished)

"""How often an idle worker asks whether there is work.

1. It asks the bell of each of its queues every `BELL_PAUSE_MS`, so that work out of a silence starts within
   a second, and twice as often for `BUSY_MS` after it had something: who has is given to first
   (`hints.meant_for`). After `SLOW_AFTER_MS` without a claim the pause doubles, and again after as long, up
   to `MAX_BELL_PAUSE_MS`.
2. When the bell rang it reads the boards at once.
3. Bells may be lost: without one it reads the boards after a pause that grows with each time in a row in
   which there was nothing to claim, or others had it all, up to `BOARDS_PAUSE.max_ms`. A claim or a bell
   begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lithify.base.backoff import GrowingPause

BELL_PAUSE_MS = 1_000
BUSY_BELL_PAUSE_MS = 500
BUSY_MS = 30_000
MAX_BELL_PAUSE_MS = 5_000
SLOW_AFTER_MS = 600_000
BOARDS_PAUSE = GrowingPause(first_ms=1_000, max_ms=30_000)
_MAX_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class PollBackoff:
    """What a worker remembers of its questions. All times by one clock."""

    idle_since_ms: int
    misses: int = 0
    """Times in a row that it read the boards and claimed nothing."""
    missed_ms: int = 0
    had_ms: int | None = None
    """When something was claimed here, or ended, last."""

    def bell_pause_ms(self, now_ms: int) -> int:
        """How long between two questions to the bell."""
        doublings = min(max(0, now_ms - self.idle_since_ms) // SLOW_AFTER_MS, _MAX_DOUBLINGS)
        is_busy = self.had_ms is not None and now_ms - self.had_ms < BUSY_MS
        return min((BUSY_BELL_PAUSE_MS if is_busy else BELL_PAUSE_MS) << doublings, MAX_BELL_PAUSE_MS)

    def reads_boards(self, now_ms: int, *, has_rung: bool) -> bool:
        """Whether to read the boards now."""
        return has_rung or not BOARDS_PAUSE.lasts(self.misses, self.missed_ms, now_ms)

    def rung(self) -> PollBackoff:
        """The bell rang for this worker."""
        return replace(self, misses=0)

    def missed(self, now_ms: int) -> PollBackoff:
        """There was nothing to claim, or all of it was lost."""
        return replace(self, misses=self.misses + 1, missed_ms=now_ms)

    def claimed(self, now_ms: int) -> PollBackoff:
        """Something was claimed, or has ended."""
        return PollBackoff(idle_since_ms=now_ms, had_ms=now_ms)

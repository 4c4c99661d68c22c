"""How often members of a fleet poll: an idle worker for work, and a coordinator each of its datasets.

*An idle worker*:

1. It polls the notifications of each of its queues every `BELL_PAUSE_MS`, so that work after a silence starts
within a second, and twice as often for `BUSY_MS` after it had work: workers with work get offers first
(`task_offers.meant_for`). After `SLOW_AFTER_MS` without a claim the pause doubles, and again after as long,
up to `MAX_BELL_PAUSE_MS`.
2. After a notification it reads the boards at once.
3. Notifications may be lost: without one it reads the boards after a pause that grows with each time in a row
in which there was nothing to claim, or all claims were lost, up to `BOARDS_PAUSE.max_ms`. A claim or a
notification resets the pause.

*A dataset*: its coordinator polls it again after a tenth of the time that had passed since the last change at
the last poll, but not sooner than `SHORTEST_PAUSE_MS` and not later than `LONGEST_PAUSE_MS`; while a
compaction runs, every `RUNNING_PAUSE_MS`. So it sees a change after 10 % of the silence before it.

A poll requests the next number of manifest and ledger. A missing next number means "unchanged" only while the
last known one cannot have been collected: if the last poll is more than `SURE_MS` ago, the poll also requests
the boundary below which numbers are collected (`lithify.store.versions`).
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
    """The polling state of a worker. All times by one clock."""

    idle_since_ms: int
    misses: int = 0
    """Times in a row that it read the boards and claimed nothing."""
    missed_ms: int = 0
    had_ms: int | None = None
    """When a compaction was last claimed here, or ended."""

    def bell_pause_ms(self, now_ms: int) -> int:
        """Return the pause between two polls for notifications."""
        doublings = min(max(0, now_ms - self.idle_since_ms) // SLOW_AFTER_MS, _MAX_DOUBLINGS)
        is_busy = self.had_ms is not None and now_ms - self.had_ms < BUSY_MS
        return min((BUSY_BELL_PAUSE_MS if is_busy else BELL_PAUSE_MS) << doublings, MAX_BELL_PAUSE_MS)

    def reads_boards(self, now_ms: int, *, has_rung: bool) -> bool:
        return has_rung or not BOARDS_PAUSE.lasts(self.misses, self.missed_ms, now_ms)

    def rung(self) -> PollBackoff:
        """Return the state after a notification for this worker."""
        return replace(self, misses=0)

    def missed(self, now_ms: int) -> PollBackoff:
        """Return the state after there was nothing to claim, or all claims were lost."""
        return replace(self, misses=self.misses + 1, missed_ms=now_ms)

    def claimed(self, now_ms: int) -> PollBackoff:
        """Return the state after a compaction was claimed, or has ended."""
        return PollBackoff(idle_since_ms=now_ms, had_ms=now_ms)


SHORTEST_PAUSE_MS = 5_000
LONGEST_PAUSE_MS = 300_000
RUNNING_PAUSE_MS = 2_000
SURE_MS = 60_000
_SILENCE_TO_PAUSE = 10


def pause_ms(silence_ms: int, *, is_running: bool) -> int:
    """Return the pause before the next poll of a dataset that had been unchanged for `silence_ms` at the last
    one."""
    if is_running:
        return RUNNING_PAUSE_MS
    return min(max(silence_ms // _SILENCE_TO_PAUSE, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)

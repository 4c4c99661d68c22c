"""The polling schedule of a dataset: how often its fleet coordinator polls it.

A fleet coordinator polls again after a tenth of the time that had passed since the last change at the last
poll, but not sooner than `SHORTEST_PAUSE_MS` and not later than `LONGEST_PAUSE_MS`; while a compaction runs,
every `RUNNING_PAUSE_MS`. So it sees a change after 10 % of the silence before it.

A poll requests the next number of manifest and ledger. A missing next number means "unchanged" only while the
last known one cannot have been collected: if the last poll is more than `SURE_MS` ago, the poll also requests
the boundary below which numbers are collected (`lithify.store.versions`).
"""

from __future__ import annotations

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

"""The polling schedule of a dataset: how often a member polls it, and how thoroughly.

1. A member polls again after a tenth of the time that had passed since the last change at the last poll, but
not sooner than `SHORTEST_PAUSE_MS` and not later than `LONGEST_PAUSE_MS`; while a compaction runs, every
`RUNNING_PAUSE_MS`. So a change is seen after 10 % of the silence before it.
2. A poll requests the next number of manifest and ledger (`Depth.NUMBERS`). A missing next number means
"unchanged" only while it cannot have been collected: if the last poll is more than `SURE_MS` ago, the poll
also requests the boundary below which numbers are collected (`Depth.BOUNDARY`).
3. At least once in `LISTING_EVERY_MS` the poll lists instead (`Depth.LISTING`), whatever is cached. A hash of
the URL decides when, so that datasets that were found together are not listed together for ever.

A time in the future, written by a clock that was set, counts as now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lithify.planning.fleet.placement import fraction

SHORTEST_PAUSE_MS = 5_000
LONGEST_PAUSE_MS = 300_000
RUNNING_PAUSE_MS = 2_000
SURE_MS = 60_000
LISTING_EVERY_MS = 3_600_000
_SILENCE_TO_PAUSE = 10
_LISTING_SPREAD = 0.25


class Depth(IntEnum):
    """The thoroughness of a poll; each value includes those before."""

    NUMBERS = 1
    """Check whether there is a next manifest or a next ledger."""
    BOUNDARY = 2
    """Check also whether any numbers were collected meanwhile."""
    LISTING = 3
    """List all objects."""


@dataclass(frozen=True, slots=True)
class PollState:
    """A member's polling state of a dataset. All times by one clock."""

    url: str
    changed_ms: int
    """When the member saw the last change."""
    looked_ms: int | None = None
    """The last poll; `None` before the first."""
    listed_ms: int | None = None
    """The last poll that was a listing."""
    is_running: bool = False
    """Whether the dataset has an active compaction."""


def next_look_ms(watched: PollState) -> int:
    """Return when to poll again; 0 means at once."""
    if watched.looked_ms is None:
        return 0
    return watched.looked_ms + pause_ms(watched.looked_ms - watched.changed_ms, is_running=watched.is_running)


def pause_ms(silence_ms: int, *, is_running: bool) -> int:
    """Return the pause before the next poll of a dataset that had been unchanged for `silence_ms` at the last
    one."""
    if is_running:
        return RUNNING_PAUSE_MS
    return min(max(silence_ms // _SILENCE_TO_PAUSE, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)


def is_due(watched: PollState, now_ms: int) -> bool:
    return now_ms >= next_look_ms(watched) or _is_future(watched.looked_ms, now_ms)


def depth(watched: PollState, now_ms: int) -> Depth:
    """Return how thorough a poll has to be now."""
    looked_ms, listed_ms = watched.looked_ms, watched.listed_ms
    if looked_ms is None or listed_ms is None or _is_future(listed_ms, now_ms):
        return Depth.LISTING
    if now_ms - listed_ms >= listing_pause_ms(watched.url):
        return Depth.LISTING
    if now_ms - looked_ms > SURE_MS or _is_future(looked_ms, now_ms):
        return Depth.BOUNDARY
    return Depth.NUMBERS


def listing_pause_ms(url: str) -> int:
    """Return the time between two listings of this dataset; the next poll after it is a listing. Short enough
    that, with the longest pause between two polls, it is at most `LISTING_EVERY_MS`."""
    most_ms = LISTING_EVERY_MS - LONGEST_PAUSE_MS
    return round(most_ms * (1 - _LISTING_SPREAD * fraction("listing", url)))


def _is_future(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and at_ms > now_ms

"""How often a member looks at a dataset, and how closely.

1. Who watches looks again after a tenth of the time that had passed since the last change, when it looked,
   but not sooner than `SHORTEST_PAUSE_MS` and not later than `LONGEST_PAUSE_MS`. While something runs: every
   `RUNNING_PAUSE_MS`. So a change is seen after 10 % of the silence before it.
2. A look asks for the next number of manifest and ledger (`Depth.NUMBERS`). That the next number is not
   there means "unchanged" only as long as nobody can have collected it: when the last look is more than
   `SURE_MS` ago, the look asks for the boundary below which numbers are collected, too (`Depth.BOUNDARY`).
3. At least once in `LISTING_EVERY_MS` it lists instead (`Depth.LISTING`), whatever it believes to know. When
   exactly goes by a hash of the URL, so that what was found together is not listed together for ever.

A time in the future, by a clock that was set, counts as now.
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
    """How closely to look; each contains those before."""

    NUMBERS = 1
    """Is there a next manifest, a next ledger?"""
    BOUNDARY = 2
    """And was anything collected meanwhile?"""
    LISTING = 3
    """What is there?"""


@dataclass(frozen=True, slots=True)
class PollState:
    """What a member knows of a dataset, as far as looking goes. All times by one clock."""

    url: str
    changed_ms: int
    """When it saw the last change."""
    looked_ms: int | None = None
    """The last look; `None` before the first."""
    listed_ms: int | None = None
    """The last of these that was a listing."""
    is_running: bool = False
    """Whether a compaction of it is under way."""


def next_look_ms(watched: PollState) -> int:
    """When to look again; 0 is at once."""
    if watched.looked_ms is None:
        return 0
    return watched.looked_ms + pause_ms(watched.looked_ms - watched.changed_ms, is_running=watched.is_running)


def pause_ms(silence_ms: int, *, is_running: bool) -> int:
    """How long to leave a dataset alone that had not changed for so long at the last look."""
    if is_running:
        return RUNNING_PAUSE_MS
    return min(max(silence_ms // _SILENCE_TO_PAUSE, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)


def is_due(watched: PollState, now_ms: int) -> bool:
    """Whether to look now."""
    return now_ms >= next_look_ms(watched) or _is_future(watched.looked_ms, now_ms)


def depth(watched: PollState, now_ms: int) -> Depth:
    """How closely to look now."""
    looked_ms, listed_ms = watched.looked_ms, watched.listed_ms
    if looked_ms is None or listed_ms is None or _is_future(listed_ms, now_ms):
        return Depth.LISTING
    if now_ms - listed_ms >= listing_pause_ms(watched.url):
        return Depth.LISTING
    if now_ms - looked_ms > SURE_MS or _is_future(looked_ms, now_ms):
        return Depth.BOUNDARY
    return Depth.NUMBERS


def listing_pause_ms(url: str) -> int:
    """How long listings of this dataset lie apart; the next look after it is one. Early enough that with the
    longest pause between two looks it is no more than `LISTING_EVERY_MS`."""
    most_ms = LISTING_EVERY_MS - LONGEST_PAUSE_MS
    return round(most_ms * (1 - _LISTING_SPREAD * fraction("listing", url)))


def _is_future(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and at_ms > now_ms

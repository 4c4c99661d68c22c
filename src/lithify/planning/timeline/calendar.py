"""The chunks of the calendar: hours, days, weeks, months and years in a time zone.

1. The calendar is a sequence of *labels*: local hours, dates, Mondays, firsts of a month, Januaries.
2. A chunk begins at the first instant at which the local clock has reached its label, and ends where
   the next chunk begins. So a day has 23 or 25 hours when the clock changes; a midnight that is skipped
   is replaced by the first instant after it; a day that a zone left out altogether has no chunk; and
   time that is lived through twice stays in the chunk that had begun.
3. An hour is cut also where the offset from UTC changes, so that an hour that is lived through twice
   makes two chunks.

Invariants: chunks follow each other without gap or overlap, and each instant is in exactly one. Before
year 2 and after the last days of year 9999 there is one chunk each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Granularity(Enum):
    """The length of a chunk."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class Calendar:
    """A granularity in a time zone (IANA name)."""

    granularity: Granularity = Granularity.DAY
    zone: str = "UTC"

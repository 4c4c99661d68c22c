"""The chunks of the calendar: hours, days, weeks, months and years in a time zone.

1. The calendar is a sequence of *labels*: local dates, Mondays, firsts of a month, Januaries.
2. A chunk begins at the first instant at which the local clock has reached its label, and ends where the next
chunk begins. So a day has 23 or 25 hours when the clock changes; a midnight that is skipped is replaced by
the first instant after it; a day that a zone left out altogether has no chunk; and time that occurs twice
stays in the chunk that had begun.
3. Hours have no labels: an hour begins where the local clock shows a full hour, and is also cut where the
offset from UTC changes. So an hour that occurs twice makes two chunks.

Invariants: chunks follow each other without gap or overlap, and each instant is in exactly one. All time
before year 2 is one chunk, and so is all time after the beginning of year 9999.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lithify.base.errors import Refused

MIN_US = -(1 << 61)
MAX_US = 1 << 61
"""The calendar's limit in both directions, 73,000 years from the epoch; times outside are clamped to it."""

_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_DAY_US = 24 * _HOUR_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST = date(2, 1, 1)
_LAST = date(9999, 1, 1)
_ENDLESS = date(1, 1, 1)
"""The label of all time before `_FIRST`."""
_MAX_GAP_US = 26 * _HOUR_US
"""Upper bound of how far a clock was ever put forward."""


class Granularity(Enum):
    """The length of a chunk."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """Starts on Monday."""
    MONTH = "month"
    YEAR = "year"

    @property
    def shortest_us(self) -> int:
        """A lower bound of the length of whole chunks."""
        return _SHORTEST_US[self]


_SHORTEST_US = {
    Granularity.HOUR: _HOUR_US,
    Granularity.DAY: 22 * _HOUR_US,
    Granularity.WEEK: 6 * _DAY_US,
    Granularity.MONTH: 27 * _DAY_US,
    Granularity.YEAR: 364 * _DAY_US,
}


@dataclass(frozen=True, slots=True)
class Calendar:
    """A granularity in a time zone (IANA name)."""

    granularity: Granularity = Granularity.DAY
    zone: str = "UTC"
    _tz: ZoneInfo | None = field(init=False, repr=False, compare=False)
    """`None` for UTC."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tz", None if self.zone == "UTC" else _load(self.zone))

    def edges(self, start_us: int, end_us: int) -> list[int]:
        """Return the beginnings of all chunks that have an instant from `start_us` up to and without
        `end_us`, ascending, and the end of the last one."""
        start_us, end_us = _within(start_us, end_us)
        if self.granularity is Granularity.HOUR:
            edges = [self._hour(start_us)[0]]
            while edges[-1] < end_us:
                edges.append(self._hour(edges[-1])[1])
            return edges
        label: date | None = self._label(start_us)
        assert label is not None
        edges = [self._begin(label)]
        while edges[-1] < end_us:
            label = self._next(label) if label is not None else None
            edge = MAX_US if label is None else self._begin(label)
            if edge > edges[-1]:
                edges.append(edge)
        return edges

    def count(self, start_us: int, end_us: int) -> int:
        """Return how many chunks have an instant between the two; approximate where a clock change cuts or
        leaves out chunks."""
        start_us, end_us = _within(start_us, end_us)
        if self.granularity is Granularity.HOUR:
            return (self._hour(end_us - 1)[0] - self._hour(start_us)[0]) // _HOUR_US + 1
        return self._number(self._label(end_us - 1)) - self._number(self._label(start_us)) + 1

    def name(self, start_us: int) -> str:
        """Return the display name of the chunk that begins at `start_us`."""
        if start_us < self._begin(_FIRST):
            return "before year 2"
        if start_us >= self._begin(_LAST):
            return "year 9999 and later"
        if self.granularity is Granularity.HOUR:
            local = (_EPOCH + timedelta(microseconds=start_us)).astimezone(self._tz or UTC)
            return local.strftime("%Y-%m-%dT%H:%M%z").replace("+0000", "Z")
        label = self._label(start_us).isoformat()
        length = {Granularity.MONTH: 7, Granularity.YEAR: 4}.get(self.granularity, len(label))
        return label[:length]

    # Hours

    def _hour(self, at_us: int) -> tuple[int, int]:
        """Return the beginning and the end of the hour of that instant."""
        first_us, last_us = self._begin(_FIRST), self._begin(_LAST)
        if at_us < first_us:
            return MIN_US, first_us
        if at_us >= last_us:
            return last_us, MAX_US
        offset_us = self._offset_us(at_us)
        start_us = at_us - (at_us + offset_us) % _HOUR_US
        end_us = start_us + _HOUR_US
        if self._offset_us(start_us) != offset_us:
            start_us = self._change_of_offset(start_us, at_us)
        if self._offset_us(end_us - 1) != offset_us:
            end_us = self._change_of_offset(at_us, end_us - 1)
        return start_us, end_us

    def _change_of_offset(self, before_us: int, after_us: int) -> int:
        """Return the first instant, up to `after_us`, whose offset differs from that of `before_us`."""
        offset_us = self._offset_us(before_us)
        low, high = before_us // _SECOND_US, after_us // _SECOND_US
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset_us(middle * _SECOND_US) == offset_us:
                low = middle
            else:
                high = middle
        return high * _SECOND_US

    # Labels

    def _label(self, at_us: int) -> date:
        """Return the label of the chunk of that instant."""
        if at_us < self._begin(_FIRST):
            return _ENDLESS
        if at_us >= self._begin(_LAST):
            return _LAST
        day = (at_us + self._offset_us(at_us)) // _DAY_US + _EPOCH_DAY
        label = self._label_of_day(date.fromordinal(day))
        following = self._next(label)
        while following is not None and self._begin(following) <= at_us:
            label, following = following, self._next(following)
        return label

    def _label_of_day(self, day: date) -> date:
        match self.granularity:
            case Granularity.WEEK:
                day -= timedelta(days=day.weekday())
            case Granularity.MONTH:
                day = day.replace(day=1)
            case Granularity.YEAR:
                day = day.replace(month=1, day=1)
        return max(_FIRST, min(day, _LAST))

    def _next(self, label: date) -> date | None:
        """Return the next label, `None` after the last."""
        if label == _LAST:
            return None
        if label == _ENDLESS:
            return _FIRST
        match self.granularity:
            case Granularity.WEEK:
                following = label + timedelta(days=7 - label.weekday())
            case Granularity.MONTH:
                following = (label.replace(day=1) + timedelta(days=32)).replace(day=1)
            case Granularity.YEAR:
                following = date(label.year + 1, 1, 1)
            case _:
                following = label + timedelta(days=1)
        return min(following, _LAST)

    def _number(self, label: date) -> int:
        """Return a number that grows by one from label to label."""
        match self.granularity:
            case Granularity.WEEK:
                return (label.toordinal() - 1) // 7
            case Granularity.MONTH:
                return 12 * label.year + label.month
            case Granularity.YEAR:
                return label.year
            case _:
                return label.toordinal()

    def _begin(self, label: date) -> int:
        if label == _ENDLESS:
            return MIN_US
        if self._tz is None:
            return (label.toordinal() - _EPOCH_DAY) * _DAY_US
        return _begin_in_zone(self._tz, label)

    def _offset_us(self, at_us: int) -> int:
        if self._tz is None:
            return 0
        local = (_EPOCH + timedelta(microseconds=at_us)).astimezone(self._tz)
        offset = local.utcoffset()
        assert offset is not None
        return offset // _MICROSECOND


_MICROSECOND = timedelta(microseconds=1)


def _within(start_us: int, end_us: int) -> tuple[int, int]:
    """Return the two clamped to the calendar; the second one stays after the first."""
    start_us = min(max(start_us, MIN_US), MAX_US - 1)
    return start_us, min(max(end_us, start_us + 1), MAX_US)


def _load(zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Refused(f"there is no time zone {zone!r}; use an IANA name such as Europe/Berlin") from error


@lru_cache(maxsize=1 << 16)
def _begin_in_zone(tz: ZoneInfo, day: date) -> int:
    """Return the first instant at which the local date is `day` or later."""
    midnight = datetime.combine(day, time(), tzinfo=tz)  # the first of two, if it occurs twice
    instant = midnight.astimezone(UTC)
    if instant.astimezone(tz).replace(tzinfo=None) != midnight.replace(tzinfo=None):  # skipped
        low, high = _seconds(instant) - _MAX_GAP_US // _SECOND_US, _seconds(instant)
        while high - low > 1:
            middle = (low + high) // 2
            if (_EPOCH + timedelta(seconds=middle)).astimezone(tz).date() < day:
                low = middle
            else:
                high = middle
        return high * _SECOND_US
    return (instant - _EPOCH) // _MICROSECOND


def _seconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(seconds=1)

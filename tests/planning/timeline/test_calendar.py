"""Chunks of the calendar: exact edges by hand, and the partition of time by property."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.planning.timeline.calendar import MAX_US, MIN_US, Calendar, Granularity
from tests.planning.timeline.timelines import DAY_US, HOUR_US, calendars

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def us(text: str) -> int:
    """An ISO time with offset, in µs."""
    return (datetime.fromisoformat(text) - EPOCH) // MICROSECOND


def floor(calendar: Calendar, at_us: int) -> int:
    """Where the chunk of that instant begins."""
    return calendar.edges(at_us, at_us + 1)[0]


def iso(at_us: int) -> str:
    return (EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def edges(granularity: str, zone: str, start: str, end: str) -> list[str]:
    return [iso(edge) for edge in Calendar(Granularity(granularity), zone).edges(us(start), us(end))]


@pytest.mark.parametrize(
    ("granularity", "zone", "start", "end", "want"),
    [
        pytest.param(
            "hour",
            "UTC",
            "2024-02-28T23:30Z",
            "2024-02-29T00:00:00.000001Z",
            ["2024-02-28T23:00:00Z", "2024-02-29T00:00:00Z", "2024-02-29T01:00:00Z"],
            id="an instant into the hour counts",
        ),
        pytest.param(
            "hour",
            "UTC",
            "2024-02-28T23:00Z",
            "2024-02-29T00:00Z",
            ["2024-02-28T23:00:00Z", "2024-02-29T00:00:00Z"],
            id="the end is excluded",
        ),
        pytest.param(
            "day",
            "UTC",
            "2024-02-28T12:00Z",
            "2024-03-01T00:00Z",
            ["2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"],
            id="leap day",
        ),
        pytest.param(
            "week",
            "UTC",
            "2023-12-31T12:00Z",
            "2024-01-01T12:00Z",
            ["2023-12-25T00:00:00Z", "2024-01-01T00:00:00Z", "2024-01-08T00:00:00Z"],
            id="weeks begin on Monday",
        ),
        pytest.param(
            "month",
            "UTC",
            "2024-01-31T12:00Z",
            "2024-02-29T12:00Z",
            ["2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"],
            id="months of different lengths",
        ),
        pytest.param(
            "year",
            "UTC",
            "1969-06-01T00:00Z",
            "1970-01-01T00:00:01Z",
            ["1969-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1971-01-01T00:00:00Z"],
            id="before the epoch",
        ),
        pytest.param(
            "day",
            "Europe/Berlin",
            "2024-03-31T10:00Z",
            "2024-03-31T11:00Z",
            ["2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"],
            id="a day of 23 hours",
        ),
        pytest.param(
            "day",
            "Europe/Berlin",
            "2024-10-27T10:00Z",
            "2024-10-27T11:00Z",
            ["2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"],
            id="a day of 25 hours",
        ),
        pytest.param(
            "hour",
            "Europe/Berlin",
            "2024-10-26T23:30Z",
            "2024-10-27T01:30Z",
            ["2024-10-26T23:00:00Z", "2024-10-27T00:00:00Z", "2024-10-27T01:00:00Z", "2024-10-27T02:00:00Z"],
            id="the hour lived through twice makes two chunks",
        ),
        pytest.param(
            "day",
            "America/Sao_Paulo",
            "2018-11-04T10:00Z",
            "2018-11-04T11:00Z",
            ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"],
            id="a midnight that is skipped",
        ),
        pytest.param(
            "day",
            "America/Sao_Paulo",
            "2018-02-17T10:00Z",
            "2018-02-18T04:00Z",
            ["2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z", "2018-02-19T03:00:00Z"],
            id="the last hour of a day lived through twice",
        ),
        pytest.param(
            "day",
            "America/Havana",
            "2023-11-05T04:30Z",
            "2023-11-05T05:30Z",
            ["2023-11-05T04:00:00Z", "2023-11-06T05:00:00Z"],
            id="the first hour of a day lived through twice",
        ),
        pytest.param(
            "day",
            "America/St_Johns",
            "2010-11-07T02:29Z",
            "2010-11-07T03:00Z",
            ["2010-11-06T02:30:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"],
            id="set back over midnight: the day that had begun goes on",
        ),
        pytest.param(
            "day",
            "Pacific/Apia",
            "2011-12-29T12:00Z",
            "2011-12-30T12:00Z",
            ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"],
            id="a day that was left out has no chunk",
        ),
        pytest.param(
            "hour",
            "Australia/Lord_Howe",
            "2024-04-06T14:30Z",
            "2024-04-06T15:40Z",
            ["2024-04-06T14:00:00Z", "2024-04-06T15:00:00Z", "2024-04-06T15:30:00Z", "2024-04-06T16:30:00Z"],
            id="half an hour lived through twice",
        ),
        pytest.param(
            "hour",
            "America/St_Johns",
            "2010-11-07T02:30Z",
            "2010-11-07T03:00Z",
            ["2010-11-07T02:30:00Z", "2010-11-07T02:31:00Z", "2010-11-07T03:30:00Z"],
            id="an hour that is cut after a minute",
        ),
        pytest.param(
            "hour",
            "Asia/Kathmandu",
            "2024-04-06T00:00Z",
            "2024-04-06T00:10Z",
            ["2024-04-05T23:15:00Z", "2024-04-06T00:15:00Z"],
            id="an offset of three quarters of an hour",
        ),
        pytest.param(
            "month",
            "America/New_York",
            "2024-03-15T00:00Z",
            "2024-03-15T01:00Z",
            ["2024-03-01T05:00:00Z", "2024-04-01T04:00:00Z"],
            id="a month with a change of clocks",
        ),
    ],
)
def test_edges(granularity: str, zone: str, start: str, end: str, want: list[str]) -> None:
    assert edges(granularity, zone, start, end) == want


def test_time_lived_through_again_stays_in_the_day_that_had_begun() -> None:
    """A minute into Sunday the clocks in St John's went back to Saturday, 23:01."""
    assert edges("day", "America/St_Johns", "2010-11-07T03:00Z", "2010-11-07T03:10Z") == [
        "2010-11-07T02:30:00Z",
        "2010-11-08T03:30:00Z",
    ]


YEARS_US = 366 * DAY_US
instants = st.one_of(
    st.integers(-150 * YEARS_US, 80 * YEARS_US),  # all the changes of clocks there are
    st.integers(MIN_US, MAX_US - 1),
    st.builds(
        lambda year, hours: us(f"{year}-01-01T00:00Z") + hours * HOUR_US // 2,
        st.integers(1900, 2040),
        st.integers(0, 2 * 366 * 24),
    ),
)


@given(calendars, instants)
@settings(max_examples=400, deadline=None)
def test_an_instant_is_in_exactly_one_chunk(calendar: Calendar, at_us: int) -> None:
    start, end = calendar.edges(at_us, at_us + 1)
    assert start <= at_us < end
    assert floor(calendar, start) == start
    assert floor(calendar, end - 1) == start
    if end < MAX_US:
        assert floor(calendar, end) == end


@given(calendars, instants, st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_edges_follow_each_other(calendar: Calendar, at_us: int, steps: int) -> None:
    length_us = calendar.granularity.shortest_us
    end_us = min(at_us + steps * length_us, MAX_US)
    found = calendar.edges(at_us, end_us)
    assert found == sorted(set(found))
    assert found[0] <= at_us
    assert found[-2] < end_us <= found[-1]
    for low, high in itertools.pairwise(found):
        assert calendar.edges(low, high) == [low, high]
    assert abs(calendar.count(at_us, end_us) - (len(found) - 1)) <= 2


@given(calendars, st.integers(us("1890-01-01T00:00Z"), us("2037-01-01T00:00Z")))
@settings(max_examples=300, deadline=None)
def test_a_chunk_of_days_begins_at_local_midnight_unless_it_was_skipped(
    calendar: Calendar, at_us: int
) -> None:
    if calendar.granularity is Granularity.HOUR:
        return
    zone = ZoneInfo(calendar.zone)
    start = (EPOCH + timedelta(microseconds=floor(calendar, at_us))).astimezone(zone)
    before = (start.astimezone(UTC) - MICROSECOND).astimezone(zone)
    assert before.date() < start.date()
    if (start.hour, start.minute, start.second) != (0, 0, 0):
        assert before.utcoffset() != start.utcoffset()


def test_far_times_have_chunks_too() -> None:
    calendar = Calendar(Granularity.WEEK, "Europe/Berlin")
    for at_us in (MIN_US, us("0001-06-01T00:00Z"), us("9999-12-31T23:59:59Z"), MAX_US - 1):
        start, end = calendar.edges(at_us, at_us + 1)
        assert start <= at_us < end
    years = Calendar(Granularity.YEAR, "Europe/Berlin").edges(MIN_US, MAX_US)
    assert (years[0], years[-1], len(years)) == (MIN_US, MAX_US, 10_000)


@given(calendars, st.integers(-(1 << 70), 1 << 70), st.integers(1, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_times_beyond_the_calendar_are_in_its_first_and_its_last_chunk(
    calendar: Calendar, at_us: int, length_us: int
) -> None:
    found = calendar.edges(at_us, at_us + length_us)
    within = min(max(at_us, MIN_US), MAX_US - 1)
    assert found[0] <= within < found[-1]
    assert found == sorted(set(found))
    assert abs(calendar.count(at_us, at_us + length_us) - (len(found) - 1)) <= 2


def test_names() -> None:
    assert Calendar(Granularity.DAY).name(us("2024-05-01T00:00Z")) == "2024-05-01"
    assert Calendar(Granularity.MONTH).name(us("2024-05-01T00:00Z")) == "2024-05"
    assert Calendar(Granularity.YEAR).name(us("2024-01-01T00:00Z")) == "2024"
    assert Calendar(Granularity.HOUR).name(us("2024-05-01T13:00Z")) == "2024-05-01T13:00Z"
    berlin = Calendar(Granularity.HOUR, "Europe/Berlin")
    assert berlin.name(us("2024-10-27T00:00Z")) == "2024-10-27T02:00+0200"
    assert berlin.name(us("2024-10-27T01:00Z")) == "2024-10-27T02:00+0100"
    assert Calendar(Granularity.DAY, "Europe/Berlin").name(us("2024-05-01T00:00+02:00")) == "2024-05-01"
    assert Calendar().name(MIN_US) == "before year 2"
    assert Calendar().name(us("9999-01-01T00:00Z")) == "year 9999 and later"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", ""])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(Refused, match="IANA"):
        Calendar(Granularity.DAY, zone)

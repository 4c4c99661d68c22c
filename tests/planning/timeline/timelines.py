"""Timelines for tests: files by hand or at random."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.model import (
    ChunkBucket,
    ChunkKey,
    Interval,
    Task,
    TimelineFile,
    TimelinePolicy,
)

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
MB = 1_000_000
NOW_US = 1000 * DAY_US

POLICY = TimelinePolicy(max_file_bytes=100 * MB, size_tolerance=0.0)
"""Exact sizes: the rule of thumb without tolerance."""

_names = itertools.count()


def file(
    start_days: float,
    end_days: float,
    size_mb: float = 1,
    id: str | None = None,
    *,
    rows: int = 100,
    deleted_rows: int = 0,
    deletes: int = 0,
    version: int = 1,
    group: str = "",
) -> TimelineFile:
    """A file from one day (since the epoch) to another."""
    times = Interval(round(start_days * DAY_US), round(end_days * DAY_US))
    name = id if id is not None else f"f{next(_names)}"
    return TimelineFile(name, times, round(size_mb * MB), rows, deleted_rows, deletes, version, group)


def small_files(day: int, count: int, size_mb: float = 1) -> list[TimelineFile]:
    """Files within one day."""
    return [file(day + 0.1, day + 0.9, size_mb, f"d{day}-{i}") for i in range(count)]


def day(number: int, group: str = "") -> ChunkKey:
    return ChunkKey(group, ChunkBucket.TIME, number * DAY_US)


def days(keys: Iterable[ChunkKey]) -> list[int]:
    """The chunks as days since the epoch."""
    return [key.start_us // DAY_US for key in keys]


def keys_in(tasks: Iterable[Task]) -> list[ChunkKey]:
    return [key for task in tasks for key in task.chunks]


@st.composite
def timelines(
    draw: st.DrawFn, *, max_files: int = 25, max_days: int = 12, groups: Sequence[str] = ("",)
) -> list[TimelineFile]:
    """Files of all kinds over some days: within a day, over several, without times, of all sizes."""
    count = draw(st.integers(0, max_files))
    found = []
    for index in range(count):
        size_bytes = draw(st.sampled_from([1, MB, 30 * MB, 60 * MB, 99 * MB, 100 * MB, 101 * MB, 450 * MB]))
        start = draw(st.integers(0, max_days * 24 - 1))
        length = draw(st.sampled_from([1, 2, 5, 24, 24, 30, 60]))
        kind = draw(st.integers(0, 19))
        times: Interval | ChunkBucket = Interval(start * HOUR_US, (start + length) * HOUR_US)
        if kind == 0:
            times = ChunkBucket.NULL
        elif kind == 1:
            times = ChunkBucket.UNKNOWN
        rows = draw(st.integers(1000, 2000))  # so that every piece of a file has some
        gone = draw(st.sampled_from([0, 0, 0, rows // 2, rows]))
        found.append(
            TimelineFile(
                f"f{index:03}", times, size_bytes, rows, gone, int(gone > 0), 1, draw(st.sampled_from(groups))
            )
        )
    return found


calendars = st.builds(
    Calendar,
    st.sampled_from(list(Granularity)),
    st.sampled_from(
        [
            "UTC",
            "Europe/Berlin",
            "America/Sao_Paulo",
            "America/St_Johns",
            "Australia/Lord_Howe",
            "Pacific/Apia",
            "Asia/Kathmandu",
            "America/Havana",
            "Africa/Monrovia",
        ]
    ),
)

"""A timeline and its plan as a picture: time runs to the right.

1. Each file is a line over its times, in the lowest free row, thicker if larger. If there are too many files
   (`MAX_FILES`), the number in each chunk is drawn instead.
2. Behind the files, each chunk has its status's colour, deeper for a higher priority.
3. Below, each task is a red or black bar under its chunks, with an arrow from each task that it waits for.
4. The axis has dates with years, in the calendar's zone; a legend explains the colours.

The groups with the most bytes awaiting compaction come first. Files without usable times are counted in the
title.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import (
    ChunkBucket,
    ChunkKey,
    Color,
    DeletesStatus,
    Interval,
    PlannedChunk,
    Task,
    TimelineFile,
    TimelinePlan,
)
from lithify.views.picture import Box, Label, Picture, Shape, Stroke, beside, fitting, save, with_legend
from lithify.views.text import size
from lithify.views.timeline import TABLE_WORDS, Words

MAX_GROUPS = 6
MAX_FILES = 1500
"""Per group; if there are more, numbers are drawn."""
MAX_CHUNKS = 2000
"""Per group; the newest are drawn."""

MAX_HEAT_GROUPS = 30
MAX_CELLS = 200
"""Per group of the heat map; the newest are drawn."""

WIDTH = 1100
_HEAT_LEFT = 170
_HEAT_ROW = 18
_LEFT = 46
"""Room for the file counts."""
_ROWS_HEIGHT = 190
_TASK_HEIGHT = 12
_TICKS = 7
_DAY_US = 24 * 3600 * 1_000_000
_MOST_CHANGED_US = 26 * 3600 * 1_000_000
"""More than any change of a local clock."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (datetime(2, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US = (datetime(9998, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MEANINGS = {
    DeletesStatus.AWAITING: "awaiting compaction (deeper: more urgent)",
    DeletesStatus.DEFERRED: "deferred",
    DeletesStatus.SKIPPED: "skipped",
    DeletesStatus.COMPACTED: "compacted",
}
_TASK_MEANINGS = {
    Color.RED: "task that starts at once",
    Color.BLACK: "task that waits (arrow: for which task)",
}


def save_picture(plan: TimelinePlan, calendar: Calendar, path: Path, words: Words = TABLE_WORDS) -> None:
    """Write the picture in the format of the name's ending; `Refused` as in `picture.save`."""
    save(draw_timeline(plan, calendar, words), path)


def draw_timeline(plan: TimelinePlan, calendar: Calendar, words: Words = TABLE_WORDS) -> Picture:
    groups = _groups(plan)
    # A group's name is useful only if there are several.
    named = len(groups) > 1
    drawn = [
        _draw_group(
            f"{words.group} {group}" if named else f"{words.files} over time",
            chunks[-MAX_CHUNKS:],
            [task for task in plan.tasks if any(key.group == group for key in task.chunks)],
            calendar,
            words,
        )
        for group, chunks in groups[:MAX_GROUPS]
    ]
    meanings = {s.value: _MEANINGS[s] for s in DeletesStatus if plan.totals[s].chunks}
    if drawn:
        meanings["files"] = f"{words.files} (thicker: larger)"
    meanings |= {c.value: _TASK_MEANINGS[c] for c in Color if any(task.color is c for task in plan.tasks)}
    stacked = beside(drawn, _title(plan, calendar, len(groups), words))
    return with_legend(Picture(WIDTH, stacked.height, stacked.title, stacked.shapes), meanings)


def draw_heat(plan: TimelinePlan, calendar: Calendar, words: Words = TABLE_WORDS) -> Picture | None:
    """Draw each group as a row and each chunk as a cell, deeper the larger it is; `None` for fewer than two
    groups. The groups and chunks left out are counted in the title."""
    groups = _groups(plan)
    if len(groups) < 2:
        return None
    cells = {group: chunks[-MAX_CELLS:] for group, chunks in groups[:MAX_HEAT_GROUPS]}
    spans = [p.chunk.interval for chunks in cells.values() for p in chunks if p.chunk.interval is not None]
    axis = _Axis(min(s.start_us for s in spans), max(s.end_us for s in spans), _HEAT_LEFT)
    most = max(p.chunk.size_bytes for chunks in cells.values() for p in chunks) or 1
    shapes: list[Shape] = []
    for row, (group, chunks) in enumerate(cells.items()):
        top = row * _HEAT_ROW
        shapes.append(Label(0, top + 12, fitting(f"{words.group} {group}", _HEAT_LEFT - 6)))
        for planned in chunks:
            assert planned.chunk.interval is not None, "it is a chunk of time"
            left, width = axis.span(planned.chunk.interval)
            deep = 0.25 + 0.75 * planned.chunk.size_bytes / most
            told = f"{group}, {calendar.name(planned.chunk.interval.start_us)}: {planned.status.value}, "
            told += f"{len(planned.chunk.files)} {words.files}, {size(planned.chunk.size_bytes)}"
            gap = 1 if width > 4 else 0
            shapes.append(Box(left, top, width - gap, _HEAT_ROW - 2, planned.status.value, deep, told))
    height = len(cells) * _HEAT_ROW
    shapes += _draw_axis(axis, calendar, height)
    title = (
        f"{len(cells)} of {len(groups):,} groups by time, up to {size(most)} a {calendar.granularity.value}"
    )
    if any(len(chunks) > MAX_CELLS for _, chunks in groups[:MAX_HEAT_GROUPS]):
        title += f"; the newest {MAX_CELLS} of each"
    meanings = {s.value: f"{s.value} (deeper: more bytes)" for s in DeletesStatus if plan.totals[s].chunks}
    return with_legend(Picture(WIDTH, height + 24, title, tuple(shapes)), meanings)


def _groups(plan: TimelinePlan) -> list[tuple[str, list[PlannedChunk]]]:
    """The groups with their chunks of time, most bytes awaiting first."""
    by_group: dict[str, list[PlannedChunk]] = {}
    for planned in plan.chunks:
        if planned.chunk.key.bucket is ChunkBucket.TIME:
            by_group.setdefault(planned.chunk.key.group, []).append(planned)

    def awaiting_bytes(chunks: Sequence[PlannedChunk]) -> int:
        return sum(p.chunk.size_bytes for p in chunks if p.status is DeletesStatus.AWAITING)

    return sorted(by_group.items(), key=lambda item: (-awaiting_bytes(item[1]), item[0]))


def _title(plan: TimelinePlan, calendar: Calendar, groups: int, words: Words) -> str:
    amounts = plan.totals.values()
    if not words.is_timed:
        files = f"{sum(a.files for a in amounts):,} {words.files}"
        return f"{files}, packed by size, and not over time; {len(plan.tasks):,} tasks"
    title = (
        f"{sum(a.files for a in amounts):,} {words.files} in {len(plan.chunks):,} chunks of one "
        f"{calendar.granularity.value} ({calendar.zone}), {len(plan.tasks):,} tasks"
    )
    untimed = sum(len(p.chunk.files) for p in plan.chunks if p.chunk.key.bucket is not ChunkBucket.TIME)
    if untimed:
        title += f"; not drawn: {untimed:,} without usable times"
    if groups > MAX_GROUPS:
        title += f"; not drawn: {groups - MAX_GROUPS:,} more groups"
    return title


class _Axis:
    """Maps instants to pixels, from the first chunk's start at `left` to the last one's end."""

    def __init__(self, start_us: int, end_us: int, left: float = _LEFT) -> None:
        self.left = left
        self.start_us = _within(start_us)
        self.end_us = max(_within(end_us), self.start_us + 1)

    def x(self, at_us: int) -> float:
        share = (_within(at_us) - self.start_us) / (self.end_us - self.start_us)
        return self.left + min(max(share, 0.0), 1.0) * (WIDTH - self.left)

    def span(self, interval: Interval) -> tuple[float, float]:
        """Return left end and width; the width is at least one pixel."""
        start, end = self.x(interval.start_us), self.x(interval.end_us)
        return start, max(end - start, 1.0)


def _within(at_us: int) -> int:
    """Clamp an instant: times before year 2 or after 9998 are drawn at the edge."""
    return min(max(at_us, _FIRST_US), _LAST_US)


def _draw_group(
    group: str, chunks: Sequence[PlannedChunk], tasks: Sequence[Task], calendar: Calendar, words: Words
) -> Picture:
    spans = {p.chunk.key: p.chunk.interval for p in chunks if p.chunk.interval is not None}
    axis = _Axis(min(s.start_us for s in spans.values()), max(s.end_us for s in spans.values()))
    top = 18.0
    shapes: list[Shape] = [Label(0, 12, group)]
    for planned in chunks:
        span = spans[planned.chunk.key]
        left, width = axis.span(span)
        counted = f"{len(planned.chunk.files)} {words.files}"
        told = f"{calendar.name(span.start_us)}: {planned.status.value}, {counted}"
        deep = 0.25 + 0.5 * planned.verdict.priority
        gap = 0.5 if width > 3 else 0.0
        shapes.append(Box(left + gap, top, width - gap, _ROWS_HEIGHT, planned.status.value, deep, told))
    shapes += _draw_files(chunks, axis, top)
    bottom = top + _ROWS_HEIGHT
    shapes += _draw_tasks(spans, tasks, axis, bottom + 5)
    bottom += 5 + 2.4 * _TASK_HEIGHT
    shapes += _draw_axis(axis, calendar, bottom)
    return Picture(WIDTH, bottom + 24, group, tuple(shapes))


def _draw_files(chunks: Sequence[PlannedChunk], axis: _Axis, top: float) -> Iterator[Shape]:
    """Draw the files, or their number in each chunk if there are too many."""
    files = {f.id: f for p in chunks for f in p.chunk.files}
    is_counted = len(files) > MAX_FILES
    rows = max(len(p.chunk.files) for p in chunks) if is_counted else 0
    placed: list[tuple[TimelineFile, int]] = []
    if not is_counted:
        placed, rows = _placed(files)
    step = (_ROWS_HEIGHT - 8) / max(rows, 1)

    def y(row: float) -> float:
        return top + _ROWS_HEIGHT - 4 - step * row

    yield Label(_LEFT - 6, y(0) + 4, "0", "end")
    yield Label(_LEFT - 6, y(rows) + 8, f"{rows:,}", "end")
    if is_counted:
        for planned in chunks:
            assert planned.chunk.interval is not None, "it is a chunk of time"
            left, width = axis.span(planned.chunk.interval)
            at = y(len(planned.chunk.files))
            yield Stroke(left, at, left + width, at, "files", 2)
        return
    largest = max((f.size_bytes for f in files.values()), default=1) or 1
    for file, row in placed:
        left, width = axis.span(_times(file))
        thick = min(1 + 5 * file.size_bytes / largest, max(step - 1, 1))
        at = y(row + 0.5)
        # A gap separates files that adjoin.
        yield Stroke(left, at, left + max(width - 1, 0.5), at, "files", thick)


def _placed(files: Mapping[str, TimelineFile]) -> tuple[list[tuple[TimelineFile, int]], int]:
    """Return each file with its row, and the number of rows."""
    rows: list[int] = []
    placed = []
    for file in sorted(files.values(), key=lambda f: _times(f).start_us):
        times = _times(file)
        row = next((i for i, until_us in enumerate(rows) if until_us <= times.start_us), len(rows))
        rows[row : row + 1] = [times.end_us]
        placed.append((file, row))
    return placed, len(rows)


def _draw_tasks(
    spans: Mapping[ChunkKey, Interval], tasks: Sequence[Task], axis: _Axis, top: float
) -> Iterator[Shape]:
    middles: dict[str, tuple[float, float]] = {}
    for task in tasks:
        drawn = [axis.span(spans[key]) for key in task.chunks if key in spans]
        if not drawn:
            continue
        at = top if task.color is Color.RED else top + 1.3 * _TASK_HEIGHT
        for left, width in drawn:
            yield Box(left, at, width, _TASK_HEIGHT * 0.8, task.color.value, title=task.reason)
        middles[task.key] = ((drawn[0][0] + drawn[-1][0] + drawn[-1][1]) / 2, at)
    for task in tasks:
        for key in task.after:
            if key in middles and task.key in middles:
                (from_x, from_y), (x, y) = middles[key], middles[task.key]
                yield Stroke(from_x, from_y + _TASK_HEIGHT * 0.8, x, y, "black", 0.8, is_arrow=True)


_STEPS_US = [
    step * unit
    for unit, steps in (
        (60 * 1_000_000, (1, 5, 15)),
        (3600 * 1_000_000, (1, 3, 6, 12)),
        (_DAY_US, (1, 2, 7, 14, 30, 91, 182, 365, 730, 3650, 36_500, 365_000)),
    )
    for step in steps
]


def _draw_axis(axis: _Axis, calendar: Calendar, top: float) -> Iterator[Shape]:
    yield Stroke(axis.left, top, WIDTH, top, "line")
    length = axis.end_us - axis.start_us
    step = next((s for s in _STEPS_US if length / s <= _TICKS), _STEPS_US[-1])
    zone = UTC if calendar.zone == "UTC" else ZoneInfo(calendar.zone)
    form, digits = ("%Y-%m-%d", 10) if step >= _DAY_US else ("%Y-%m-%d %H:%M", 16)
    # Steps follow the local clock: a day later it shows the same time, even after a clock change.
    first = (_EPOCH + timedelta(microseconds=axis.start_us)).astimezone(zone).replace(tzinfo=None)
    for passed_us in range(0, length + _MOST_CHANGED_US, step):
        local = first + timedelta(microseconds=passed_us)
        at_us = (local.replace(tzinfo=zone) - _EPOCH) // timedelta(microseconds=1)
        if at_us > axis.end_us:
            return
        x = axis.x(at_us)
        anchor = "start" if not passed_us else "middle" if x < WIDTH - 50 else "end"
        yield Stroke(x, top, x, top + 4, "line")
        yield Label(x, top + 17, local.strftime(form).zfill(digits), anchor)


def _times(file: TimelineFile) -> Interval:
    assert isinstance(file.times, Interval), "a chunk of time has only files with times"
    return file.times

"""A timeline and its plan as a picture: time runs to the right.

1. Each file is a line over its times, placed in the lowest row that is free there, thicker when it is
   larger. Where there are more files than can be told apart, the number in each chunk is drawn instead.
2. Behind them each chunk is coloured by its status; its verdict's priority deepens the colour.
3. Below, each task is a bar under its chunks, red or black, and an arrow leads to it from each task it
   waits for.

Groups are drawn below each other, those with the most bytes awaiting first. Files without usable times
are counted in the title.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.errors import Refused
from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import (
    Bucket,
    ChunkKey,
    Color,
    Interval,
    PlannedChunk,
    Status,
    Task,
    TimelineFile,
    TimelinePlan,
)
from lithify.views.timeline import TABLE_WORDS, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_GROUPS = 6
MAX_FILES = 1500
"""Of one group; beyond, numbers are drawn."""
MAX_CHUNKS = 2000
"""Of one group; the newest are drawn."""

_COLORS = {
    Status.AWAITING: "#f2a33a",
    Status.DEFERRED: "#b07cc6",
    Status.SKIPPED: "#6fb7c9",
    Status.COMPACTED: "#8cc084",
}
_TASK_COLORS = {Color.RED: "#c0392b", Color.BLACK: "#222222"}
_DAY_US = 24 * 3600 * 1_000_000
_FIRST_DAY = date(2, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9998, 12, 31).toordinal() - date(1970, 1, 1).toordinal()


def save_picture(plan: TimelinePlan, calendar: Calendar, path: Path, words: Words = TABLE_WORDS) -> None:
    """Write the picture; its format follows from the name's ending. `Refused` without matplotlib, for
    a format it does not know, and where nothing can be written."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise Refused(
            "drawing needs matplotlib, which is not installed; install lithify[draw] or leave --png out"
        ) from error
    groups = _groups(plan)
    figure = Figure(figsize=(14, 1.5 + 4 * max(1, len(groups[:MAX_GROUPS]))), layout="constrained")
    axes = figure.subplots(max(1, len(groups[:MAX_GROUPS])), squeeze=False)[:, 0]
    for area, (group, chunks) in zip(axes, groups[:MAX_GROUPS], strict=False):
        tasks = [task for task in plan.tasks if task.group == group]
        _draw_group(area, group, chunks[-MAX_CHUNKS:], tasks, words)
    figure.suptitle(_title(plan, calendar, len(groups), words))
    present = [status for status in Status if plan.totals[status].chunks]
    handles = [Patch(color=_COLORS[status], label=status.value) for status in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)))
    try:
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    except ValueError as error:
        raise Refused(f"{path}: {error}; use a name that ends in .png") from error
    except OSError as error:
        raise Refused(f"the picture {path} cannot be written: {error.strerror or error}") from error


def _groups(plan: TimelinePlan) -> list[tuple[str, list[PlannedChunk]]]:
    """The chunks of time of each group, most bytes awaiting first."""
    by_group: dict[str, list[PlannedChunk]] = {}
    for planned in plan.chunks:
        if planned.chunk.key.bucket is Bucket.TIME:
            by_group.setdefault(planned.chunk.key.group, []).append(planned)

    def awaiting_bytes(chunks: Sequence[PlannedChunk]) -> int:
        return sum(p.chunk.size_bytes for p in chunks if p.status is Status.AWAITING)

    return sorted(by_group.items(), key=lambda item: (-awaiting_bytes(item[1]), item[0]))


def _title(plan: TimelinePlan, calendar: Calendar, groups: int, words: Words) -> str:
    amounts = plan.totals.values()
    title = (
        f"{sum(a.files for a in amounts):,} {words.files} in {len(plan.chunks):,} chunks of one "
        f"{calendar.granularity.value} ({calendar.zone}), {len(plan.tasks):,} tasks"
    )
    untimed = sum(len(p.chunk.files) for p in plan.chunks if p.chunk.key.bucket is not Bucket.TIME)
    if untimed:
        title += f"; not drawn: {untimed:,} without usable times"
    if groups > MAX_GROUPS:
        title += f"; not drawn: {groups - MAX_GROUPS:,} more groups"
    return title


def _draw_group(
    area: Axes, group: str, chunks: Sequence[PlannedChunk], tasks: Sequence[Task], words: Words
) -> None:
    from matplotlib.ticker import MaxNLocator

    spans = {p.chunk.key: p.chunk.interval for p in chunks if p.chunk.interval is not None}
    for planned in chunks:
        start, end = _ends(spans[planned.chunk.key])
        alpha = 0.25 + 0.5 * planned.verdict.priority
        area.axvspan(start, end, color=_COLORS[planned.status], alpha=alpha, linewidth=0)
        area.axvline(start, color="white", linewidth=0.5)
    top = _draw_files(area, chunks)
    _draw_tasks(area, spans, tasks, top)
    area.set_title(group or f"{words.files} over time", loc="left", fontsize="medium")
    area.set_ylabel(words.files)
    area.xaxis_date()
    area.set_xlim(_ends(chunks[0].chunk.interval)[0], _ends(chunks[-1].chunk.interval)[1])
    area.yaxis.set_major_locator(MaxNLocator(integer=True))
    area.set_yticks([tick for tick in area.get_yticks() if tick >= 0])


def _draw_files(area: Axes, chunks: Sequence[PlannedChunk]) -> float:
    """Draw the files and give the height used."""
    files = {f.id: f for p in chunks for f in p.chunk.files}
    if len(files) > MAX_FILES:
        edges = [_ends(p.chunk.interval) for p in chunks if p.chunk.interval is not None]
        counts = [len(p.chunk.files) for p in chunks]
        area.hlines(counts, [e[0] for e in edges], [e[1] for e in edges], color="#1f4e79", linewidth=2)
        return float(max(counts))
    largest = max((f.size_bytes for f in files.values()), default=1) or 1
    rows: list[int] = []
    for file in sorted(files.values(), key=lambda f: _times(f).start_us):
        times = _times(file)
        row = next((i for i, until_us in enumerate(rows) if until_us <= times.start_us), len(rows))
        rows[row : row + 1] = [times.end_us]
        start, end = _ends(times)
        area.hlines(row + 1, start, end, color="#1f4e79", linewidth=1 + 4 * file.size_bytes / largest)
    return float(max(1, len(rows)))


def _draw_tasks(area: Axes, spans: Mapping[ChunkKey, Interval], tasks: Sequence[Task], top: float) -> None:
    height = max(0.6, top / 12)
    middles = {}
    for task in tasks:
        drawn = [_ends(spans[key]) for key in task.chunks if key in spans]
        if not drawn:
            continue
        color = _TASK_COLORS[task.color]
        row = -height * (1 if task.color is Color.RED else 2.2)
        for start, end in drawn:
            area.fill_between([start, end], row, row + height * 0.8, color=color, linewidth=0)
        middles[task.key] = ((drawn[0][0] + drawn[-1][1]) / 2, row)
    for task in tasks:
        for key in task.after:
            if key in middles and task.key in middles:
                arrow = {"arrowstyle": "->", "color": "#222222", "linewidth": 0.8}
                middle, row = middles[task.key]
                area.annotate("", xy=(middle, row + height * 0.8), xytext=middles[key], arrowprops=arrow)
    area.set_ylim(-height * 2.6, top + 1)


def _times(file: TimelineFile) -> Interval:
    assert isinstance(file.times, Interval), "a chunk of time has only files with times"
    return file.times


def _ends(interval: Interval | None) -> tuple[float, float]:
    """In days since the epoch, within the years that can be shown. What lies outside is a day at the edge."""
    assert interval is not None
    start, end = (min(max(at_us / _DAY_US, _FIRST_DAY), _LAST_DAY) for at_us in _both(interval))
    if start == end:
        return (start, end + 1) if start == _FIRST_DAY else (start - 1, end)
    return start, end


def _both(interval: Interval) -> tuple[int, int]:
    return interval.start_us, interval.end_us

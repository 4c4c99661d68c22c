"""A timeline and its plan for terminals: chunks by time with files and verdicts, tasks, totals.

One line is one chunk. The marks before its name join chunks that share files:

    ┌ begins a row of chunks of which each shares files with the next
    │ shares files with both neighbours
    └ shares files with the chunk above only

More than a few consecutive chunks with nothing to do become one line, also across partitions. If there are
still too many lines, the most urgent chunks are shown instead, those of a partition in one line. A narrow
terminal omits the reasons: they follow from the other columns or are in the notes. `timeline_picture` draws
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import (
    ChunkBucket,
    ChunkKey,
    Color,
    DeletesStatus,
    PlannedChunk,
    Task,
    TimelinePlan,
)
from lithify.views import text
from lithify.views.tables import LIST_BELOW, Cell, cell, fits, print_table

MAX_QUIET_ROWS = 3
"""More consecutive chunks with nothing to do become one line."""
MIN_WIDTH_OF_REASONS = 110
"""Columns; a narrower terminal does not show the reasons of verdicts."""
MIN_WIDTH_OF_FOLDS = 60
"""Columns; a narrower terminal shows a list in place of a table with folded names."""

_BAR = "▏▎▍▌▋▊▉█"
_BAR_CELLS = 10
_STYLES = {
    DeletesStatus.AWAITING: "yellow",
    DeletesStatus.DEFERRED: "magenta",
    DeletesStatus.SKIPPED: "cyan",
    DeletesStatus.COMPACTED: "green",
}
_TASK_STYLES = {Color.RED: "bold red", Color.BLACK: "bold"}


@dataclass(frozen=True, slots=True)
class Words:
    """The nouns for the parts of a timeline."""

    group: str = "partition"
    """Shown only if there are several."""
    files: str = "files"
    rows: str | None = "rows"
    """`None` if rows are not counted."""
    is_timed: bool = True
    """Whether chunks are of time. Otherwise they are packs of files of any order."""


TABLE_WORDS = Words()
UNORDERED_WORDS = Words(is_timed=False)
SEGMENT_WORDS = Words(files="sequences", rows=None)
"""For a database's segments: sequences are L0 SSTs and sorted runs."""


def chunk_name(key: ChunkKey, calendar: Calendar, words: Words) -> str:
    """Return a chunk's name for people, without its group."""
    match key.bucket:
        case ChunkBucket.TIME:
            return calendar.name(key.start_us)
        case ChunkBucket.NULL:
            what = "null times" if words.is_timed else words.files
            if key.is_well_sized:
                return f"({what}, good size)"
            return f"({what}{f' {key.start_us + 1}' if key.start_us else ''})"
        case ChunkBucket.UNKNOWN if not words.is_timed:
            return "(left alone)"
    return f"({key.bucket.name.lower()} times)"


def title_of(calendar: Calendar, words: Words) -> str:
    """Return the title of a table of chunks."""
    if not words.is_timed:
        return f"{words.files.capitalize()}, packed by size"
    return f"Timeline: one chunk per {calendar.granularity.value}, {calendar.zone}"


def print_timeline(
    console: Console,
    plan: TimelinePlan,
    calendar: Calendar,
    words: Words = TABLE_WORDS,
    most: int = text.MAX_SHOWN,
) -> None:
    """Print the chunks, the tasks and the totals; at most `most` lines of chunks and of tasks."""
    if not plan.chunks:
        console.print("The timeline has no files.")
        return
    numbers = {task.key: number for number, task in enumerate(plan.tasks, start=1)}
    lines = _chunk_lines(plan, calendar, numbers, words, most)
    whole = _chunk_table(plan, lines, title_of(calendar, words), words, with_reasons=True)
    short = _chunk_table(plan, lines, title_of(calendar, words), words, with_reasons=False)
    if lines.are_urgent and MIN_WIDTH_OF_FOLDS <= console.width < LIST_BELOW:
        console.print(short)  # twenty lists would be longer than a screen
    else:
        has_room = console.width >= MIN_WIDTH_OF_REASONS or not fits(console, short)
        print_table(console, whole if has_room else short)
    text.print_rest(console, lines.found, lines.of, most)
    if plan.tasks:
        print_table(console, _task_table(plan, numbers, words, most))
        text.print_rest(console, len(plan.tasks), "tasks", most)
    print_table(console, _total_table(plan, words))


def timeline_json(plan: TimelinePlan, calendar: Calendar, words: Words = TABLE_WORDS) -> dict[str, Any]:
    document = _document(plan, calendar, words)
    if words.rows is None:
        for counted in (*document["chunks"], *document["totals"].values()):
            counted.pop("rows")
            counted.pop("deleted_rows", None)
    return document


def _document(plan: TimelinePlan, calendar: Calendar, words: Words) -> dict[str, Any]:
    return {
        "chunks": [_chunk_json(planned, calendar, words) for planned in plan.chunks],
        "tasks": [_task_json(task, calendar, words) for task in plan.tasks],
        "totals": {
            status.value: {
                "chunks": amount.chunks,
                "files": amount.files,
                "bytes": amount.size_bytes,
                "rows": amount.rows,
            }
            for status, amount in plan.totals.items()
        },
    }


@dataclass(frozen=True, slots=True)
class _ChunkLines:
    """The lines of a table of chunks: the group, then the cells of the other columns."""

    shown: Sequence[tuple[Cell, ...]]
    found: int
    """How many lines there would be if all were shown."""
    of: str
    """The noun for the lines."""
    are_urgent: bool
    """Whether they are the most urgent chunks, all of which are to be compacted."""


def _chunk_lines(
    plan: TimelinePlan, calendar: Calendar, numbers: dict[str, int], words: Words, most: int
) -> _ChunkLines:
    largest = max(planned.chunk.size_bytes for planned in plan.chunks)
    runs = list(_runs(plan.chunks))
    urgent = _most_urgent(plan.chunks) if len(runs) > most else []
    shown = [
        (
            _groups_of(run, words),
            *(
                _row(run[0], calendar, numbers, largest, words, with_mark=not urgent)
                if len(run) == 1
                else _summary(run, calendar, words, numbers)
            ),
        )
        for run in (urgent or runs)[:most]
    ]
    is_grouped = len({planned.chunk.key.group for planned in plan.chunks}) > 1
    of = f"{words.group}s" if urgent and is_grouped else "chunks"
    return _ChunkLines(shown, len(urgent or runs), of, bool(urgent))


def _most_urgent(chunks: Sequence[PlannedChunk]) -> list[Sequence[PlannedChunk]]:
    """Return the chunks that await compaction, the most urgent first; those of a group together if there are
    several groups."""
    awaiting = [planned for planned in chunks if planned.status is DeletesStatus.AWAITING]
    if len({planned.chunk.key.group for planned in chunks}) == 1:
        runs: list[Sequence[PlannedChunk]] = [(planned,) for planned in awaiting]
    else:
        by_group: dict[str, list[PlannedChunk]] = {}
        for planned in awaiting:
            by_group.setdefault(planned.chunk.key.group, []).append(planned)
        runs = list(by_group.values())
    return sorted(runs, key=lambda run: (-_priority(run), run[0].chunk.key))


def _priority(run: Sequence[PlannedChunk]) -> float:
    return max(planned.verdict.priority for planned in run)


def _chunk_table(
    plan: TimelinePlan, lines: _ChunkLines, title: str, words: Words, *, with_reasons: bool
) -> Table:
    grouped = len({planned.chunk.key.group for planned in plan.chunks}) > 1
    with_verdicts = with_reasons or not lines.are_urgent
    table = Table(title=title)
    table.title_justify = "left"
    if grouped:
        table.add_column(words.group, overflow="fold")
    table.add_column("chunk", no_wrap=True)
    table.add_column(words.files, justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    if with_verdicts:
        table.add_column("", no_wrap=True)
        table.add_column("verdict", overflow="fold")
    table.add_column("prio.", justify="right", no_wrap=True)
    table.add_column("task", justify="right", no_wrap=True)
    if with_reasons:
        table.add_column("reason", overflow="fold")
    for group, chunk, files, size, bar, verdict, priority, task, reason in lines.shown:
        table.add_row(
            *([group] if grouped else []),
            *(chunk, files, size),
            *((bar, verdict) if with_verdicts else ()),
            *(priority, task),
            *([reason] if with_reasons else []),
        )
    return table


def _runs(chunks: Sequence[PlannedChunk]) -> Iterator[Sequence[PlannedChunk]]:
    """Yield single chunks, and longer runs with nothing to do."""
    quiet: list[PlannedChunk] = []
    for planned in chunks:
        same = quiet and _kind(quiet[-1]) == _kind(planned)
        if quiet and not same:
            yield from _folded(quiet)
            quiet = []
        if planned.status is DeletesStatus.AWAITING:
            yield (planned,)
        else:
            quiet.append(planned)
    yield from _folded(quiet)


def _groups_of(run: Sequence[PlannedChunk], words: Words) -> Cell:
    groups = {planned.chunk.key.group for planned in run}
    return cell(run[0].chunk.key.group) if len(groups) == 1 else f"{len(groups):,} {words.group}s"


def _kind(planned: PlannedChunk) -> tuple[object, ...]:
    return planned.chunk.key.bucket, planned.status, planned.held


def _folded(quiet: Sequence[PlannedChunk]) -> Iterator[Sequence[PlannedChunk]]:
    if len(quiet) > MAX_QUIET_ROWS:
        yield quiet
    else:
        yield from ((planned,) for planned in quiet)


def _row(
    planned: PlannedChunk,
    calendar: Calendar,
    numbers: dict[str, int],
    largest: int,
    words: Words,
    *,
    with_mark: bool,
) -> tuple[Cell, ...]:
    chunk, verdict = planned.chunk, planned.verdict
    style = _STYLES[planned.status]
    number = "" if planned.task is None else str(numbers.get(planned.task, "active"))
    reason = verdict.reason if planned.held is None else f"{planned.held}; {verdict.reason}"
    return (
        f"{_mark(planned) if with_mark else ' '} {chunk_name(chunk.key, calendar, words)}",
        f"{len(chunk.files):,}",
        text.size(chunk.size_bytes),
        f"[{style}]{_bar(chunk.size_bytes / largest if largest else 0)}[/]",
        f"[{style}]{_label(planned)}[/]",
        f"{verdict.priority:.2f}" if verdict.priority else "",
        number,
        cell(reason),
    )


def _summary(
    run: Sequence[PlannedChunk], calendar: Calendar, words: Words, numbers: dict[str, int]
) -> tuple[Cell, ...]:
    style, priority = _STYLES[run[0].status], _priority(run)
    tasks = sorted({numbers[planned.task] for planned in run if planned.task in numbers})
    by_time = sorted((planned.chunk.key for planned in run), key=lambda key: key.start_us)
    first, last = (chunk_name(key, calendar, words) for key in (by_time[0], by_time[-1]))
    ids = {file.id for planned in run for file in planned.chunk.files}
    size_bytes = sum({f.id: f.size_bytes for planned in run for f in planned.chunk.files}.values())
    worst = max(run, key=lambda planned: planned.verdict.priority)
    reason = run[0].held or (worst.verdict.reason if priority else "")
    return (
        f"  {first}" if first == last else f"  {first} … {last}",
        f"{len(ids):,}",
        text.size(size_bytes),
        "",
        f"[{style}]{len(run)} × {_label(run[0]) if priority else run[0].status.value}[/]",
        f"{priority:.2f}" if priority else "",
        f"{tasks[0]}{' …' if len(tasks) > 1 else ''}" if tasks else "",
        cell(reason),
    )


def _label(planned: PlannedChunk) -> str:
    if planned.status in (DeletesStatus.DEFERRED, DeletesStatus.SKIPPED):
        return str(planned.status.value)
    return str(planned.verdict.action.value)


def _mark(planned: PlannedChunk) -> str:
    match planned.chunk.overlap_prior, planned.chunk.overlap_later:
        case False, False:
            return " "
        case False, True:
            return "┌"
        case True, True:
            return "│"
        case _:
            return "└"


def _bar(fraction: float) -> str:
    eighths = round(fraction * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BAR[rest - 1] if rest else "") or _BAR[0]


def _task_table(plan: TimelinePlan, numbers: dict[str, int], words: Words, most: int) -> Table:
    table = Table(title="Tasks, most urgent first", title_justify="left")
    table.add_column("task", justify="right")
    table.add_column("chunks", justify="right")
    table.add_column(words.files, justify="right")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("prio.", justify="right")
    table.add_column("starts", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for task in plan.tasks[:most]:
        known = sorted(numbers[key] for key in task.after if key in numbers)
        others = ["a running one"] if len(known) < len(task.after) else []
        after = ", ".join([*map(str, known), *others])
        style = _TASK_STYLES[task.color]
        oversize = " (one chunk above max_task_bytes)" if task.oversize else ""
        table.add_row(
            f"[{style}]{numbers[task.key]}[/]",
            f"{len(task.chunks):,}",
            f"{len(task.files):,}",
            text.size(task.cost_bytes),
            f"{task.priority:.2f}",
            f"[{style}]" + (f"after {after}" if after else "at once") + "[/]",
            cell(f"{task.reason}{oversize}"),
        )
    return table


def _total_table(plan: TimelinePlan, words: Words) -> Table:
    table = Table(title="Totals", title_justify="left")
    table.add_column("")
    for name in ("chunks", words.files, "bytes", *([words.rows] if words.rows else [])):
        table.add_column(name, justify="right")
    for status, amount in plan.totals.items():
        if not amount.chunks and not amount.files:
            continue
        table.add_row(
            f"[{_STYLES[status]}]{status.value}[/]",
            f"{amount.chunks:,}",
            f"{amount.files:,}",
            text.size(amount.size_bytes),
            *([f"{amount.rows:,}"] if words.rows else []),
        )
    return table


def _chunk_json(planned: PlannedChunk, calendar: Calendar, words: Words) -> dict[str, Any]:
    chunk = planned.chunk
    return {
        "group": chunk.key.group,
        "name": chunk_name(chunk.key, calendar, words),
        "start_us": chunk.interval.start_us if chunk.interval is not None else None,
        "end_us": chunk.interval.end_us if chunk.interval is not None else None,
        "files": len(chunk.files),
        "bytes": chunk.size_bytes,
        "rows": chunk.rows,
        "deleted_rows": chunk.deleted_rows,
        "overlaps_prior": chunk.overlap_prior,
        "overlaps_later": chunk.overlap_later,
        "action": planned.verdict.action.value,
        "priority": planned.verdict.priority,
        "reason": planned.verdict.reason,
        "status": planned.status.value,
        "held": planned.held,
        "task": planned.task,
        "analysed": planned.analysed,
    }


def _task_json(task: Task, calendar: Calendar, words: Words) -> dict[str, Any]:
    return {
        "key": task.key,
        "group": task.group,
        "groups": len({key.group for key in task.chunks}),
        "chunks": [chunk_name(key, calendar, words) for key in task.chunks],
        "files": list(task.files),
        "bytes": task.cost_bytes,
        "priority": task.priority,
        "color": task.color.value,
        "after": list(task.after),
        "oversize": task.oversize,
        "reason": task.reason,
    }

"""A timeline and its plan as neutral tables: tasks, chunks by time, totals. They accompany a picture
(`timeline_picture`); terminals have tables of their own (`timeline`)."""

from __future__ import annotations

from itertools import groupby

from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import DeletesStatus, PlannedChunk, TimelinePlan
from lithify.views import text
from lithify.views.blocks import Table, columns
from lithify.views.timeline import MAX_QUIET_ROWS, Words, chunk_name, title_of


def timeline_tables(plan: TimelinePlan, calendar: Calendar, words: Words) -> tuple[Table, ...]:
    """Return the tables that have rows."""
    tables = (_tasks(plan, calendar, words), _chunks(plan, calendar, words), _totals(plan, words))
    return tuple(table for table in tables if table.rows)


def _tasks(plan: TimelinePlan, calendar: Calendar, words: Words) -> Table:
    rows = []
    numbers = {task.key: number for number, task in enumerate(plan.tasks, start=1)}
    for task in plan.tasks:
        others = [str(numbers[key]) if key in numbers else "a running one" for key in task.after]
        rows.append(
            (
                str(numbers[task.key]),
                f"{chunk_name(task.chunks[0], calendar, words)}"
                + (f" and {len(task.chunks) - 1} more" if len(task.chunks) > 1 else ""),
                f"{len(task.files):,}",
                text.size(task.cost_bytes),
                f"{task.priority:.2f}",
                f"after {', '.join(others)}" if others else "at once",
                task.reason,
            )
        )
    headings = columns("task", "chunks", f">{words.files}", ">reads", ">priority", "starts", "why")
    return Table("Tasks", headings, rows, "tasks")


def _chunks(plan: TimelinePlan, calendar: Calendar, words: Words) -> Table:
    """More than a few consecutive compacted chunks become one row."""
    rows: list[tuple[str, ...]] = []
    for is_quiet, found in groupby(plan.chunks, key=_is_quiet):
        run = list(found)
        if is_quiet and len(run) > MAX_QUIET_ROWS:
            first, last = (chunk_name(p.chunk.key, calendar, words) for p in (run[0], run[-1]))
            files, size = (
                sum(amounts)
                for amounts in zip(*((len(p.chunk.files), p.chunk.size_bytes) for p in run), strict=True)
            )
            rows.append(
                ("", f"{first} to {last}", f"{files:,}", text.size(size), f"{len(run)} compacted", "", "")
            )
        else:
            rows += [_row(planned, calendar, words) for planned in run]
    headings = columns(words.group, "chunk", f">{words.files}", ">bytes", "status", ">priority", "why")
    if len({planned.chunk.key.group for planned in plan.chunks}) < 2:
        headings, rows = headings[1:], [row[1:] for row in rows]
    return Table(title_of(calendar, words), headings, rows, "chunks")


def _is_quiet(planned: PlannedChunk) -> bool:
    return planned.status is DeletesStatus.COMPACTED


def _row(planned: PlannedChunk, calendar: Calendar, words: Words) -> tuple[str, ...]:
    chunk, verdict = planned.chunk, planned.verdict
    return (
        chunk.key.group,
        chunk_name(chunk.key, calendar, words),
        f"{len(chunk.files):,}",
        text.size(chunk.size_bytes),
        planned.status.value,
        f"{verdict.priority:.2f}",
        verdict.reason,
    )


def _totals(plan: TimelinePlan, words: Words) -> Table:
    rows = [
        (status.value, f"{amount.chunks:,}", f"{amount.files:,}", text.size(amount.size_bytes))
        for status, amount in plan.totals.items()
        if amount.chunks
    ]
    return Table("Totals", columns("", ">chunks", f">{words.files}", ">bytes"), rows)

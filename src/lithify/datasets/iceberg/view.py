"""Views of a table: JSON values for scripts, blocks for operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lithify.datasets.iceberg.format.summary import MovedTotals, moved_totals
from lithify.datasets.iceberg.maintenance.expire import Outlook
from lithify.datasets.iceberg.maintenance.garbage import GarbageReport
from lithify.datasets.iceberg.maintenance.history_view import (
    needed_json,
    outlook_json,
    show_needed,
    show_outlook,
)
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRun, orphans_json
from lithify.datasets.iceberg.maintenance.own_state import lost_text
from lithify.datasets.iceberg.maintenance.plan_details import PlanDetails
from lithify.datasets.iceberg.model import ChunkSpec, TableState
from lithify.datasets.kind import DatasetRun
from lithify.planning.timeline.model import TimelinePlan
from lithify.protocol.proposal import Plan, Total
from lithify.protocol.retained import Retained
from lithify.protocol.status import Status
from lithify.views import text
from lithify.views.blocks import Block, Line, Lines, Shown, Table, Timeline, columns, notes
from lithify.views.timeline import timeline_json

Facts = Mapping[str, Any]


def facts_of(state: TableState) -> Facts:
    """Return the table's size as a JSON value."""
    return {
        "snapshot_id": state.snapshot_id,
        "files": len(state.files),
        "bytes": sum(file.size_bytes for file in state.files),
        "rows": sum(file.rows for file in state.files),
        "delete_files": state.delete_files,
    }


def _show_equality(state: TableState) -> tuple[Line, ...]:
    """Show what equality deletes cost readers, if there are any."""
    cost = state.equality
    if not cost.files:
        return ()
    files = text.count(cost.files, "file")
    return (
        Line(
            f"{files} with {cost.keys:,} keys ({text.size(cost.size_bytes)}); a scan of all rows reads "
            f"{text.size(cost.scan_bytes)} and {cost.scan_keys:,} keys of them. `lithify "
            "rewrite-equality-deletes` turns them into deletes by position.",
            "Equality deletes:",
        ),
    )


def spec_json(spec: ChunkSpec) -> dict[str, Any]:
    """Return a compaction of a table as a JSON value."""
    return {"kind": "chunks", "task": spec.task, "snapshot_id": spec.snapshot_id, "inputs": list(spec.inputs)}


def show_refused(state: TableState) -> tuple[Line, ...]:
    """Show which parts of maintenance cannot be done with the table, and why; each reason once."""
    parts: dict[str, list[str]] = {}
    for part, why in state.refused.items():
        parts.setdefault(why, []).append(part)
    return tuple(Line(why, f"{', '.join(names).capitalize()}:", is_bad=True) for why, names in parts.items())


def left_json(state: TableState) -> list[Facts]:
    """Return which data files cannot be compacted, and why, as JSON values."""
    return [
        {
            "files": left.files,
            "bytes": left.size_bytes,
            "rows": left.rows,
            "why": left.why,
            "is_stuck": left.is_stuck,
        }
        for left in state.left_alone
    ]


def _verdict(state: TableState, plan: Plan, timeline: TimelinePlan) -> str:
    """Return what the plan would do, in one sentence."""
    if state.refusal:
        return "The table cannot be compacted"
    if not timeline.tasks:
        return "No data can be compacted now" if plan.left_alone else "Nothing to compact now"
    keys = {key for task in timeline.tasks for key in task.chunks}
    chunks = [planned.chunk for planned in timeline.chunks if planned.chunk.key in keys]
    files = {file for task in timeline.tasks for file in task.files}
    after = sum(math.ceil(chunk.starting_bytes / state.policy.target_file_size_bytes) for chunk in chunks)
    groups = len({chunk.key.group for chunk in chunks})
    where = f" of {text.count(groups, 'partition')}" if groups > 1 else ""
    size = text.size(sum(task.cost_bytes for task in timeline.tasks))
    tasks = text.count(len(timeline.tasks), "task")
    waiting = len(timeline.tasks) - len(plan.proposals) + sum(bool(p.after) for p in plan.proposals)
    wait = f", of which {waiting:,} {'waits' if waiting == 1 else 'wait'}" if waiting else ""
    return f"{text.count(len(files), 'file')}{where} to about {after:,}: {size} to rewrite in {tasks}{wait}"


def show_plan(
    url: str,
    state: TableState,
    plan: Plan,
    timeline: Timeline,
    beside: PlanDetails,
    now_ms: int,
) -> Shown:
    """Show the timeline, what would be started now, which history could expire or why that is unknown, and
    the result of the last search for orphan files."""
    blocks: tuple[Block, ...]
    history, orphans = beside.history, beside.orphans
    if isinstance(history, Outlook):
        facts, blocks = outlook_json(history), show_outlook(history)
    else:
        facts, blocks = {"outcome": None, "why": str(history)}, (Line(str(history), "History:", is_bad=True),)
    document = {
        "url": url,
        "table": facts_of(state),
        "equality_deletes": asdict(state.equality),
        **timeline_json(timeline.plan, timeline.calendar, timeline.words),
        "starts": [proposal.spec.task for proposal in plan.proposals],
        "notes": list(plan.notes),
        "refused": dict(state.refused),
        "left_alone": left_json(state),
        "history": facts,
        "orphans": orphans_json(orphans),
    }
    said = notes([note for note in plan.notes if note != state.refusal])
    refused = show_refused(state)
    shown = (timeline, *refused, *_show_equality(state), said, *blocks, *_show_orphans(orphans, now_ms))
    return Shown(document, shown, _verdict(state, plan, timeline.plan))


def _show_orphans(run: OrphanRun | None, now_ms: int) -> tuple[Block, ...]:
    if run is None:
        return ()
    ago = f"{text.duration(max(now_ms - run.at_ms, 0))} ago"
    if run.why:
        why = f"their number is unknown, because a search {ago} was refused: {run.why}"
        return (Line(why, "Orphans:", is_bad=True),)
    if not run.left:
        return (Line(f"A search for orphan files {ago} left none that was old enough to be deleted."),)
    found = f"{run.left:,} files ({text.size(run.left_bytes)})"
    return (
        Line(f"{found} that no metadata refers to were found {ago}: lithify remove-orphans.", "Orphans:"),
    )


def show_run(run: DatasetRun) -> Shown:
    """Show what a run did to the table, and its cost."""
    before, after, result, totals = run.before, run.after, run.summary, run.totals
    document = {
        "url": run.url,
        "did_anything": result.started,
        "committed": list(result.committed),
        "dropped": [asdict(f) for f in result.dropped],
        "refused": [asdict(f) for f in result.refused],
        "failed": [asdict(f) for f in result.failures],
        "before": before,
        "after": after,
        "ranges": totals.ranges,
        "rows": dict(totals.rows),
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "task_cpu_seconds": totals.cpu_s,
        "peak_task_memory_bytes": totals.peak_task_memory_bytes,
        "seconds": run.seconds,
        "notes": list(result.plan.notes),
        "left_alone": [] if result.after is None else left_json(result.after),
    }
    ended = (*result.dropped, *result.refused, *result.failures)
    blocks = (
        Table(
            f"{text.count(len(result.committed), 'compaction')} in {run.seconds:.1f} s",
            columns("", ">files", ">bytes", ">rows", ">delete files"),
            [_row("before", before), _row("after", after)],
        ),
        Line(
            f"Read {text.size(totals.bytes_read)} and wrote {text.size(totals.bytes_written)} in "
            f"{text.count(totals.ranges, 'task')}, {totals.cpu_s:.1f} s of processor time."
        ),
        Lines(
            [Line(f.reason, text.short_id(f.compaction)) for f in ended],
            "that were dropped, refused or failed",
        ),
        notes(result.plan.notes),
    )
    return Shown(document, blocks)


def _row(name: str, facts: Facts) -> tuple[str, ...]:
    return (
        name,
        f"{facts['files']:,}",
        text.size(facts["bytes"]),
        f"{facts['rows']:,}",
        f"{facts['delete_files']:,}",
    )


def history_json(kept: Retained) -> Facts:
    """Return the retained history as a JSON value."""
    return {
        "snapshots": kept.past.versions,
        "oldest_ms": kept.past.oldest_ms,
        "only_history_bytes": kept.past.only_history_bytes,
        "needed": [needed_json(needed) for needed in kept.needed],
        "readers": kept.readers,
        "low_watermark_ms": None if kept.threshold is None else kept.threshold.position,
        "pending_files": kept.pending_files,
        "pending_bytes": kept.pending_bytes,
        "kept_for_good": list(kept.blocked),
        "lost": kept.lost,
        "runs": {outcome: asdict(runs) for outcome, runs in kept.runs.items()},
        "damaged": list(kept.damaged),
    }


def show_history(kept: Retained, now_ms: int) -> list[Block]:
    past = kept.past
    blocks: list[Block] = [
        Line(
            f"{past.versions:,} snapshots; {text.size(past.only_history_bytes)} of files are needed only by "
            "older ones"
        )
    ]
    if kept.needed:
        rest = f", and {len(kept.needed) - 1} others need history" if len(kept.needed) > 1 else ""
        blocks.append(Line(f"The oldest is needed by {show_needed(kept.needed[0])}{rest}."))
    if kept.pending_files:
        waiting = f"{kept.pending_files:,} files ({text.size(kept.pending_bytes)})"
        blocks.append(Line(f"{waiting} of expired snapshots are waiting to be deleted."))
    last = max(kept.runs.items(), key=lambda run: run[1].last_ms, default=None)
    if last is not None:
        ago, why = text.duration(max(now_ms - last[1].last_ms, 0)), f" ({last[1].why})" if last[1].why else ""
        blocks.append(Line(f"The last expiry, {ago} ago, ended with {last[0]}{why}."))
    blocks += [Line(why, "Files are never deleted:", is_bad=True) for why in kept.blocked]
    blocks += [Line(what, "Damaged:", is_bad=True) for what in kept.damaged]
    if kept.lost:
        blocks.append(Line(f"{lost_text(kept.lost)}.", "Nothing can expire:", is_bad=True))
    return blocks


def show_status(found: Status) -> Shown:
    """Show the size of the table and of its history, and the totals of its timeline."""
    facts, kept = facts_of(found.snapshot), found.retained
    totals = found.plan.totals
    blocks: list[Block] = [
        Line(
            f"{facts['files']:,} files, {text.size(facts['bytes'])}, {facts['rows']:,} rows, "
            f"{facts['delete_files']:,} delete files"
        ),
    ]
    blocks += (*show_refused(found.snapshot), *_show_equality(found.snapshot))
    source = found.snapshot.source
    moved = MovedTotals() if source is None else moved_totals(source.metadata)
    if moved.commits:
        blocks.append(
            Line(
                f"{moved.rows:,} rows were deleted while compactions ran; {moved.commits:,} commit(s) moved "
                f"these deletes and so kept {text.size(moved.kept_bytes)} of rewritten data."
            )
        )
    if kept is not None:
        blocks += show_history(kept, found.at_ms)
    if totals:
        rows = [
            (name, f"{total.units:,}", f"{total.files:,}", text.size(total.size_bytes), f"{total.rows:,}")
            for name, total in totals.items()
        ]
        blocks.append(Table("Totals", columns("", ">chunks", ">files", ">bytes", ">rows"), rows))
    document = {
        "table": facts,
        "refused": dict(found.snapshot.refused),
        "left_alone": left_json(found.snapshot),
        "equality_deletes": asdict(found.snapshot.equality),
        "moved_deletes": asdict(moved),
        "history": None if kept is None else history_json(kept),
        "totals": {name: _total_json(total) for name, total in totals.items()},
    }
    return Shown(document, tuple(blocks))


def _total_json(total: Total) -> dict[str, int]:
    return {
        "chunks": total.units,
        "files": total.files,
        "bytes": total.size_bytes,
        "rows": total.rows,
    }


def show_garbage(url: str, report: GarbageReport) -> Shown:
    """Show what was deleted, or would be."""
    garbage = [{"kind": g.kind.value, "path": g.path, "size_bytes": g.size_bytes} for g in report.garbage]
    document = {
        "url": url,
        "dry_run": report.dry_run,
        "garbage": garbage,
        "reported_only": list(report.reported_only),
        "notes": list(report.notes),
    }
    said = [g for g in report.garbage if report.dry_run or g.kind in report.reported_only]
    deleted = [g for g in report.garbage if g not in said]
    blocks: list[Block] = [] if report.garbage else [Line("There is no garbage.")]
    for title, found in (("Deleted", deleted), ("Would delete (dry run)", said)):
        if found:
            rows = [(g.kind.value, g.path, text.size(g.size_bytes)) for g in found]
            blocks.append(Table(title, columns("kind", "path", ">bytes"), rows, of="files"))
    if said and not report.dry_run:
        blocks.append(Line("None of these were deleted, because the settings set dry_run."))
    blocks.append(notes(report.notes))
    if report.dry_run and report.garbage:
        blocks.append(Line("Nothing was deleted; add --delete to delete these files."))
    return Shown(document, tuple(blocks))

"""What there is to show of a table: for scripts as JSON values, for people as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lithify.compaction.proposal import Plan, Total
from lithify.compaction.status import Status
from lithify.datasets.iceberg.garbage import Report
from lithify.datasets.iceberg.model import ChunkSpec, TableState
from lithify.datasets.kind import Run
from lithify.views import text
from lithify.views.blocks import Block, Line, Lines, Shown, Table, Timeline, columns, notes
from lithify.views.timeline import timeline_json

Facts = Mapping[str, Any]


def facts_of(state: TableState) -> Facts:
    """How much there is, as a JSON value."""
    return {
        "snapshot_id": state.snapshot_id,
        "files": len(state.files),
        "bytes": sum(file.size_bytes for file in state.files),
        "rows": sum(file.rows for file in state.files),
        "delete_files": state.delete_files,
    }


def spec_json(spec: ChunkSpec) -> dict[str, Any]:
    """A compaction of a table as a JSON value."""
    return {"kind": "chunks", "task": spec.task, "snapshot_id": spec.snapshot_id, "inputs": list(spec.inputs)}


def show_plan(url: str, state: TableState, plan: Plan, timeline: Timeline) -> Shown:
    """The timeline, and what would be started now."""
    document = {
        "url": url,
        "table": facts_of(state),
        **timeline_json(timeline.plan, timeline.calendar, timeline.words),
        "starts": [proposal.spec.task for proposal in plan.proposals],
        "notes": list(plan.notes),
    }
    nothing = () if plan.proposals else (Line("Nothing to compact now."),)
    return Shown(document, (timeline, *nothing, notes(plan.notes)))


def show_run(run: Run) -> Shown:
    """What a run did to the table, and at what cost."""
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
    }
    ended = (*result.dropped, *result.refused, *result.failures)
    blocks = (
        Table(
            f"{len(result.committed)} compaction(s) in {run.seconds:.1f} s",
            columns("", ">files", ">bytes", ">rows", ">delete files"),
            [_row("before", before), _row("after", after)],
        ),
        Line(
            f"Read {text.size(totals.bytes_read)} and wrote {text.size(totals.bytes_written)} in "
            f"{totals.ranges} task(s), {totals.cpu_s:.1f} s of processor time."
        ),
        Lines([Line(f.reason, f.compaction) for f in ended], "that were dropped, refused or failed"),
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


def history_of(state: TableState) -> Facts:
    """How much history there is, as a JSON value, by the summaries of the snapshots alone."""
    snapshots = [] if state.source is None else state.source.metadata.snapshots
    there = {snapshot.snapshot_id for snapshot in snapshots}
    removed = 0
    for snapshot in snapshots:
        # What it removed is still there for the one before it.
        if snapshot.parent_snapshot_id in there and snapshot.summary is not None:
            text_bytes = snapshot.summary.additional_properties.get("removed-files-size", "0")
            removed += int(text_bytes) if text_bytes.isdecimal() else 0
    return {
        "snapshots": len(snapshots),
        "oldest_ms": min((snapshot.timestamp_ms for snapshot in snapshots), default=None),
        "only_history_bytes": removed,
    }


def show_status(found: Status) -> Shown:
    """The size of the table and of its history, and the totals of its timeline."""
    facts, history = facts_of(found.snapshot), history_of(found.snapshot)
    totals = found.plan.totals
    blocks: list[Block] = [
        Line(
            f"{facts['files']:,} files, {text.size(facts['bytes'])}, {facts['rows']:,} rows, "
            f"{facts['delete_files']:,} delete files"
        ),
        Line(
            f"{history['snapshots']:,} snapshots; {text.size(history['only_history_bytes'])} of files that "
            "only older ones need"
        ),
    ]
    if totals:
        rows = [
            (name, f"{total.units:,}", f"{total.files:,}", text.size(total.size_bytes), f"{total.rows:,}")
            for name, total in totals.items()
        ]
        blocks.append(Table("Totals", columns("", ">chunks", ">files", ">bytes", ">rows"), rows))
    document = {
        "table": facts,
        "history": history,
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


def show_garbage(url: str, report: Report) -> Shown:
    """What was deleted, or would be."""
    garbage = [{"kind": g.kind.value, "path": g.path, "size_bytes": g.size_bytes} for g in report.garbage]
    document = {"url": url, "dry_run": report.dry_run, "garbage": garbage, "notes": list(report.notes)}
    blocks: list[Block] = [Line("There is no garbage.")]
    if report.garbage:
        rows = [(found.kind.value, found.path, text.size(found.size_bytes)) for found in report.garbage]
        title = "Would delete (dry run)" if report.dry_run else "Deleted"
        blocks = [Table(title, columns("kind", "~path", ">bytes"), rows, of="files")]
    blocks.append(notes(report.notes))
    if report.dry_run and report.garbage:
        blocks.append(Line("Nothing was deleted; add --delete to do it."))
    return Shown(document, tuple(blocks))

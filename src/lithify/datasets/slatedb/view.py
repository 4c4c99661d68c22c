"""Displays of a database: JSON values for scripts, blocks for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lithify.base.backlog import Backlog
from lithify.datasets.kind import DatasetRun
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.garbage.collection import Count, GarbageKind, GarbageReport
from lithify.datasets.slatedb.model import Manifest, Spec, Sst, TieredSpec, Tree, View
from lithify.datasets.slatedb.planning.shape import Shape, shape_of
from lithify.datasets.slatedb.planning.timeline import SegmentTimeline
from lithify.observe.progress import Totals
from lithify.protocol.model import Compaction
from lithify.protocol.proposal import Plan
from lithify.views import text
from lithify.views.blocks import (
    Alarm,
    Block,
    Level,
    LevelPart,
    Levels,
    Line,
    Lines,
    Shown,
    Table,
    Timeline,
    columns,
    notes,
)
from lithify.views.documents import plain
from lithify.views.timeline import SEGMENT_WORDS, timeline_json

MAX_RUNS_NAMED = 50
MAX_PIECES = 200
"""The most pieces of one level that its picture shows."""
DROPPED = ("superseded", "tombstones", "expired", "filtered", "folded")
_GARBAGE = {
    "manifest": "manifests",
    "compactions": "compactions files",
    "compacted": "SSTs",
    "wal": "write-ahead log files",
    "wal_fence": "write-ahead log fences",
    "checkpoint": "expired checkpoints",
    "detach": "references of a clone to its parents",
    "progress": "progress records",
    "attempts": "records of attempts",
    "staged": "half-written files",
}
"""Labels by kind of garbage, in display order."""


# Plan


def timeline_of(segments: SegmentTimeline) -> Timeline:
    """Return the segments of a database as chunks of time."""
    return Timeline(segments.plan, segments.calendar, SEGMENT_WORDS)


def show_plan(
    url: str, manifest: Manifest, ledger: SlateLedger, plan: Plan, timeline: Timeline | None
) -> Shown:
    """Show the planned compactions together with the current state."""
    shape = shape_of(manifest)
    chunks = {} if timeline is None else timeline_json(timeline.plan, timeline.calendar, timeline.words)
    document = {
        "url": url,
        "shape": shape_json(shape),
        **({} if timeline is None else {"timeline": chunks}),
        "proposals": [
            {
                "spec": spec_json(proposal.spec),
                "priority": proposal.priority,
                "cost_bytes": proposal.cost_bytes,
                "reason": proposal.reason,
            }
            for proposal in plan.proposals
        ],
        "notes": list(plan.notes),
    }
    blocks: list[Block] = [] if timeline is None else [timeline]
    blocks += [
        _levels(manifest, ledger, plan),
        *_proposals(plan),
        _shape_table("Shape", shape),
        notes(plan.notes),
    ]
    return Shown(document, tuple(blocks), _verdict(plan))


def _verdict(plan: Plan) -> str:
    """Return what the plan would do, in one sentence."""
    if not plan.proposals:
        return "Nothing to compact"
    specs = [proposal.spec for proposal in plan.proposals]
    l0 = sum(len(spec.l0_view_ids) for spec in specs)
    runs = sum(len(spec.sorted_runs) for spec in specs)
    inputs = [text.count(n, noun) for n, noun in ((l0, "L0 SST"), (runs, "sorted run")) if n]
    into = {(spec.segment, spec.destination) for spec in specs if isinstance(spec, TieredSpec)}
    outputs = f" to {text.count(len(into), 'sorted run')}" if into else ""
    size = text.size(sum(proposal.cost_bytes for proposal in plan.proposals))
    return f"{text.joined(inputs)}{outputs}: {size} to read in {text.count(len(specs), 'compaction')}"


def _proposals(plan: Plan) -> tuple[Block, ...]:
    if not plan.proposals:
        return ()
    rows = [
        (
            text.segment(proposal.spec.segment),
            sources(proposal.spec),
            destination(proposal.spec),
            text.size(proposal.cost_bytes),
            proposal.reason,
        )
        for proposal in plan.proposals
    ]
    headings = columns("segment", "sources", "into run", "reads", "why")
    return (Table("Would compact", headings, rows, of="proposals"),)


def _levels(manifest: Manifest, ledger: SlateLedger, plan: Plan) -> Levels:
    """Return the layout of each tree: L0 SSTs, newest first, and below them the sorted runs."""
    roles: dict[tuple[bytes, str | int], str] = {}
    for spec, role in (
        *((proposal.spec, "planned") for proposal in plan.proposals),
        *((compaction.spec, "active") for compaction in ledger.active()),
    ):
        roles |= {(spec.segment, source): role for source in (*spec.l0_view_ids, *spec.sorted_runs)}
    levels: list[Level] = []
    for tree in manifest.trees():
        name = text.segment(tree.prefix)
        if tree.l0:
            newest = tuple(
                _piece(view, roles.get((tree.prefix, view.id), "resting")) for view in tree.l0[:MAX_PIECES]
            )
            levels.append(Level(f"L0: {len(tree.l0)}", newest, name))
        for run in tree.runs:
            role = roles.get((tree.prefix, run.id), "resting")
            pieces = tuple(_piece(view, role) for view in run.views)
            if len(pieces) > MAX_PIECES:
                pieces = (LevelPart(run.size_bytes, role, f"{len(pieces)} SSTs"),)
            levels.append(Level(f"run {run.id}", pieces, name))
    return Levels("L0 SSTs and sorted runs by bytes", levels, "SSTs")


def _piece(view: View, role: str) -> LevelPart:
    keys = view.effective_range
    told = f"{view.sst.id}: {text.size(view.sst.size_bytes)}, {text.key(keys.start)} to {text.key(keys.end)}"
    return LevelPart(view.sst.size_bytes, role, told)


def sources(spec: Spec) -> str:
    """Describe the sources of a spec in a few words."""
    parts = []
    if spec.l0_view_ids:
        parts.append(f"{len(spec.l0_view_ids)} L0")
    if spec.sorted_runs:
        named = ", ".join(str(run) for run in spec.sorted_runs[:MAX_RUNS_NAMED])
        parts.append(f"runs {named}" + (" …" if len(spec.sorted_runs) > MAX_RUNS_NAMED else ""))
    return " + ".join(parts)


def destination(spec: Spec) -> str:
    """Describe the destination of a spec's outputs."""
    return str(spec.destination) if isinstance(spec, TieredSpec) else "(drain)"


def spec_json(spec: Spec) -> dict[str, Any]:
    """Return a spec as a JSON value."""
    kind = "tiered" if isinstance(spec, TieredSpec) else "drain"
    return {"kind": kind, **plain(asdict(spec))}


# Shape


def shape_json(shape: Shape) -> dict[str, Any]:
    """Return a shape as a JSON value."""
    return {
        **plain(asdict(shape)),
        "size_bytes": shape.size_bytes,
        "l0_ssts": shape.l0_ssts,
        "runs": shape.runs,
        "read_amplification": shape.read_amplification,
        "space_amplification": shape.space_amplification,
    }


def _shape_table(title: str, shape: Shape) -> Table:
    rows: list[tuple[str, ...]] = []
    for tree in shape.trees:
        name = text.segment(tree.prefix)
        rows.append((name, "L0", str(tree.l0_ssts), text.size(tree.l0_bytes)))
        rows += ((name, f"run {run.id}", str(run.ssts), text.size(run.size_bytes)) for run in tree.runs)
    headings = columns("segment", "level", ">SSTs", ">bytes")
    return Table(f"{title}: {text.size(shape.size_bytes)}", headings, rows, of="levels")


# A run


def show_run(run: DatasetRun) -> Shown:
    """Show how a run changed the shape, and at what cost."""
    before, after, result, totals = run.before, run.after, run.summary, run.totals
    amplification = write_amplification(before, after, totals)
    document = {
        "url": run.url,
        "did_anything": result.started,
        "committed": list(result.committed),
        "refused": [{"compaction": f.compaction, "reason": f.reason} for f in result.refused],
        "failed": [{"compaction": f.compaction, "reason": f.reason} for f in result.failures],
        "before": shape_json(before),
        "after": shape_json(after),
        "ranges": totals.ranges,
        "rows": dict(totals.rows),
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "write_amplification": amplification,
        "task_cpu_seconds": totals.cpu_s,
        "peak_task_memory_bytes": totals.peak_task_memory_bytes,
        "seconds": run.seconds,
        "notes": list(result.plan.notes),
    }
    dropped = ", ".join(f"{totals.rows[name]:,} {name}" for name in DROPPED if totals.rows[name])
    speed = text.size(totals.bytes_read / run.seconds) if run.seconds else "–"
    blocks = (
        _comparison(before, after),
        Line(
            f"{text.count(len(result.committed), 'compaction')} in {text.count(totals.ranges, 'range')}: "
            f"read {text.size(totals.bytes_read)}, "
            f"wrote {text.size(totals.bytes_written)} in {run.seconds:.1f} s ({speed}/s); "
            f"write amplification {text.ratio(amplification)}."
        ),
        Line(
            f"{totals.rows['rows_in']:,} rows in, {totals.rows['rows_out']:,} out; "
            f"dropped: {dropped or 'none'}."
        ),
        Lines(
            [Line(f"Refused {text.short_id(f.compaction)}: {f.reason}") for f in result.refused],
            "that were refused",
        ),
        Lines(
            [
                Line(f"{text.short_id(f.compaction)}: {f.reason}", "Failed", is_bad=True)
                for f in result.failures
            ],
            "that failed",
        ),
    )
    return Shown(document, blocks)


def write_amplification(before: Shape, after: Shape, totals: Totals) -> float | None:
    """Return bytes written divided by the L0 bytes that this run consumed."""
    taken = sum(t.l0_bytes for t in before.trees) - sum(t.l0_bytes for t in after.trees)
    return totals.bytes_written / taken if taken > 0 else None


def _comparison(before: Shape, after: Shape) -> Table:
    rows = (
        ("L0 SSTs", str(before.l0_ssts), str(after.l0_ssts)),
        ("sorted runs", str(before.runs), str(after.runs)),
        ("bytes", text.size(before.size_bytes), text.size(after.size_bytes)),
        ("read amplification", str(before.read_amplification), str(after.read_amplification)),
        (
            "space amplification",
            text.ratio(before.space_amplification),
            text.ratio(after.space_amplification),
        ),
    )
    return Table("Summary", columns("", ">before", ">after"), rows)


# Status


def show_backlog(backlogs: Sequence[Backlog]) -> Shown:
    """Show how close the writer is to a stall, for each tree."""
    headings = columns("segment", ">L0 SSTs", ">L0 bytes", ">runs", ">bytes", ">flushes", ">stalls in")
    rows = [_backlog_row(backlog) for backlog in backlogs]
    documents = [
        {"unit": b.unit, **{detail.name: detail.value for detail in b.details}, "stall_ms": b.stall_ms}
        for b in backlogs
    ]
    blocks = (Table("Backlog", headings, rows, of="segments"),) if rows else ()
    return Shown({"pressure": documents}, blocks)


def _backlog_row(backlog: Backlog) -> tuple[str, ...]:
    per_s = backlog["flushes_per_s"]
    return (
        backlog.unit,
        f"{backlog.waiting} of {backlog.limit}",
        text.size(backlog["l0_bytes"] or 0),
        f"{backlog['runs']:.0f}",
        text.size(backlog["size_bytes"] or 0),
        "–" if per_s is None else f"{text.number(per_s * 60)}/min",
        Alarm("stalls now") if backlog.stall_ms == 0 else text.duration(backlog.stall_ms),
    )


# Parts


def show_manifest(manifest_id: int, manifest: Manifest) -> Shown:
    """Show a manifest: every tree, run and SST, checkpoints and clones."""
    rows = [
        (text.segment(tree.prefix), level, *(("(empty)", *("",) * 5) if view is None else _view_cells(view)))
        for tree, level, view in _places(manifest)
    ]
    headings = columns("segment", "level", "view", "=SST", "bytes", "codec", "first key", "last key")
    blocks = (
        Line(
            f"Manifest {manifest_id}: writer epoch {manifest.writer_epoch}, compactor epoch "
            f"{manifest.compactor_epoch}, last L0 sequence number {manifest.last_l0_seq}, oldest snapshot "
            f"{manifest.recent_snapshot_min_seq}, clock tick {manifest.last_l0_clock_tick} ms"
        ),
        Table("SSTs", headings, rows, of="views"),
        Lines(
            [
                Line(
                    f"Checkpoint {checkpoint.id} pins manifest {checkpoint.manifest_id}, expires "
                    f"{checkpoint.expire_time_s or 'never'}, name {checkpoint.name or '–'}"
                )
                for checkpoint in manifest.checkpoints
            ],
            "checkpoints",
        ),
        Lines(
            [Line(f"Reads {len(db.sst_ids)} SSTs of {db.path}") for db in manifest.external_dbs],
            "external databases",
        ),
    )
    return Shown({"id": manifest_id, **plain(asdict(manifest))}, blocks)


def _places(manifest: Manifest) -> Iterator[tuple[Tree, str, View | None]]:
    """Yield each view with its tree and level, in read order; a run without views once."""
    for tree in manifest.trees():
        yield from ((tree, "L0", view) for view in tree.l0)
        for run in tree.runs:
            yield from ((tree, f"run {run.id}", view) for view in run.views or (None,))


def _view_cells(view: View) -> tuple[str, ...]:
    info = view.sst.info
    return (
        "same" if view.id == view.sst.id else view.id,
        view.sst.id,
        text.size(view.sst.size_bytes),
        info.compression.name.lower(),
        text.key(view.effective_range.start),
        text.key(view.effective_range.end),
    )


def show_ledger(ledger: SlateLedger) -> Shown:
    """Show the ledger: every compaction, its state, its worker and its progress."""
    rows = [
        (
            text.short_id(c.id),
            c.state.value,
            text.segment(c.spec.segment),
            sources(c.spec),
            destination(c.spec),
            text.short_ids(c.worker.id) if c.worker is not None else "–",
            str(len(c.progress.ranges)) if c.progress is not None else "–",
            str(len(c.outputs)),
        )
        for c in ledger.compactions
    ]
    headings = columns("=id", "=state", "segment", "sources", "into run", "worker", "ranges", "outputs")
    table = Table(f"Compactions, epoch {ledger.epoch}", headings, rows, of="compactions")
    document = {"epoch": ledger.epoch, "compactions": [_compaction_json(c) for c in ledger.compactions]}
    return Shown(document, (table,))


def _compaction_json(compaction: Compaction[Spec, Any, Sst]) -> dict[str, Any]:
    return {**plain(asdict(compaction)), "spec": spec_json(compaction.spec)}


def show_sst(key: str, facts: Mapping[str, Any]) -> Shown:
    """Show one row for each fact of an SST."""
    rows = [
        (name.replace("_", " "), text.key(value) if isinstance(value, bytes) else str(plain(value)))
        for name, value in facts.items()
    ]
    document: Mapping[str, Any] = plain(dict(facts))
    # A table title would be wrapped at the table's width.
    return Shown(document, (Line(key), Table("", columns("", ""), rows, of="facts")))


# Garbage


def show_garbage(url: str, report: GarbageReport) -> Shown:
    """Show what was collected, or would be in a dry run."""
    counts = {kind: c for kind, c in report.counts.items() if kind not in report.reported_only}
    blocks: list[Block] = [_counted(counts, dry_run=report.dry_run)]
    if report.reported_only:
        counts = {kind: report.counts[kind] for kind in report.reported_only}
        blocks.append(_counted(counts, dry_run=True))
        blocks.append(Line("None of these were deleted, because the settings set dry_run."))
    blocks.append(Line(f"Age limit for deleting SSTs: {report.sst_cutoff.reason}."))
    if report.dry_run and report.deletable:
        blocks.append(Line("Nothing was deleted; add --delete to delete these files."))
    return Shown({"url": url, **asdict(report)}, tuple(blocks))


def _counted(counts: Mapping[GarbageKind, Count], *, dry_run: bool) -> Table:
    named = {kind.value: count for kind, count in counts.items()}
    return Table(
        "Would delete (dry run)" if dry_run else "Deleted",
        columns("", ">found", ">deletable" if dry_run else ">deleted", ">bytes"),
        [(name, *_cells(named[kind])) for kind, name in _GARBAGE.items() if kind in named],
        sums=(
            "all",
            str(sum(count.found for count in counts.values())),
            str(sum(count.deletable for count in counts.values())),
            text.size(sum(count.deletable_bytes for count in counts.values())),
        ),
    )


def _cells(count: Count) -> tuple[str, str, str]:
    return str(count.found), str(count.deletable), text.size(count.deletable_bytes)

"""Tables for people, and the same facts as JSON values for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lithify.compaction.model import Compaction
from lithify.compaction.proposal import Plan
from lithify.compaction.run_summary import RunSummary
from lithify.datasets.slatedb.ledger import SlateLedger
from lithify.datasets.slatedb.model import Manifest, Spec, Sst, TieredSpec, Tree, View
from lithify.datasets.slatedb.shape import Shape, shape_of
from lithify.datasets.slatedb.timeline import SegmentTimeline
from lithify.observe.progress import Totals
from lithify.views import text
from lithify.views.timeline import SEGMENT_WORDS, print_timeline, timeline_json

MAX_RUNS_NAMED = 50
DROPPED = ("superseded", "tombstones", "expired", "filtered", "folded")


def plain(value: Any) -> Any:
    """A JSON value: bytes as hexadecimal, enums by name, everything else as it is."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "name") and hasattr(value, "value"):
        return str(value.name).lower()
    return value if isinstance(value, int | float | str | bool | None) else str(value)


# Plan


def plan_json(
    url: str, manifest: Manifest, plan: Plan, segments: SegmentTimeline | None = None
) -> dict[str, Any]:
    return {
        "url": url,
        "shape": shape_json(shape_of(manifest)),
        **({} if segments is None else {"timeline": _segments_json(segments)}),
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


def _segments_json(segments: SegmentTimeline) -> dict[str, Any]:
    return timeline_json(segments.plan, segments.calendar, SEGMENT_WORDS)


def draw_segments(segments: SegmentTimeline, path: Path) -> None:
    """The segments as a picture."""
    from lithify.views.timeline_picture import save_picture

    save_picture(segments.plan, segments.calendar, path, SEGMENT_WORDS)


def print_plan(
    console: Console, manifest: Manifest, plan: Plan, segments: SegmentTimeline | None = None
) -> None:
    if segments is not None:
        print_timeline(console, segments.plan, segments.calendar, SEGMENT_WORDS)
    print_shape(console, "Shape", shape_of(manifest))
    if plan.proposals:
        table = Table(title="Would compact", title_justify="left")
        for heading in ("segment", "sources", "into run", "reads", "why"):
            table.add_column(heading, overflow="fold")
        for proposal in plan.proposals[: text.MAX_SHOWN]:
            spec = proposal.spec
            table.add_row(
                text.segment(spec.segment),
                sources(spec),
                destination(spec),
                text.size(proposal.cost_bytes),
                escape(proposal.reason),
            )
        console.print(table)
        text.print_rest(console, len(plan.proposals), "proposals")
    else:
        console.print("Nothing to compact.")
    for note in plan.notes[: text.MAX_SHOWN]:
        console.print(f"  {note}", highlight=False, markup=False)
    text.print_rest(console, len(plan.notes), "notes")


def sources(spec: Spec) -> str:
    """The sources of a spec in a few words."""
    parts = []
    if spec.l0_view_ids:
        parts.append(f"{len(spec.l0_view_ids)} L0")
    if spec.sorted_runs:
        named = ", ".join(str(run) for run in spec.sorted_runs[:MAX_RUNS_NAMED])
        parts.append(f"runs {named}" + (" …" if len(spec.sorted_runs) > MAX_RUNS_NAMED else ""))
    return " + ".join(parts)


def destination(spec: Spec) -> str:
    return str(spec.destination) if isinstance(spec, TieredSpec) else "(drain)"


def spec_json(spec: Spec) -> dict[str, Any]:
    kind = "tiered" if isinstance(spec, TieredSpec) else "drain"
    return {"kind": kind, **plain(asdict(spec))}


# Shape


def shape_json(shape: Shape) -> dict[str, Any]:
    return {
        **plain(asdict(shape)),
        "size_bytes": shape.size_bytes,
        "l0_ssts": shape.l0_ssts,
        "runs": shape.runs,
        "read_amplification": shape.read_amplification,
        "space_amplification": shape.space_amplification,
    }


def print_shape(console: Console, title: str, shape: Shape) -> None:
    table = Table(title=f"{title}: {text.size(shape.size_bytes)}", title_justify="left")
    table.add_column("segment")
    table.add_column("level")
    table.add_column("SSTs", justify="right")
    table.add_column("bytes", justify="right")
    rows: list[tuple[str, ...]] = []
    for tree in shape.trees:
        name = text.segment(tree.prefix)
        rows.append((name, "L0", str(tree.l0_ssts), text.size(tree.l0_bytes)))
        rows += ((name, f"run {run.id}", str(run.ssts), text.size(run.size_bytes)) for run in tree.runs)
    for row in rows[: text.MAX_SHOWN]:
        table.add_row(*row)
    console.print(table)
    text.print_rest(console, len(rows), "levels")


# RunSummary of a run


def result_json(
    url: str, before: Shape, after: Shape, result: RunSummary, totals: Totals, seconds: float
) -> dict[str, Any]:
    return {
        "url": url,
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
        "write_amplification": write_amplification(before, after, totals),
        "task_cpu_seconds": totals.cpu_s,
        "peak_task_memory_bytes": totals.peak_task_memory_bytes,
        "seconds": seconds,
        "notes": list(result.plan.notes),
    }


def write_amplification(before: Shape, after: Shape, totals: Totals) -> float | None:
    """Bytes written over the L0 bytes that this run took in."""
    taken = sum(t.l0_bytes for t in before.trees) - sum(t.l0_bytes for t in after.trees)
    return totals.bytes_written / taken if taken > 0 else None


def print_result(
    console: Console, before: Shape, after: Shape, result: RunSummary, totals: Totals, seconds: float
) -> None:
    table = Table(title="Summary", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    rows: tuple[tuple[str, str, str], ...] = (
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
    for row in rows:
        table.add_row(*row)
    console.print(table)
    dropped = ", ".join(f"{totals.rows[name]:,} {name}" for name in DROPPED if totals.rows[name])
    speed = text.size(totals.bytes_read / seconds) if seconds else "–"
    console.print(
        f"{len(result.committed)} compaction(s) in {totals.ranges} range(s): "
        f"read {text.size(totals.bytes_read)}, "
        f"wrote {text.size(totals.bytes_written)} in {seconds:.1f} s ({speed}/s); "
        f"write amplification {text.ratio(write_amplification(before, after, totals))}.",
        highlight=False,
    )
    console.print(
        f"{totals.rows['rows_in']:,} rows in, {totals.rows['rows_out']:,} out; dropped: {dropped or 'none'}.",
        highlight=False,
    )
    for refusal in result.refused[: text.MAX_SHOWN]:
        console.print(f"Refused {refusal.compaction}: {refusal.reason}", highlight=False, markup=False)
    text.print_rest(console, len(result.refused), "that were refused")
    for failure in result.failures[: text.MAX_SHOWN]:
        console.print(f"[red]Failed[/] {failure.compaction}: {escape(failure.reason)}", highlight=False)
    text.print_rest(console, len(result.failures), "that failed")


# Inspect


def manifest_json(manifest_id: int, manifest: Manifest) -> dict[str, Any]:
    return {"id": manifest_id, **plain(asdict(manifest))}


def print_manifest(console: Console, manifest_id: int, manifest: Manifest) -> None:
    console.print(
        f"Manifest {manifest_id}: writer epoch {manifest.writer_epoch}, compactor epoch "
        f"{manifest.compactor_epoch}, last L0 sequence number {manifest.last_l0_seq}, oldest snapshot "
        f"{manifest.recent_snapshot_min_seq}, clock tick {manifest.last_l0_clock_tick} ms",
        highlight=False,
    )
    table = Table(title="SSTs", title_justify="left")
    for heading in ("segment", "level", "view", "SST", "bytes", "codec", "first key", "last key"):
        table.add_column(heading)
    places = list(_places(manifest))
    for tree, level, view in places[: text.MAX_SHOWN]:
        table.add_row(
            text.segment(tree.prefix), level, *(("(empty)",) if view is None else _view_cells(view))
        )
    console.print(table)
    text.print_rest(console, len(places), "views")
    for checkpoint in manifest.checkpoints[: text.MAX_SHOWN]:
        console.print(
            f"Checkpoint {checkpoint.id} pins manifest {checkpoint.manifest_id}, expires "
            f"{checkpoint.expire_time_s or 'never'}, name {checkpoint.name or '–'}",
            highlight=False,
        )
    text.print_rest(console, len(manifest.checkpoints), "checkpoints")
    for db in manifest.external_dbs[: text.MAX_SHOWN]:
        console.print(f"Reads {len(db.sst_ids)} SSTs of {db.path}", highlight=False, markup=False)
    text.print_rest(console, len(manifest.external_dbs), "databases that are read")


def _places(manifest: Manifest) -> Iterator[tuple[Tree, str, View | None]]:
    """Each view with its tree and level, in read order; a run without views once."""
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


def ledger_json(ledger: SlateLedger) -> dict[str, Any]:
    return {"epoch": ledger.epoch, "compactions": [_compaction_json(c) for c in ledger.compactions]}


def _compaction_json(compaction: Compaction[Spec, Any, Sst]) -> dict[str, Any]:
    return {**plain(asdict(compaction)), "spec": spec_json(compaction.spec)}


def print_ledger(console: Console, ledger: SlateLedger) -> None:
    table = Table(title=f"Compactions, epoch {ledger.epoch}", title_justify="left")
    for heading in ("id", "state", "segment", "sources", "into run", "worker", "ranges", "outputs"):
        table.add_column(heading)
    table.columns[0].no_wrap = True
    for c in ledger.compactions[: text.MAX_SHOWN]:
        table.add_row(
            c.id,
            c.state.value,
            text.segment(c.spec.segment),
            sources(c.spec),
            destination(c.spec),
            c.worker.id if c.worker is not None else "–",
            str(len(c.progress.ranges)) if c.progress is not None else "–",
            str(len(c.outputs)),
        )
    console.print(table)
    text.print_rest(console, len(ledger.compactions), "compactions")


def print_facts(console: Console, title: str, facts: Mapping[str, Any]) -> None:
    """One row for each fact."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(
            name.replace("_", " "), text.key(value) if isinstance(value, bytes) else str(plain(value))
        )
    console.print(table)

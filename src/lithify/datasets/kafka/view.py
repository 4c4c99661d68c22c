"""What there is to show of keyed logs: for scripts as JSON values, for people as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lithify.compaction.proposal import Plan
from lithify.datasets.kafka.dataset import LogDataset, LogSnapshot, LogSpec
from lithify.datasets.kafka.garbage import KINDS, Report
from lithify.datasets.kafka.state import STEPS
from lithify.datasets.kind import Run
from lithify.store.keys import url_of
from lithify.views import text
from lithify.views.blocks import Block, Line, Lines, Shown, Table, columns, notes

_HEADINGS = columns("partition", ">segments", ">bytes", ">new segments", ">new bytes", "state", "=folder")


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """What is worth telling of a partition."""

    partition: str
    segments: int
    size_bytes: int
    steps_done: int
    steps: int
    """That a round has."""
    is_compacted: bool
    new_segments: int
    new_bytes: int
    folder: str | None
    """Of the compacted partition, in the output; `None` if there is none of it as it is now, or if it is
    compacted in its place."""


Look = tuple[PartitionLook, ...]


def look(snapshot: LogSnapshot) -> Look:
    """All partitions."""
    found = []
    for name, folder in snapshot.partitions.items():
        round_ = snapshot.round(name)
        steps = 0 if round_ is None else len(round_.done)
        is_compacted = round_ is not None and round_.is_whole
        published = None
        if round_ is not None and is_compacted and not round_.topic_id:
            published = f"{round_.done[-1]}/{name}"
        found.append(
            PartitionLook(
                name,
                len(folder.segments),
                sum(segment.size_bytes for segment in folder.segments),
                steps,
                len(STEPS if folder.topic else STEPS[:-1]),
                is_compacted,
                0 if round_ is None else round_.new_segments,
                0 if round_ is None else round_.new_bytes,
                published,
            )
        )
    return tuple(found)


def partitions_json(found: Look) -> list[dict[str, Any]]:
    """Partitions as a JSON value."""
    return [{name: getattr(one, name) for name in PartitionLook.__slots__} for one in found]


def _table(title: str, found: Look) -> Table:
    rows = []
    for one in found:
        state = "compacted" if one.is_compacted else f"step {one.steps_done + 1} of {one.steps}"
        new = (f"{one.new_segments:,}", text.size(one.new_bytes)) if one.is_compacted else ("–", "–")
        size = text.size(one.size_bytes)
        state = state if one.steps_done else "as it came"
        rows.append((one.partition, f"{one.segments:,}", size, *new, state, one.folder or "–"))
    return Table(title, _HEADINGS, rows, of="partitions")


def show_plan(url: str, snapshot: LogSnapshot, plan: Plan[LogSpec]) -> Shown:
    """What would be compacted, beside what there is."""
    found = look(snapshot)
    document = {
        "url": url,
        "partitions": partitions_json(found),
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
    proposals: Block = Line("Nothing to compact.")
    if plan.proposals:
        rows = [
            (p.spec.partition, str(p.spec.step), text.size(p.cost_bytes), p.reason) for p in plan.proposals
        ]
        headings = columns("partition", "step", ">reads", "why")
        proposals = Table("Would compact", headings, rows, of="proposals")
    return Shown(document, (_table("Partitions", found), proposals, notes(plan.notes)))


def spec_json(spec: LogSpec) -> dict[str, Any]:
    """A spec as a JSON value."""
    return {"partition": spec.partition, "step": str(spec.step), "fingerprint": spec.fingerprint}


def show_run(run: Run) -> Shown:
    """What a run made of the partitions, and at what cost."""
    after, result, totals = run.after, run.summary, run.totals
    document = {
        "url": run.url,
        "did_anything": result.started,
        "committed": list(result.committed),
        "refused": [asdict(one) for one in result.refused],
        "failed": [asdict(one) for one in result.failures],
        "before": partitions_json(run.before),
        "after": partitions_json(after),
        "ranges": totals.ranges,
        "rows": dict(totals.rows),
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "task_cpu_seconds": totals.cpu_s,
        "seconds": run.seconds,
        "notes": list(result.plan.notes),
    }
    rows = Counter(totals.rows)
    dropped = {name: n for name, n in rows.items() if n and name not in ("rows_in", "rows_out")}
    said = f"{rows['rows_in']:,} rows in, {rows['rows_out']:,} out"
    if dropped:
        said += "; dropped: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in dropped.items())
    blocks = (
        _table(f"{len(result.committed)} compaction(s) in {run.seconds:.1f} s", after),
        Line(
            f"Read {text.size(totals.bytes_read)} and wrote {text.size(totals.bytes_written)} in "
            f"{totals.ranges} task(s), {totals.cpu_s:.1f} s of processor time. {said}."
        ),
        Lines(
            [Line(one.reason, text.short_id(one.compaction)) for one in (*result.refused, *result.failures)],
            "that were refused or failed",
        ),
        notes(result.plan.notes),
    )
    return Shown(document, blocks)


def show_status(snapshot: LogSnapshot) -> Shown:
    """How far each partition is."""
    found = look(snapshot)
    return Shown({"partitions": partitions_json(found)}, (_table("Partitions", found),))


def show_segments(dataset: LogDataset, snapshot: LogSnapshot) -> Shown:
    """Every segment of the source, and where the compacted folders are."""
    found = look(snapshot)
    rows, document = [], []
    for one in found:
        for segment in snapshot.partitions[one.partition].segments:
            name = segment.key.rpartition("/")[2]
            rows.append((one.partition, name, f"{segment.base_offset:,}", text.size(segment.size_bytes)))
            document.append(
                {
                    "partition": one.partition,
                    "name": name,
                    "base_offset": segment.base_offset,
                    "size_bytes": segment.size_bytes,
                }
            )
    folders = {
        one.partition: url_of(dataset.store.url, f"{dataset.output_root}/{one.folder}")
        for one in found
        if one.folder is not None
    }
    lines = tuple(Line(folder, f"{name}: ") for name, folder in folders.items())
    table = Table("Segments", columns("partition", "=name", ">base offset", ">bytes"), rows, of="segments")
    return Shown({"segments": document, "folders": folders}, (table, *lines))


def show_garbage(url: str, report: Report) -> Shown:
    """What a collection did."""
    verb = "would be deleted" if report.dry_run else "deleted"
    counts: Mapping[str, int] = {kind: report.deleted[kind] for kind in KINDS}
    document = {
        "url": url,
        "dry_run": report.dry_run,
        "deleted": counts,
        "left": {kind: report.left[kind] for kind in KINDS},
        "bytes_deleted": report.bytes_deleted,
    }
    said = ", ".join(f"{count:,} of {kind}" for kind, count in counts.items() if count) or "nothing"
    return Shown(document, (Line(f"{said} {verb} ({text.size(report.bytes_deleted)})."),))

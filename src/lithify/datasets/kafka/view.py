"""Views of keyed logs: JSON values for scripts, blocks for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lithify.datasets.kafka.buckets.topic_copy import CopySnapshot
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.garbage import KINDS, GarbageReport
from lithify.datasets.kafka.model import LogSnapshot, LogSpec
from lithify.datasets.kafka.state import STEPS
from lithify.datasets.kind import DatasetRun
from lithify.protocol.proposal import Plan
from lithify.store.keys import url_of
from lithify.views import text
from lithify.views.blocks import Block, Line, Lines, Shown, Table, columns, notes

_CUT_OVER = (
    "Stop the producers of the topic; let its consumers read to the end, and stop them.",
    "Wait for quiet_period, and run lithify compact again, which copies the rest and the committed offsets "
    "of the groups. Repeat until nothing is left. If lithify run does this, wait until lithify status shows "
    "that nothing is left, and stop it.",
    "Start the consumers on the new topic, with their groups, then the producers.",
    "When nothing needs the old topic any more, delete it through the broker.",
)
_NEWEST_ONLY = (
    "The topic's cleanup.policy is not known here. Of each key only the newest record will be in the output, "
    "which is right only for topics with cleanup.policy=compact."
)
_HEADINGS = columns("partition", ">segments", ">bytes", ">new segments", ">new bytes", "state", "=folder")


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """The state of a partition's copy in a new topic."""

    topic: str
    is_visible: bool
    """Whether the broker knows that topic."""
    end_offset: int | None
    """The offset up to which it was copied; `None`: not at all."""
    objects_left: int
    """The number of objects not copied yet."""
    partitions_left: int
    """The number of that topic's partitions that the broker does not know yet."""
    offsets_moved: tuple[str, ...]
    """Partitions of the topic in which groups have committed offsets since those were carried over."""
    groups: tuple[str, ...]
    """Groups whose committed offsets were carried over."""
    groups_gone_on: tuple[str, ...]
    """Groups whose offsets were not carried over, since they have committed some in the copy themselves."""


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """The state of a partition."""

    partition: str
    segments: int
    size_bytes: int
    steps_done: int
    steps: int
    """The number of steps of a round."""
    is_compacted: bool
    new_segments: int
    new_bytes: int
    folder: str | None
    """The compacted partition in the output; `None` if the partition as it is now has none, or is compacted
    in place."""
    copy: PartitionCopy | None = None
    """`None` if the topic is not copied."""


Look = tuple[PartitionLook, ...]


def look(snapshot: LogSnapshot) -> Look:
    """Return the state of all partitions."""
    found = []
    moved = tuple(snapshot.moved_offsets) if isinstance(snapshot, CopySnapshot) else ()
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
                _copy_of(snapshot, name, moved),
            )
        )
    return tuple(found)


def _copy_of(snapshot: LogSnapshot, partition: str, moved: tuple[str, ...]) -> PartitionCopy | None:
    if not isinstance(snapshot, CopySnapshot):
        return None
    copied = snapshot.state.copied.get(partition)
    return PartitionCopy(
        snapshot.name,
        snapshot.state.is_copy_visible,
        None if copied is None else copied.end,
        snapshot.left(partition),
        snapshot.partitions_left,
        moved,
        () if copied is None else copied.groups,
        () if copied is None else copied.gone_on,
    )


def partitions_json(found: Look) -> list[dict[str, Any]]:
    names = [name for name in PartitionLook.__slots__ if name != "copy"]
    return [{name: getattr(one, name) for name in names} for one in found]


def copy_json(found: Look) -> dict[str, Any]:
    """Return the state of a topic's copy as JSON fields; empty if nothing is copied."""
    copies = {one.partition: one.copy for one in found if one.copy is not None}
    if not copies:
        return {}
    topic, *_ = (one.topic for one in copies.values())
    is_visible = any(one.is_visible for one in copies.values())
    left = sum(one.objects_left for one in copies.values())
    partitions_left = max(one.partitions_left for one in copies.values())
    moved = sorted({name for one in copies.values() for name in one.offsets_moved})
    document = {
        "topic": topic,
        "is_visible": is_visible,
        "is_complete": is_visible and not (left or partitions_left or moved),
        "objects_left": left,
        "partitions_left": partitions_left,
        "offsets_moved": moved,
        "groups": sorted({group for one in copies.values() for group in one.groups}),
        "groups_gone_on": sorted({group for one in copies.values() for group in one.groups_gone_on}),
        "end_offsets": {name: one.end_offset for name, one in copies.items()},
        "cut_over": list(_CUT_OVER) if is_visible else [],
    }
    return {"copy": document}


def _copy_blocks(found: Look) -> tuple[Block, ...]:
    document = copy_json(found)
    if not document:
        return ()
    copy = document["copy"]
    topic = copy["topic"]
    counts = {"object": copy["objects_left"], "partition": copy["partitions_left"]}
    lacks = [f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in counts.items() if n]
    lacks += ["offsets that consumer groups have committed since"] if copy["offsets_moved"] else []
    left = ", ".join(lacks)
    said = f"{topic} is complete." if copy["is_complete"] else f"{topic} lacks {left}; run again."
    if not copy["is_visible"]:
        return (Line(f"{topic} is not finished, and the broker does not know it yet; run again."),)
    if copy["groups"]:
        said += f" Committed offsets were carried over for {', '.join(copy['groups'])}."
    if copy["groups_gone_on"]:
        said += (
            " These groups have continued in it, and keep their own offsets: "
            f"{', '.join(copy['groups_gone_on'])}."
        )
    steps = [Line(step, f"{number}. ") for number, step in enumerate(copy["cut_over"], 1)]
    return Line(said), Line("", "To cut over:"), Lines(steps, "steps")


def _table(title: str, found: Look) -> Table:
    rows = []
    for one in found:
        state = "compacted" if one.is_compacted else f"step {one.steps_done + 1} of {one.steps}"
        new = (f"{one.new_segments:,}", text.size(one.new_bytes)) if one.is_compacted else ("–", "–")
        size = text.size(one.size_bytes)
        state = state if one.steps_done else "not compacted"
        rows.append((one.partition, f"{one.segments:,}", size, *new, state, one.folder or "–"))
    return Table(title, _HEADINGS, rows, of="partitions")


def show_plan(url: str, snapshot: LogSnapshot, plan: Plan[LogSpec]) -> Shown:
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
    proposals: list[Block] = []
    verdict = "Nothing to compact"
    if plan.proposals:
        partitions = len({p.spec.partition for p in plan.proposals})
        size = text.size(sum(p.cost_bytes for p in plan.proposals))
        verdict = f"{text.count(partitions, 'partition')} of {len(found):,} to compact: {size} to read"
        rows = [
            (p.spec.partition, str(p.spec.step), text.size(p.cost_bytes), p.reason) for p in plan.proposals
        ]
        headings = columns("partition", "step", ">reads", "why")
        proposals.append(Table("Would compact", headings, rows, of="proposals"))
        if any(folder.configs is None for folder in snapshot.partitions.values()):
            proposals.append(Line(_NEWEST_ONLY))
    return Shown(document, (*proposals, _table("Partitions", found), notes(plan.notes)), verdict)


def spec_json(spec: LogSpec) -> dict[str, Any]:
    return {"partition": spec.partition, "step": str(spec.step), "fingerprint": spec.fingerprint}


def show_run(run: DatasetRun) -> Shown:
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
        **copy_json(after),
    }
    rows = Counter(totals.rows)
    dropped = {name: n for name, n in rows.items() if n and name not in ("rows_in", "rows_out")}
    said = f"{rows['rows_in']:,} rows in, {rows['rows_out']:,} out"
    if dropped:
        said += "; dropped: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in dropped.items())
    blocks = (
        _table(f"{text.count(len(result.committed), 'compaction')} in {run.seconds:.1f} s", after),
        Line(
            f"Read {text.size(totals.bytes_read)} and wrote {text.size(totals.bytes_written)} in "
            f"{text.count(totals.ranges, 'task')}, {totals.cpu_s:.1f} s of processor time. {said}."
        ),
        Lines(
            [Line(one.reason, text.short_id(one.compaction)) for one in (*result.refused, *result.failures)],
            "that were refused or failed",
        ),
        notes(result.plan.notes),
        *_copy_blocks(after),
    )
    return Shown(document, blocks)


def show_status(snapshot: LogSnapshot) -> Shown:
    found = look(snapshot)
    document = {"partitions": partitions_json(found), **copy_json(found)}
    return Shown(document, (_table("Partitions", found), *_copy_blocks(found)))


def show_segments(dataset: LogDataset, snapshot: LogSnapshot) -> Shown:
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
    lines = [Line(folder, f"{name}: ") for name, folder in folders.items()]
    lines += [
        Line(f"{name} has no partition.metadata with its topic's id; a broker adds it.")
        for name in folders
        if not any(key.endswith("/partition.metadata") for key in snapshot.partitions[name].companions)
    ]
    table = Table("Segments", columns("partition", "=name", ">base offset", ">bytes"), rows, of="segments")
    return Shown({"segments": document, "folders": folders}, (table, *lines))


def show_garbage(url: str, report: GarbageReport) -> Shown:
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

"""Planning a table: the tasks of its timeline as proposals of compactions.

1. The table's policy is converted to that of the timeline; the ledger's active compactions are its active
   tasks.
2. The service chooses which tasks start now (`capacity_of`). Black tasks wait: once the tasks that share
   files with them are committed, the next plan includes them with the files of that time.
3. Small tasks of several partitions are combined into one compaction (`planning.timeline.tasks`), with a part
   for each.
4. A spec is cut at the edges of all chunks that its inputs overlap. An input that extends beyond its task's
   chunks is rewritten completely, and its rows there are written to files of those other chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lithify.datasets.iceberg.model import ChunkSpec, IcebergLedger, Lane, SpecPart, TableState
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.planning.admission import Capacity
from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.chunks import merge
from lithify.planning.timeline.model import (
    ActiveTask,
    ChunkBucket,
    DeletesStatus,
    Interval,
    Task,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import Replanning
from lithify.planning.timeline.rules import urgency
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Proposal, Total

US_PER_S = 1_000_000
MAX_BUNDLE_FILES = 20_000
"""The maximum number of inputs of a compaction of many small partitions: a few megabytes in the ledger."""
MAX_CUTS = 20_000
"""The maximum number of edges of one spec. A file that spans more, for example because of one wrong
timestamp, is first cut at the edges of coarser chunks."""


def timeline_policy(policy: TablePolicy) -> TimelinePolicy:
    """Convert a table's policy to that of its timeline."""
    return TimelinePolicy(
        calendar=Calendar(Granularity(policy.granularity), policy.time_zone),
        max_file_bytes=policy.target_file_size_bytes,
        min_saved_files=policy.min_saved_files,
        min_new_ratio=policy.min_new_percent / 100,
        lateness_us=policy.allowed_lateness_seconds * US_PER_S,
        max_deleted_ratio=policy.max_deleted_percent / 100 or None,
        max_task_bytes=policy.max_task_bytes,
        small_task_bytes=min(policy.max_task_bytes, policy.small_task_bytes),
        max_combine_gap_us=policy.max_combine_gap_seconds * US_PER_S,
        max_bundle_files=MAX_BUNDLE_FILES,
        skip_clock_us=policy.skip_from_now_seconds * US_PER_S or None,
        skip_newest_us=policy.skip_from_latest_seconds * US_PER_S or None,
    )


def active_tasks(ledger: IcebergLedger) -> tuple[ActiveTask, ...]:
    """Return the ledger's unfinished compactions as tasks of the timeline."""
    return tuple(
        ActiveTask(c.spec.task, frozenset(c.spec.chunks), frozenset(c.spec.inputs)) for c in ledger.active()
    )


def plan_table(
    state: TableState,
    ledger: IcebergLedger,
    now_us: int,
    *,
    revive_deferred: bool = False,
    held: Held = NOTHING_HELD,
    replanning: Replanning | None = None,
    alone: frozenset[str] = frozenset(),
) -> TimelinePlan:
    """Return a table's timeline and the tasks it needs. Chunks with a `held` file are skipped, and groups in
    `alone` are not combined with others. `replanning` is the planner of the previous plan, if any."""
    return (replanning if replanning is not None else Replanning()).plan(
        state.files,
        timeline_policy(state.policy),
        now_us,
        states=state.states,
        active=active_tasks(ledger),
        revive_deferred=revive_deferred,
        held=held,
        alone=alone,
    )


def capacity_of(policy: TablePolicy) -> Capacity:
    """Return how much of a table may be compacted at the same time."""
    return Capacity(
        max_running=policy.max_tasks,
        max_running_bytes=policy.max_active_bytes,
        max_queued=policy.max_queued_tasks,
    )


def proposals_of(state: TableState, timeline: TimelinePlan, held: Held = NOTHING_HELD) -> Plan:
    """Return the tasks as proposals, with notes on why other files are skipped."""
    if state.snapshot_id is None:
        return Plan(notes=(*state.notes, "the table has no snapshot yet"), refusal=state.refusal)
    notes = (*state.notes, *held_notes(timeline, held))
    return Plan(
        proposed(timeline.tasks, state),
        notes,
        state.refusal,
        left_alone=left_notes(state),
        stuck=left_notes(state, only_stuck=True),
        totals=_totals(timeline),
    )


def left_notes(state: TableState, *, only_stuck: bool = False) -> tuple[str, ...]:
    """Return the notes about files that cannot be compacted."""
    return tuple(files.note for files in state.left_alone if files.is_stuck or not only_stuck)


def proposed(tasks: Iterable[Task], state: TableState) -> tuple[Proposal, ...]:
    """Return tasks of the timeline as proposals."""
    return tuple(
        Proposal(spec_of(task, state), task.priority, task.cost_bytes, task.reason, task.after)
        for task in tasks
    )


def priority(spec: ChunkSpec, state: TableState) -> float:
    """Return how urgent a compaction is, given the inputs that the table still has: by the number of files
    saved or by the deleted rows, whichever is more urgent. The measures are the timeline's, over all
    chunks."""
    files = [state.by_id[path] for path in spec.inputs if path in state.by_id]
    rows, deleted = sum(file.rows for file in files), sum(file.deleted_rows for file in files)
    if any(file.deletes and not file.deleted_rows for file in files):
        deleted_ratio = 0.5
    else:
        deleted_ratio = min(1.0, deleted / rows) if rows else 0.0
    needed = -(-sum(file.size_bytes for file in files) // state.policy.target_file_size_bytes)
    return max(deleted_ratio, urgency(abs(len(files) - needed)))


def spec_of(task: Task, state: TableState) -> ChunkSpec:
    """Convert a task of the timeline to a compaction of the table."""
    known = state.specs.get((task.key, task.files))
    if known is not None and known.chunks == task.chunks:
        return known
    assert state.snapshot_id is not None
    calendar = timeline_policy(state.policy).calendar
    by_group: dict[str, list[TimelineFile]] = {}
    for path in task.files:
        file = state.by_id[path]
        by_group.setdefault(file.group, []).append(file)
    spec = ChunkSpec(
        task=task.key,
        snapshot_id=state.snapshot_id,
        chunks=task.chunks,
        parts=tuple(
            SpecPart(Lane.of_group(group), cuts_of(files, calendar), tuple(file.id for file in files))
            for group, files in by_group.items()
        ),
        sort_order_id=state.sort_order_id,
    )
    state.specs[task.key, task.files] = spec
    return spec


def cuts_of(files: Sequence[TimelineFile], calendar: Calendar) -> tuple[int, ...]:
    """Return the edges of all chunks that the files overlap, without the outermost two."""
    spans = merge((f.times.start_us, f.times.end_us) for f in files if isinstance(f.times, Interval))
    granularities = list(Granularity)
    for granularity in granularities[granularities.index(calendar.granularity) :]:
        coarse = replace(calendar, granularity=granularity)
        if granularity is Granularity.YEAR or sum(coarse.count(*span) for span in spans) <= MAX_CUTS:
            edges = sorted({edge for span in spans for edge in coarse.edges(*span)})
            return tuple(edges[1:-1])
    raise AssertionError("the last granularity is used at any cost")


def _totals(timeline: TimelinePlan) -> Mapping[str, Total]:
    return {
        status.value: Total(amount.chunks, amount.files, amount.size_bytes, amount.rows)
        for status, amount in timeline.totals.items()
    }


def held_notes(timeline: TimelinePlan, held: Held) -> list[str]:
    """Return notes on how many chunks are skipped, for each reason; for other processes only because of
    `held`."""
    told = set(held.values())
    reasons: dict[str, int] = {}
    for planned in timeline.chunks:
        is_told = planned.chunk.key.bucket is ChunkBucket.TIME or planned.held in told
        if planned.status is DeletesStatus.SKIPPED and planned.held and is_told:
            reasons[planned.held] = reasons.get(planned.held, 0) + 1
    return [f"{count} chunk(s) are left alone: {reason}" for reason, count in sorted(reasons.items())]

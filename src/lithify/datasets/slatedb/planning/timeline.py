"""Segments that are buckets of time: the timeline's planner decides which of them to compact, and when.

If a database's segments are named by time (one for each hour of events, for example), writes go to the newest
segments, and older ones are only read until they are dropped. So a segment is best merged into one run once,
when nothing more is written to it, and never again.

1. The time of a segment is read from its prefix by a pattern (`SegmentTimes`). The root, and segments whose
   prefix does not match, are not part of the timeline.
2. Each L0 SST and each sorted run of a segment is a file of the timeline, and the segment a chunk.
3. A segment that is one run is stable. So is one that has received little since: fewer sequences than
   `min_compaction_sources`, all but the largest run together less than a sixteenth of it. Any other segment
   is to be compacted; the more sequences, the sooner.
4. Segments held by a skip offset, and those that are not part of the timeline, are left to the size-tiered
   scheduler, so that the writer's L0 list stays short. The others are merged fully.
5. Both kinds of proposals share the slots (`max_concurrent_compactions`), most urgent first.

Invariants: a stable segment is not proposed, whatever its size; run ids are unique over all proposals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from lithify.base.errors import Refused
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import Manifest, Tree, tree_label
from lithify.datasets.slatedb.planning.plan import (
    TieredPolicy,
    active_work,
    as_plan,
    held_sources,
    tree_shape,
)
from lithify.datasets.slatedb.planning.tiered import (
    ActiveWork,
    HeldSources,
    TieredProposal,
    TieredTree,
    full_compaction,
    next_run_id,
    plan,
)
from lithify.planning.timeline.calendar import MAX_US, MIN_US, Calendar
from lithify.planning.timeline.model import (
    ActiveTask,
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkKey,
    ChunkVerdict,
    Interval,
    PlannedChunk,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan as plan_timeline
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan

LATE_PARTS = 16
"""A segment is not compacted if its late data is less than one part in this many."""
_HALF_URGENT_SEQUENCES = 8
_NUMBER = re.compile(r"(?P<before>[^{}]*)\{(?P<bits>u32|u64):(?P<unit>us|ms|s|hour|day)\}")
_UNITS_US = {"us": 1, "ms": 1000, "s": 1_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RUN, _L0 = "run", "l0"
_MAX_NAMED = 3
"""How many segments a note names."""


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """How the time of a segment is read from its prefix, and which segments are held for now.

    The pattern describes the whole prefix: text with the directives of `strptime`, in the calendar's time
    zone (`events/%Y-%m-%d/`), or text that ends in a big-endian number since the epoch (`{u64:ms}`; u32 or
    u64; us, ms, s, hour or day). A segment covers the calendar's chunk of that time.
    """

    pattern: str
    calendar: Calendar = field(default_factory=Calendar)
    skip_clock_us: int | None = 0
    """Hold segments that end later than this before now; 0 holds those whose time is not over."""
    skip_newest_us: int | None = 0
    """Hold segments that end later than this before the newest one begins; 0 holds the newest."""

    def __post_init__(self) -> None:
        is_number = _NUMBER.fullmatch(self.pattern) is not None
        if not is_number and ("{" in self.pattern or "%" not in self.pattern):
            raise Refused(
                f"the pattern {self.pattern!r} contains no time; use directives such as %Y-%m-%d, or end it "
                "with a number such as {u64:ms}"
            )

    def interval(self, prefix: bytes) -> Interval | None:
        """Return the interval that the segment of that prefix covers, or `None` if the pattern does not
        match."""
        number = _NUMBER.fullmatch(self.pattern)
        at_us = (
            _text_us(prefix, self.pattern, self.calendar) if number is None else _number_us(prefix, number)
        )
        if at_us is None or not MIN_US <= at_us < MAX_US:
            return None
        start_us, end_us = self.calendar.edges(at_us, at_us + 1)
        return Interval(start_us, end_us)


@dataclass(frozen=True, slots=True)
class SettledSegment:
    """Decides by its sequences whether a segment is stable."""

    min_sources: int

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        count = len(chunk.files)
        if count == 1 and _is_run(chunk.files[0]):
            return ChunkVerdict(ChunkAction.STABLE, "one sorted run")
        run_bytes = max((file.size_bytes for file in chunk.files if _is_run(file)), default=0)
        late_bytes = chunk.size_bytes - run_bytes
        if 1 < count < self.min_sources and late_bytes * LATE_PARTS < run_bytes:
            return ChunkVerdict(ChunkAction.STABLE, f"{count} sequences, with little late data")
        runs = sum(map(_is_run, chunk.files))
        reason = f"{count - runs} L0 SSTs and {runs} sorted runs in a segment that is no longer written"
        return ChunkVerdict(ChunkAction.COMPACT, reason, count / (count + _HALF_URGENT_SEQUENCES))


def plan_segments(
    manifest: Manifest, ledger: SlateLedger, policy: TieredPolicy, times: SegmentTimes, now_ms: int
) -> TimelinePlan:
    """Return the segments as a timeline: each a group of its own, named by its prefix in hexadecimal, with a
    task if it should be merged now."""
    covered = _covered(manifest, times)
    files = [file for tree, interval in covered for file in _files(tree, interval)]
    chunks = {tree.prefix: _chunk_key(tree, interval) for tree, interval in covered}
    active = [
        ActiveTask(tree_label(work.key), frozenset({chunks[work.key]}), frozenset())
        for work in active_work(ledger)
        if work.key in chunks
    ]
    return plan_timeline(files, _timeline_policy(policy, times), now_ms * 1000, active=active)


@dataclass(frozen=True, slots=True)
class SegmentTimeline:
    """The segments, for display."""

    plan: TimelinePlan
    """All segments in one row, with their sequences over the whole of their time."""
    calendar: Calendar


def show_segments(
    manifest: Manifest, ledger: SlateLedger, policy: TieredPolicy, times: SegmentTimes, now_ms: int
) -> SegmentTimeline:
    """Return the plan of the segments, for display."""
    return SegmentTimeline(
        _in_one_row(plan_segments(manifest, ledger, policy, times, now_ms)), times.calendar
    )


def _in_one_row(segments: TimelinePlan) -> TimelinePlan:
    def key(of: ChunkKey) -> ChunkKey:
        return replace(of, group="")

    chunks = []
    for planned in segments.chunks:
        chunk = planned.chunk
        assert chunk.interval is not None, "segments without a time are not in the timeline"
        files = tuple(replace(file, times=chunk.interval, group="") for file in chunk.files)
        chunks.append(replace(planned, chunk=replace(chunk, key=key(chunk.key), files=files)))
    tasks = tuple(replace(task, group="", chunks=tuple(map(key, task.chunks))) for task in segments.tasks)
    return replace(segments, chunks=tuple(sorted(chunks, key=lambda p: p.chunk.key)), tasks=tasks)


def propose_by_time(
    manifest: Manifest,
    ledger: SlateLedger,
    policy: TieredPolicy,
    times: SegmentTimes,
    now_ms: int,
    held: Held = NOTHING_HELD,
) -> Plan:
    """Return what to compact now, without the `held` sources."""
    left_alone = held_sources(manifest, held)
    segments = plan_segments(manifest, ledger, policy, times, now_ms)
    shapes = {tree.prefix: tree_shape(tree) for tree in manifest.trees()}
    active = active_work(ledger)
    first_free_id = next_run_id(shapes.values(), active)
    settled = {_prefix(planned) for planned in segments.chunks if planned.held is None}
    unsettled = [shape for key, shape in shapes.items() if key not in settled]
    hot = plan(unsettled, active, policy, first_free_id, left_alone)
    next_id = max([first_free_id, *(pick.destination + 1 for pick in hot.proposals)])
    cold, why = _full(segments, shapes, active, next_id, left_alone)
    why += [left.reason for left in hot.unpicked if left.reason in held.values()]
    free_slots = policy.max_concurrent_compactions - sum(work.takes_slot for work in active)
    picks = sorted((*hot.proposals, *cold), key=lambda pick: -pick.priority)
    notes = (*_notes(manifest, segments, times), *why)
    return as_plan(manifest, tuple(picks[: max(0, free_slots)]), notes)


def _full(
    segments: TimelinePlan,
    shapes: Mapping[bytes, TieredTree],
    active: Sequence[ActiveWork],
    next_id: int,
    held: Mapping[bytes, HeldSources],
) -> tuple[list[TieredProposal], list[str]]:
    """Return the tasks of the timeline as merges of whole segments, and why some segments are not merged."""
    picks, why = [], []
    for task in segments.tasks:
        prefix = bytes.fromhex(task.group)
        left_alone = held.get(prefix, HeldSources())
        pick = full_compaction(shapes[prefix], active, next_id, left_alone)
        if isinstance(pick, TieredProposal):
            next_id = max(next_id, pick.destination + 1)
            picks.append(replace(pick, priority=task.priority, reason=task.reason))
        elif pick in {*left_alone.l0.values(), *left_alone.runs.values()}:
            why.append(pick)
    return picks, why


def _notes(manifest: Manifest, segments: TimelinePlan, times: SegmentTimes) -> tuple[str, ...]:
    notes = []
    held = [planned for planned in segments.chunks if planned.held is not None]
    if held:
        names = ", ".join(tree_label(_prefix(planned)) for planned in held[-_MAX_NAMED:])
        more = f" and {len(held) - _MAX_NAMED} more" if len(held) > _MAX_NAMED else ""
        notes.append(f"{names}{more}: {held[-1].held}; compacted by size until then")
    idle = [planned for planned in segments.chunks if planned.held is None and planned.task is None]
    if idle:
        notes.append(f"{len(idle)} segment(s) need no compaction")
    foreign = sum(times.interval(tree.prefix) is None for tree in manifest.segments)
    if foreign:
        notes.append(f"{foreign} segment(s) do not match the pattern {times.pattern}; compacted by size")
    return tuple(notes)


def _covered(manifest: Manifest, times: SegmentTimes) -> list[tuple[Tree, Interval]]:
    """Return the segments that hold anything and match the pattern."""
    found = ((tree, times.interval(tree.prefix)) for tree in manifest.segments if any(tree.views()))
    return [(tree, interval) for tree, interval in found if interval is not None]


def _files(tree: Tree, interval: Interval) -> list[TimelineFile]:
    """Return L0 SSTs and sorted runs as files at the first instant of the segment: nothing more is known
    about the extent of their data."""
    shape, group = tree_shape(tree), tree.prefix.hex()
    times = Interval(interval.start_us, interval.start_us + 1)
    named = [(f"{_L0}/{i}/{sst.id}", sst.size_bytes) for i, sst in enumerate(shape.l0)]
    named += [(f"{_RUN}/{run.id}", run.size_bytes) for run in shape.runs]
    return [TimelineFile(f"{group}/{name}", times, size, rows=1, group=group) for name, size in named]


def _chunk_key(tree: Tree, interval: Interval) -> ChunkKey:
    return ChunkKey(tree.prefix.hex(), ChunkBucket.TIME, interval.start_us)


def _prefix(planned: PlannedChunk) -> bytes:
    return bytes.fromhex(planned.chunk.key.group)


def _timeline_policy(policy: TieredPolicy, times: SegmentTimes) -> TimelinePolicy:
    return TimelinePolicy(
        calendar=times.calendar,
        max_task_bytes=1,  # every segment has a compaction of its own
        small_task_bytes=1,
        skip_clock_us=times.skip_clock_us,
        skip_newest_us=times.skip_newest_us,
        rules=(SettledSegment(policy.min_compaction_sources),),
    )


def _is_run(file: TimelineFile) -> bool:
    return f"/{_RUN}/" in file.id


def _text_us(prefix: bytes, pattern: str, calendar: Calendar) -> int | None:
    try:
        local = datetime.strptime(prefix.decode(), pattern)
        instant = local if local.tzinfo is not None else local.replace(tzinfo=ZoneInfo(calendar.zone))
        return (instant - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None


def _number_us(prefix: bytes, pattern: re.Match[str]) -> int | None:
    before, width = pattern["before"].encode(), int(pattern["bits"][1:]) // 8
    if len(prefix) != len(before) + width or not prefix.startswith(before):
        return None
    return int.from_bytes(prefix[len(before) :], "big") * _UNITS_US[pattern["unit"]]

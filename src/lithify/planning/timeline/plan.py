"""Plan a timeline: from files, policy and recorded states to tasks.

1. Lay the files out over chunks.
2. Judge each chunk, or reuse its record: a chunk with an unchanged record is not analysed if it is empty,
stable, deferred or part of an active task.
3. Decide which chunks may be rewritten. Excluded are those of active tasks, those held by a skip offset or
for one of their files, deferred ones, and those that may wait while more data is to come. More data is to
come until a chunk's time is over, and again once it has been *settled*, that is optimal after that.
4. Form tasks, let those that share files wait for each other, and compute the totals.

Invariants: equal input gives an equal plan, in whatever order the files come; each chunk is in at most one
task; the totals are those of the timeline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from lithify.planning.timeline.chunks import TimelineLayout, files_of, lay_out
from lithify.planning.timeline.colors import paint
from lithify.planning.timeline.model import (
    ActiveTask,
    Amount,
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkKey,
    ChunkRule,
    ChunkVerdict,
    DeletesStatus,
    Interval,
    PlannedChunk,
    Task,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.rules import judge, rules_of
from lithify.planning.timeline.state import ChunkRecord, ChunkState, ChunkStates, policy_fingerprint
from lithify.planning.timeline.tasks import CandidatePart, Run, form, inputs

__all__ = ["Replanning", "files_of", "plan", "remember", "resolve"]

MadeT = TypeVar("MadeT")

_BY_URGENCY = (DeletesStatus.AWAITING, DeletesStatus.DEFERRED, DeletesStatus.SKIPPED, DeletesStatus.COMPACTED)
_ACTIONS = {ChunkState.EMPTY: ChunkAction.EMPTY, ChunkState.STABLE: ChunkAction.STABLE}
_UNCHANGED = "unchanged since the last analysis"


class Replanning:
    """Plans the same timeline repeatedly. Laying out files and forming tasks takes time for every file;
    neither is repeated if the result would be the same, and then the plan is the very same value. Values
    derived from it (`made_of`) are cached too. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: Iterable[TimelineFile] | None = None
        self._policy: TimelinePolicy | None = None
        self._packing: tuple[ActiveTask, ...] = ()
        self._layout = TimelineLayout((), (), (), np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._made_of: tuple[object, ...] = ()
        self._plan = TimelinePlan((), (), (), {})
        self._from: tuple[object, ...] = ()
        self._made: Any = None

    def made_of(self, make: Callable[[], MadeT], *values: object) -> MadeT:
        """Return the cached result of `make` for these very values, such as a plan; call `make` again if one
        of them is another object."""
        with self._lock:
            if len(values) != len(self._from) or any(
                one is not other for one, other in zip(values, self._from, strict=True)
            ):
                self._made, self._from = make(), values
            made: MadeT = self._made
            return made

    def plan(
        self,
        files: Iterable[TimelineFile],
        policy: TimelinePolicy,
        now_us: int,
        *,
        states: ChunkStates | None = None,
        active: Sequence[ActiveTask] = (),
        revive_deferred: bool = False,
        held: Mapping[str, str] = MappingProxyType({}),
        alone: frozenset[str] = frozenset(),
    ) -> TimelinePlan:
        """Do the same as the function `plan`. Files are the same when they are the same object, which must
        not be changed."""
        known = (states if states is not None else ChunkStates()).under(policy).records
        busy = {key: work.key for work in active for key in work.chunks}
        packing = tuple(work for work in active if any(map(_is_pack, work.chunks)))
        rules = rules_of(policy)
        with self._lock:
            if self._files is not files or self._policy != policy or self._packing != packing:
                self._layout = lay_out(files, policy, packing)
                self._files, self._policy, self._packing, self._made_of = files, policy, packing, ()
            layout = self._layout
            hold = replace(_Hold.of(layout, policy, now_us), files=held)
            judged = [_judge(chunk, known, busy, hold, rules, revive_deferred) for chunk in layout.chunks]
            made_of = judged, tuple(active), alone
            if self._made_of != made_of:
                self._plan, self._made_of = _planned(layout, judged, active, busy, policy, alone), made_of
            return self._plan


def plan(
    files: Iterable[TimelineFile],
    policy: TimelinePolicy,
    now_us: int,
    *,
    states: ChunkStates | None = None,
    active: Sequence[ActiveTask] = (),
    revive_deferred: bool = False,
    held: Mapping[str, str] = MappingProxyType({}),
    alone: frozenset[str] = frozenset(),
) -> TimelinePlan:
    """Plan the tasks to run now.

    Chunks with a `held` file are skipped, for the reason given with the file's id.

    Chunks whose record in `states` still holds are not analysed; deferred ones among them are skipped unless
    `revive_deferred` (the queue is empty). Chunks of an active task get no second one, and tasks that share a
    file with an active task wait for it. Chunks of groups in `alone` are not bundled with those of other
    groups.
    """
    return Replanning().plan(
        files,
        policy,
        now_us,
        states=states,
        active=active,
        revive_deferred=revive_deferred,
        held=held,
        alone=alone,
    )


def _planned(
    layout: TimelineLayout,
    judged: Sequence[_Judged],
    active: Sequence[ActiveTask],
    busy: dict[ChunkKey, str],
    policy: TimelinePolicy,
    alone: frozenset[str],
) -> TimelinePlan:
    tasks = paint(
        [_task(run, policy) for run in form(map(_part, judged), policy, alone)],
        active,
        several=policy.several_dependencies,
    )
    owners = {key: task.key for task in tasks for key in task.chunks} | busy
    planned = tuple(item.planned(owners) for item in judged)
    return TimelinePlan(tasks, planned, layout.spans, _totals(layout, planned))


def remember(plan: TimelinePlan, policy: TimelinePolicy) -> ChunkStates:
    """Return the states to keep after this plan: one record for each chunk that has files. Equal to the old
    states if nothing changed, so that nothing has to be written."""
    return ChunkStates(
        policy_fingerprint(policy), {planned.chunk.key: _record(planned) for planned in plan.chunks}
    )


def resolve(
    chunks: Iterable[ChunkKey], files: Iterable[TimelineFile], policy: TimelinePolicy
) -> tuple[TimelineFile, ...]:
    """Return the inputs of a task over `chunks` on the current timeline. Call this when a task starts: the
    files that a black task shared with its predecessors have been replaced by then."""
    wanted = frozenset(chunks)
    return inputs((chunk for chunk in lay_out(files, policy).chunks if chunk.key in wanted), policy)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A chunk while it is being planned."""

    chunk: Chunk
    verdict: ChunkVerdict
    status: DeletesStatus
    held: str | None
    analysed: bool
    settled: bool
    may_move: bool
    """Whether it may be part of a task."""

    def planned(self, owners: Mapping[ChunkKey, str]) -> PlannedChunk:
        task = owners.get(self.chunk.key)
        status = self.status if task is None else DeletesStatus.AWAITING
        return PlannedChunk(self.chunk, self.verdict, status, self.held, task, self.analysed, self.settled)


def _judge(
    chunk: Chunk,
    known: Mapping[ChunkKey, ChunkRecord],
    busy: Mapping[ChunkKey, str],
    hold: _Hold,
    rules: tuple[ChunkRule, ...],
    revive_deferred: bool,
) -> _Judged:
    record = known.get(chunk.key)
    settled = record is not None and record.settled
    if record is not None and record.fingerprint != chunk.fingerprint:
        record = None
    is_busy = chunk.key in busy
    is_deferred = record is not None and record.state is ChunkState.DEFERRED and not revive_deferred
    verdict = None if record is None else _remembered(record, is_busy=is_busy, is_deferred=is_deferred)
    analysed = verdict is None
    if verdict is None:
        verdict = judge(chunk, rules)
    wants = verdict.action is ChunkAction.COMPACT
    held = hold.reason(chunk) or hold.wait(chunk, verdict, settled=settled)
    settled = settled or (held is None and not wants and hold.is_over(chunk))
    if chunk.key.bucket is ChunkBucket.UNKNOWN or (wants and held is not None):
        status = DeletesStatus.SKIPPED
    elif wants:
        status = DeletesStatus.DEFERRED if is_deferred else DeletesStatus.AWAITING
    else:
        status = DeletesStatus.COMPACTED
    may_move = (
        not is_busy and held is None and not is_deferred and chunk.key.bucket is not ChunkBucket.UNKNOWN
    )
    return _Judged(chunk, verdict, status, held, analysed, settled, may_move)


def _remembered(record: ChunkRecord, *, is_busy: bool, is_deferred: bool) -> ChunkVerdict | None:
    """Return the verdict of a record that still holds; `None` when the chunk has to be analysed."""
    action = _ACTIONS.get(record.state)
    if action is not None:
        return ChunkVerdict(ChunkAction.NO_OPINION if record.no_opinion else action, _UNCHANGED)
    if is_deferred:
        return ChunkVerdict(ChunkAction.COMPACT, f"deferred, {_UNCHANGED}", record.priority)
    if is_busy:
        return ChunkVerdict(ChunkAction.COMPACT, _UNCHANGED, record.priority)
    return None


def _part(judged: _Judged) -> CandidatePart | None:
    if not judged.may_move or judged.verdict.action not in (ChunkAction.COMPACT, ChunkAction.NO_OPINION):
        return None
    return CandidatePart(
        judged.chunk,
        judged.verdict.action is ChunkAction.COMPACT,
        judged.verdict.priority,
        judged.verdict.reason,
    )


def _task(run: Run, policy: TimelinePolicy) -> Task:
    files = inputs((part.chunk for part in run), policy)
    cost_bytes = sum(file.size_bytes for file in files)
    first, urgent = run[0].chunk.key, max(run, key=lambda part: part.priority)
    groups = len({part.chunk.key.group for part in run})
    others = f" and {groups - 1} more" if groups > 1 else ""
    reason = urgent.reason
    if len(run) > 1:
        where = _name(urgent.chunk.key, policy)
        of = f" of {groups} partitions" if groups > 1 else ""
        where = f"{urgent.chunk.key.group}@{where}" if groups > 1 else where
        reason = f"{len(run)} chunks{of} with {len(files)} files; {where}: {reason}"
    return Task(
        key=f"{first.group}@{_name(first, policy)}{others}",
        group=first.group,
        chunks=tuple(part.chunk.key for part in run),
        files=tuple(file.id for file in files),
        cost_bytes=cost_bytes,
        priority=urgent.priority,
        reason=reason,
        oversize=len(run) == 1 and cost_bytes > policy.max_task_bytes,
    )


def _name(key: ChunkKey, policy: TimelinePolicy) -> str:
    if key.bucket is ChunkBucket.TIME:
        return policy.calendar.name(key.start_us)
    return f"{key.bucket.name.lower()}{f'.{key.start_us}' if key.start_us else ''}"


def _is_pack(key: ChunkKey) -> bool:
    return key.bucket is ChunkBucket.NULL


def _record(planned: PlannedChunk) -> ChunkRecord:
    fingerprint, verdict = planned.chunk.fingerprint, planned.verdict
    match verdict.action:
        case ChunkAction.COMPACT:
            state = ChunkState.DEFERRED if planned.status is DeletesStatus.DEFERRED else ChunkState.UNSTABLE
            return ChunkRecord(state, fingerprint, verdict.priority, settled=planned.settled)
        case ChunkAction.EMPTY:
            return ChunkRecord(ChunkState.EMPTY, fingerprint, settled=planned.settled)
        case action:
            no_opinion = action is ChunkAction.NO_OPINION
            return ChunkRecord(ChunkState.STABLE, fingerprint, no_opinion=no_opinion, settled=planned.settled)


@dataclass(frozen=True, slots=True)
class _Hold:
    """The skipped chunks and files. The two skip offsets as instants: chunks that end later are skipped. And
    the instant after which the time of a chunk that ends is not over; `None` when no chunk waits for more
    data."""

    clock_us: int | None
    newest_us: int | None
    over_us: int | None
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to skip, with the reason."""

    @classmethod
    def of(cls, layout: TimelineLayout, policy: TimelinePolicy, now_us: int) -> _Hold:
        clock_us = None if policy.skip_clock_us is None else now_us - policy.skip_clock_us
        newest_us = None if policy.skip_newest_us is None else _newest_us(layout, now_us)
        if newest_us is not None:
            newest_us -= policy.skip_newest_us or 0
        return cls(clock_us, newest_us, now_us - policy.lateness_us if policy.may_wait else None)

    def reason(self, chunk: Chunk) -> str | None:
        why = (self.files.get(file.id) for file in chunk.files) if self.files else ()
        if (held := next((reason for reason in why if reason is not None), None)) is not None:
            return held
        if chunk.interval is None:
            return None
        if self.clock_us is not None and chunk.interval.end_us > self.clock_us:
            return "too recent (skip_clock)"
        if self.newest_us is not None and chunk.interval.end_us > self.newest_us:
            return "too close to the newest data (skip_newest)"
        return None

    def is_over(self, chunk: Chunk) -> bool:
        """Return whether the chunk has all its data, except late data."""
        return self.over_us is not None and (chunk.interval is None or chunk.interval.end_us <= self.over_us)

    def wait(self, chunk: Chunk, verdict: ChunkVerdict, *, settled: bool) -> str | None:
        """Return why the chunk waits for more data, or `None`."""
        may_wait = verdict.may_wait or verdict.action is ChunkAction.NO_OPINION
        if self.over_us is None or not may_wait or chunk.key.bucket is ChunkBucket.UNKNOWN:
            return None
        if self.is_over(chunk) and not settled:
            return None
        since = "since it was compacted" if settled else "so far, and the chunk's time is not over"
        return f"too little new data {since} (min_saved_files, min_new_ratio)"


def _newest_us(layout: TimelineLayout, now_us: int) -> int | None:
    """Return the end of the newest data that is not from the future."""
    times = (file.times for file in layout.files if isinstance(file.times, Interval))
    known = (t.end_us if t.end_us <= now_us else t.start_us for t in times if t.start_us <= now_us)
    return max(known, default=None)


def _totals(layout: TimelineLayout, planned: Sequence[PlannedChunk]) -> Mapping[DeletesStatus, Amount]:
    """Return the totals; each file counts by the most urgent of its chunks."""
    ranks = np.array([_BY_URGENCY.index(item.status) for item in planned], np.int64)
    best = np.full(len(layout.files), len(_BY_URGENCY), np.int64)
    np.minimum.at(best, layout.pair_files, ranks[layout.pair_chunks])
    sizes = np.fromiter((file.size_bytes for file in layout.files), np.int64, len(layout.files))
    rows = np.fromiter((file.rows for file in layout.files), np.int64, len(layout.files))
    return {
        status: Amount(
            int(np.count_nonzero(ranks == rank)),
            int(np.count_nonzero(best == rank)),
            int(sizes[best == rank].sum()),
            int(rows[best == rank].sum()),
        )
        for rank, status in enumerate(_BY_URGENCY)
    }

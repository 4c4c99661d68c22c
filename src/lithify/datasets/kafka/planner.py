"""Decides which partitions of a log are worth compacting, up to which offset, and why.

For each partition:

1. The *bound* is the first offset that has to stay as it is: the least of the last stable offset (an open
   transaction is undecided), the high watermark (later records may be truncated), the base of the newest
   object (a writer may append, and readers find the log's end by it), and the base of the first object with a
   record younger than `min.compaction.lag.ms`. Objects that end before it are *settled*.
2. Settled objects that no earlier round has compared with all before them are *dirty*. Their share of the
   settled bytes is the dirty ratio.
3. The partition is worth compacting if the dirty ratio is at least `min.cleanable.dirty.ratio`, or the oldest
   dirty record is older than `max.compaction.lag.ms`, or the settled objects are at least `min_saved_objects`
   more than their bytes need. Otherwise a note gives the reason.

Overdue partitions come first, then those with the most to gain: the greater of dirty ratio and share of
surplus objects. The plan is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.filesize import decimal

from lithify.datasets.kafka.format.kernel.layout import MAX_OFFSET_DELTA
from lithify.datasets.kafka.layouts.contract import ALL_COMMITTED, CommittedOffset


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """When a partition is worth compacting. The first three fields have Kafka's names and defaults."""

    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    """`None`: nothing is ever overdue."""
    target_object_bytes: int = 900_000
    min_saved_objects: int = 16
    newest_object: bool = False
    """Whether the newest object is settled too: nothing appends to it."""


@dataclass(frozen=True, slots=True)
class LogObject:
    base_offset: int
    end_offset: int
    """The offset after its last one."""
    size_bytes: int
    max_timestamp_ms: int
    """The greatest of its records; -1 if none has one, or the object has not been read."""
    modified_ms: int = -1
    """Last write, by the store's clock; -1 if unknown. It gives the age of an object without timestamps."""


@dataclass(frozen=True, slots=True)
class Partition:
    name: str
    objects: Sequence[LogObject]
    """In the order of their offsets."""
    clean_below: int
    """Records below this offset have been compared with all before them."""
    stable_offset: int
    committed: CommittedOffset = ALL_COMMITTED


@dataclass(frozen=True, slots=True)
class PlannedRound:
    partition: str
    start_offset: int
    end_offset: int
    """The bound: nothing from here on is changed."""
    objects: int
    size_bytes: int
    needed_objects: int
    """The number of objects that the bytes need."""
    priority: float
    """0 (may wait) to 1 (overdue)."""
    reason: str


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Rounds by urgency, and the reasons for leaving out the rest."""

    rounds: tuple[PlannedRound, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettledPart:
    """The part of a partition that may be compacted, and what limits it."""

    objects: tuple[LogObject, ...]
    bound: int
    """The first offset that has to stay as it is."""
    limit: str
    """The reason for the bound, in words."""

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.objects)


def plan(partitions: Iterable[Partition], policy: LogPolicy, now_ms: int) -> LogPlan:
    """Judge each partition."""
    rounds, notes = [], []
    for partition in partitions:
        verdict = _judge(partition, policy, now_ms)
        if isinstance(verdict, PlannedRound):
            rounds.append(verdict)
        else:
            notes.append(f"{partition.name}: {verdict}")
    return LogPlan(tuple(sorted(rounds, key=lambda item: (-item.priority, item.partition))), tuple(notes))


def groups(objects: Iterable[LogObject], target_bytes: int) -> list[tuple[LogObject, ...]]:
    """Group neighbours with at most `target_bytes` together, and few enough offsets for one batch. A larger
    object is alone."""
    found: list[list[LogObject]] = []
    size_bytes = 0
    for item in objects:
        fits = (
            found
            and size_bytes + item.size_bytes <= target_bytes
            and item.end_offset - 1 - found[-1][0].base_offset <= MAX_OFFSET_DELTA
        )
        if not fits:
            found.append([])
            size_bytes = 0
        found[-1].append(item)
        size_bytes += item.size_bytes
    return [tuple(group) for group in found]


def _judge(partition: Partition, policy: LogPolicy, now_ms: int) -> PlannedRound | str:
    settled = settle(partition, policy, now_ms)
    if not settled.objects:
        return f"nothing is settled: {settled.limit}" if partition.objects else "no objects"
    count, size_bytes = len(settled.objects), settled.size_bytes
    dirty = [item for item in settled.objects if item.end_offset > partition.clean_below]
    dirty_bytes = sum(item.size_bytes for item in dirty)
    dirty_ratio = dirty_bytes / size_bytes if size_bytes else 0.0
    needed = max(1, math.ceil(size_bytes / policy.target_object_bytes))
    saved = count - needed
    overdue_ms = _overdue(dirty, policy, now_ms)
    too_many = saved >= policy.min_saved_objects
    too_dirty = bool(dirty) and dirty_ratio >= policy.min_cleanable_dirty_ratio
    if not (too_dirty or too_many or overdue_ms is not None):
        return (
            f"{dirty_ratio:.0%} of {decimal(size_bytes)} is new, below "
            f"{policy.min_cleanable_dirty_ratio:.0%} (min.cleanable.dirty.ratio), in {_objects(count)}, "
            f"{needed:,} needed; {settled.limit}"
        )
    reasons = [f"{dirty_ratio:.0%} of {decimal(size_bytes)} is new"]
    if saved > 0:
        reasons.append(f"{_objects(count)} where {needed:,} would do")
    text = f"{partition.name}, offsets {settled.objects[0].base_offset:,} to {settled.bound:,}: "
    text += ", ".join(reasons)
    if overdue_ms is not None:
        text += f"; the oldest waits {overdue_ms / 1000:,.0f} s longer than max.compaction.lag.ms"
    gain = max(dirty_ratio if too_dirty else 0.0, saved / count)
    return PlannedRound(
        partition.name,
        settled.objects[0].base_offset,
        settled.bound,
        count,
        size_bytes,
        needed,
        1.0 if overdue_ms is not None else gain,
        text,
    )


def settle(partition: Partition, policy: LogPolicy, now_ms: int) -> SettledPart:
    if not partition.objects:
        return SettledPart((), partition.stable_offset, "no objects")
    newest = partition.objects[-1]
    bound, limit = newest.base_offset, f"the newest object, from {newest.base_offset:,} on, is not changed"
    if policy.newest_object:
        bound, limit = max(newest.end_offset, newest.base_offset), "the log ends there"
    if partition.stable_offset < bound:
        bound = partition.stable_offset
        limit = f"a transaction is open from {bound:,} on"
    if partition.committed.end < bound:
        bound, limit = partition.committed.end, partition.committed.limit
    youngest_ms = now_ms - policy.min_compaction_lag_ms
    young = next(
        (item.base_offset for item in partition.objects if item.max_timestamp_ms > youngest_ms), None
    )
    if policy.min_compaction_lag_ms and young is not None and young < bound:
        bound, limit = young, f"records from {young:,} on are younger than min.compaction.lag.ms"
    objects = tuple(item for item in partition.objects if item.end_offset <= bound)
    return SettledPart(objects, bound, limit)


def _overdue(dirty: Sequence[LogObject], policy: LogPolicy, now_ms: int) -> int | None:
    """Return how many milliseconds the oldest dirty object is past `max.compaction.lag.ms`."""
    known = (item.max_timestamp_ms if item.max_timestamp_ms >= 0 else item.modified_ms for item in dirty)
    times = [time_ms for time_ms in known if time_ms >= 0]
    if policy.max_compaction_lag_ms is None or not times:
        return None
    over_ms = now_ms - policy.max_compaction_lag_ms - min(times)
    return over_ms if over_ms > 0 else None


def _objects(count: int) -> str:
    return f"{count:,} object{'' if count == 1 else 's'}"

"""Lay files out over the chunks of a calendar.

1. Sort the files by group, start, end and id: from here on their original order does not matter.
2. Merge their intervals to spans: two files are in one span when they overlap or touch. A gap is where one
ends before the next begins.
3. Files that meet more than `max_chunks_per_file` chunks go to the bucket `WIDE`; those without usable times
are in `NULL` or `UNKNOWN` already. Those of `NULL` are packed by size. Files of an active task are in a pack
of its number, so that no other task rewrites them.
4. Take the calendar's edges over the spans of the others, once for all groups, and find each file's first and
last chunk among them by bisection.
5. Write out all pairs of file and chunk, sort them by chunk, and reduce each stretch: sizes, rows, overlaps,
fingerprint.

Steps 4 and 5 are sorts and array operations, so the cost grows with the number of pairs and chunks.

Invariants: a file is in exactly the chunks its interval meets, or in one bucket; a chunk has a file; a
chunk's *overlap prior* is its predecessor's *overlap later*.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lithify.base.errors import Refused
from lithify.planning.timeline.calendar import MAX_US, MIN_US
from lithify.planning.timeline.model import (
    WELL_SIZED,
    ActiveTask,
    Chunk,
    ChunkBucket,
    ChunkKey,
    Fingerprint,
    Interval,
    ListedChunk,
    TimelineFile,
    TimelinePolicy,
)
from lithify.planning.timeline.packing import pack

Integers = npt.NDArray[np.int64]
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class TimelineLayout:
    """Files laid out over chunks."""

    files: tuple[TimelineFile, ...]
    """Sorted by group, start, end, id."""
    chunks: tuple[Chunk, ...]
    """Chunks with files, ascending by key."""
    spans: tuple[tuple[str, Interval], ...]
    pair_files: Integers
    """The index of the file of each pair of file and chunk; sorted by chunk, then by file."""
    pair_chunks: Integers
    """The index of the chunk of each pair."""


def files_of(listing: Iterable[ListedChunk]) -> tuple[TimelineFile, ...]:
    """Return the files of a list of time chunks, each once. Raise `Refused` when two files of the same id
    differ or a file is listed in a chunk it does not meet."""
    found: dict[str, TimelineFile] = {}
    for listed in listing:
        for file in listed.files:
            if isinstance(file.times, Interval) and not file.times.meets(listed.interval):
                raise Refused(
                    f"file {file.id} is listed in a chunk from {listed.interval.start_us} to "
                    f"{listed.interval.end_us} µs, but its times lie outside; list the timeline again"
                )
            if found.setdefault(file.id, file) != file:
                raise Refused(
                    f"file {file.id} is listed twice with different properties; list the timeline again"
                )
    return tuple(found.values())


def merge(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of intervals as ascending ones that neither touch nor overlap."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if spans and start <= spans[-1][1]:
            if end > spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def lay_out(
    files: Iterable[TimelineFile], policy: TimelinePolicy, active: Sequence[ActiveTask] = ()
) -> TimelineLayout:
    """Lay the files out over the chunks of the policy's calendar, those without a place over packs. `active`
    are the active tasks that rewrite packs. Raise `Refused` when two files have one id, or a size or a number
    of rows is impossible."""
    ordered = tuple(sorted(files, key=_order))
    _check(ordered)
    starts, ends = _bounds(ordered)
    buckets = _buckets(ordered, starts, ends, policy)
    groups, group_of = _groups(ordered)
    edge_starts, edge_ends = _edges(starts, ends, buckets, policy)
    packs = _packs(ordered, buckets, groups, group_of, policy, active)
    slots = _Slots(edge_starts, int(packs.max(initial=WELL_SIZED)) - WELL_SIZED + 1)
    pair_files, codes = _pairs(starts, ends, buckets, packs, group_of, slots)
    firsts = np.flatnonzero(np.diff(codes, prepend=-1))
    keys = [slots.key(groups, int(code)) for code in codes[firsts]]
    intervals = [_interval(int(code) % slots.count, edge_starts, edge_ends) for code in codes[firsts]]
    chunks = _chunks(ordered, starts, ends, keys, intervals, pair_files, firsts)
    pair_chunks = np.repeat(np.arange(len(chunks)), np.diff(firsts, append=len(codes)))
    return TimelineLayout(ordered, chunks, _spans(ordered), pair_files, pair_chunks)


def _order(file: TimelineFile) -> tuple[str, int, int, str]:
    if isinstance(file.times, Interval):
        return file.group, file.times.start_us, file.times.end_us, file.id
    return file.group, MAX_US, file.version, file.id


def _check(files: Sequence[TimelineFile]) -> None:
    seen: set[str] = set()
    for file in files:
        if file.id in seen:
            raise Refused(f"the timeline has two files {file.id}; ids must be unique")
        seen.add(file.id)
        if not (0 <= file.size_bytes <= MAX_US and 0 <= file.deleted_rows <= file.rows <= MAX_US):
            raise Refused(
                f"file {file.id} has {file.size_bytes} bytes and {file.deleted_rows} of {file.rows} rows "
                "deleted, which is impossible; check its metadata"
            )
        if file.times is ChunkBucket.TIME or file.times is ChunkBucket.WIDE:
            raise Refused(f"file {file.id} has no interval; its times must be an interval, NULL or UNKNOWN")


def _bounds(files: Sequence[TimelineFile]) -> tuple[Integers, Integers]:
    """Return starts and ends within the calendar; an empty interval for files without times."""
    starts, ends = [], []
    for file in files:
        start = end = 0
        if isinstance(file.times, Interval):
            start, end = file.times.start_us, file.times.end_us
            if start < MIN_US or end > MAX_US:
                start = min(max(start, MIN_US), MAX_US - 1)
                end = min(max(end, start + 1), MAX_US)
        starts.append(start)
        ends.append(end)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _buckets(
    files: Sequence[TimelineFile], starts: Integers, ends: Integers, policy: TimelinePolicy
) -> Integers:
    values = (ChunkBucket.TIME if isinstance(file.times, Interval) else file.times for file in files)
    buckets = np.fromiter(values, np.int64, len(files))
    calendar, limit = policy.calendar, policy.max_chunks_per_file
    maybe_wide = (ends - starts) // calendar.granularity.shortest_us + 2 > limit
    for index in np.flatnonzero(maybe_wide & (buckets == ChunkBucket.TIME)):
        if calendar.count(int(starts[index]), int(ends[index])) > limit:
            buckets[index] = ChunkBucket.WIDE
    return buckets


def _groups(files: Sequence[TimelineFile]) -> tuple[list[str], Integers]:
    """Return the names of the groups, ascending, and for each file the index of its group."""
    groups: list[str] = []
    group_of = np.zeros(len(files), np.int64)
    for index, file in enumerate(files):
        if not groups or groups[-1] != file.group:
            groups.append(file.group)
        group_of[index] = len(groups) - 1
    return groups, group_of


def _edges(
    starts: Integers, ends: Integers, buckets: Integers, policy: TimelinePolicy
) -> tuple[Integers, Integers]:
    """Return the beginnings and ends of all chunks that some file may be in, ascending."""
    timed = buckets == ChunkBucket.TIME
    edge_starts: list[int] = []
    edge_ends: list[int] = []
    for start, end in merge(zip(starts[timed].tolist(), ends[timed].tolist(), strict=True)):
        if edge_ends and start < edge_ends[-1]:
            start = edge_ends[-1]
            if start >= end:
                continue
        edges = policy.calendar.edges(start, end)
        edge_starts.extend(edges[:-1])
        edge_ends.extend(edges[1:])
    return np.array(edge_starts, np.int64), np.array(edge_ends, np.int64)


def is_well_sized(file: TimelineFile, policy: TimelinePolicy) -> bool:
    """Return whether a file without a place needs no rewriting, by the policy's default rules."""
    least = math.ceil(policy.max_file_bytes * (1 - policy.size_tolerance))
    most = math.floor(policy.max_file_bytes * (1 + policy.size_tolerance))
    if policy.rules is not None or not file.rows or not least <= file.size_bytes <= most:
        return False
    return policy.max_deleted_ratio is None or not file.has_deleted(policy.max_deleted_ratio)


def _packs(
    files: Sequence[TimelineFile],
    buckets: Integers,
    groups: Sequence[str],
    group_of: Integers,
    policy: TimelinePolicy,
    active: Sequence[ActiveTask],
) -> Integers:
    """Return the number of the pack of each file without a place; `WELL_SIZED` for the others."""
    numbers = np.full(len(files), WELL_SIZED, np.int64)
    unplaced = np.flatnonzero(buckets == ChunkBucket.NULL)
    if not len(unplaced):
        return numbers
    position = {files[index].id: index for index in unplaced.tolist()}
    taken, in_use = _packs_in_use(active)
    for members in np.split(unplaced, np.flatnonzero(np.diff(group_of[unplaced])) + 1):
        group = groups[group_of[members[0]]]
        loose = []
        for index in members.tolist():
            number = taken.get(files[index].id, {}).get(group)
            if number is not None:
                numbers[index] = number
            elif not is_well_sized(files[index], policy):
                loose.append(files[index])
        free = (number for number in itertools.count() if number not in in_use.get(group, ()))
        for number, one in zip(free, pack(loose, policy.max_file_bytes, policy.max_task_bytes), strict=False):
            numbers[[position[file.id] for file in one]] = number
    return numbers


def _packs_in_use(active: Sequence[ActiveTask]) -> tuple[dict[str, dict[str, int]], dict[str, set[int]]]:
    """Return the packs of active tasks: for each file a number by group, and all numbers of each group."""
    taken: dict[str, dict[str, int]] = {}
    in_use: dict[str, set[int]] = {}
    for task in active:
        own: dict[str, int] = {}
        for key in task.chunks:
            if key.bucket is ChunkBucket.NULL:
                in_use.setdefault(key.group, set()).add(key.start_us)
                own[key.group] = min(key.start_us, own.get(key.group, key.start_us))
        taken |= dict.fromkeys(task.files, own)
    return taken, in_use


@dataclass(frozen=True, slots=True)
class _Slots:
    """The numbers of a group's chunks: edges, packs, and the other buckets, in the order of their keys."""

    edge_starts: Integers
    packs: int
    """Including that of well-sized files."""

    @property
    def count(self) -> int:
        return self.bucket(ChunkBucket.UNKNOWN) + 1

    @property
    def first_pack(self) -> int:
        """Return the slot of pack 0."""
        return len(self.edge_starts) - WELL_SIZED

    def bucket(self, bucket: ChunkBucket) -> int:
        """Return the slot of `WIDE` or `UNKNOWN`."""
        return len(self.edge_starts) + self.packs + bucket - ChunkBucket.WIDE

    def key(self, groups: Sequence[str], code: int) -> ChunkKey:
        group, slot = divmod(code, self.count)
        if slot < len(self.edge_starts):
            return ChunkKey(groups[group], ChunkBucket.TIME, int(self.edge_starts[slot]))
        if slot < self.bucket(ChunkBucket.WIDE):
            return ChunkKey(groups[group], ChunkBucket.NULL, slot - self.first_pack)
        is_wide = slot == self.bucket(ChunkBucket.WIDE)
        return ChunkKey(groups[group], ChunkBucket.WIDE if is_wide else ChunkBucket.UNKNOWN, 0)


def _pairs(
    starts: Integers, ends: Integers, buckets: Integers, packs: Integers, group_of: Integers, slots: _Slots
) -> tuple[Integers, Integers]:
    """Return all pairs of file and chunk, sorted by chunk: indexes of files, and codes of chunks. A code is
    group * slots + slot."""
    timed, edge_starts = buckets == ChunkBucket.TIME, slots.edge_starts
    other = np.where(
        buckets == ChunkBucket.WIDE, slots.bucket(ChunkBucket.WIDE), slots.bucket(ChunkBucket.UNKNOWN)
    )
    untimed = np.where(buckets == ChunkBucket.NULL, slots.first_pack + packs, other)
    first = np.where(timed, np.searchsorted(edge_starts, starts, "right") - 1, untimed)
    last = np.where(timed, np.searchsorted(edge_starts, ends - 1, "right") - 1, first)
    counts = last - first + 1
    pair_files = np.repeat(np.arange(len(starts)), counts)
    begins = np.cumsum(counts) - counts
    codes = (group_of * slots.count + first - begins)[pair_files] + np.arange(len(pair_files))
    order = np.argsort(codes, kind="stable")
    return pair_files[order], codes[order]


def _interval(slot: int, edge_starts: Integers, edge_ends: Integers) -> Interval | None:
    return Interval(int(edge_starts[slot]), int(edge_ends[slot])) if slot < len(edge_starts) else None


def _chunks(
    files: Sequence[TimelineFile],
    starts: Integers,
    ends: Integers,
    keys: Sequence[ChunkKey],
    intervals: Sequence[Interval | None],
    pair_files: Integers,
    firsts: Integers,
) -> tuple[Chunk, ...]:
    if not keys:
        return ()

    def column(values: Iterable[int]) -> Integers:
        return np.fromiter(values, np.int64, len(files))[pair_files]

    sizes = column(file.size_bytes for file in files)
    digests = np.fromiter(map(digest_of, files), np.uint64, len(files))[pair_files]
    stretch = np.diff(firsts, append=len(pair_files))
    chunk_starts = np.array([MIN_US if span is None else span.start_us for span in intervals], np.int64)
    begun_before = starts[pair_files] < np.repeat(chunk_starts, stretch)
    chunk_ends = np.array([MAX_US if span is None else span.end_us for span in intervals], np.int64)
    facts = zip(
        keys,
        intervals,
        firsts.tolist(),
        stretch.tolist(),
        np.logical_or.reduceat(begun_before, firsts).tolist(),
        (np.maximum.reduceat(ends[pair_files], firsts) > chunk_ends).tolist(),
        np.add.reduceat(sizes, firsts).tolist(),
        np.add.reduceat(np.where(begun_before, 0, sizes), firsts).tolist(),
        np.maximum.reduceat(sizes, firsts).tolist(),
        np.add.reduceat(column(file.rows for file in files), firsts).tolist(),
        np.add.reduceat(column(file.deleted_rows for file in files), firsts).tolist(),
        np.maximum.reduceat(column(file.version for file in files), firsts).tolist(),
        np.add.reduceat(digests, firsts).tolist(),
        strict=True,
    )
    members = [files[index] for index in pair_files.tolist()]
    return tuple(
        Chunk(
            key,
            interval,
            tuple(members[first : first + count]),
            overlap_prior,
            overlap_later,
            size_bytes,
            starting_bytes,
            largest_bytes,
            rows,
            deleted_rows,
            Fingerprint(version, count, digest),
        )
        for (
            key,
            interval,
            first,
            count,
            overlap_prior,
            overlap_later,
            size_bytes,
            starting_bytes,
            largest_bytes,
            rows,
            deleted_rows,
            version,
            digest,
        ) in facts
    )


def _spans(files: Sequence[TimelineFile]) -> tuple[tuple[str, Interval], ...]:
    by_group: dict[str, list[tuple[int, int]]] = {}
    for file in files:
        if isinstance(file.times, Interval):
            by_group.setdefault(file.group, []).append((file.times.start_us, file.times.end_us))
    return tuple(
        (group, Interval(start, end)) for group, times in by_group.items() for start, end in merge(times)
    )


def digest_of(file: TimelineFile) -> int:
    """Return a 64-bit digest of all fields of a file and its deletes."""
    text = f"{file.id}\0{file.size_bytes}\0{file.rows}\0{file.deletes}\0{file.deleted_rows}\0{file.version}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest(), "little")

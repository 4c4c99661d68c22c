"""The Spark tasks of a partition's round, in three consecutive steps.

| step    | a task takes        | reads                                   | writes                           |
|---------|---------------------|-----------------------------------------|----------------------------------|
| index   | a segment           | its batches, unless its index was kept  | sorted runs of hashes, and facts |
| match   | a slice of hashes   | that slice of all runs                  | dead and pinned offsets          |
| rewrite | a group of segments | their batches and dead offsets          | segments with their index files  |

No rows travel between tasks. A task holds at most a piece of a segment, a slice of all runs, or the dead
offsets of a group, so any number of keys fits. Names and bytes of its output depend only on its argument and
the plan that this names, so a repeated or obsolete task writes the same again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from lithify.base.allocator import keep_freed_memory
from lithify.base.clock import SystemClock
from lithify.base.errors import CorruptObject
from lithify.base.ids import RandomIds
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.base.peak_memory import peak_memory_bytes
from lithify.coordination.reporting import BackgroundReporter, reported
from lithify.coordination.sidecar import Reporting
from lithify.datasets.kafka.cleaning.index import match, part, sampled, slices
from lithify.datasets.kafka.cleaning.kept_indexes import index_of, run_of
from lithify.datasets.kafka.cleaning.partitioned_arrays import get_parts, put_fenced
from lithify.datasets.kafka.cleaning.retention import (
    NO_BOUND,
    NO_OFFSETS,
    FirstKept,
    LastRecord,
    Rules,
    dropped,
)
from lithify.datasets.kafka.cleaning.segment_stats import StoredRun, run_key
from lithify.datasets.kafka.cleaning.segments import Cleaner
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.format.kernel.layout import Records
from lithify.datasets.kafka.format.kernel.retaining import Offsets, RemovalReason
from lithify.datasets.kafka.format.transactions import AbortedTransaction, Passed
from lithify.datasets.kafka.layouts.contract import ObjectChunk, Segment
from lithify.datasets.kafka.layouts.reading import pieces, streamed
from lithify.datasets.kafka.layouts.segments import SplitWriter
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store

OFFSETS = np.dtype("<i8")
_KEPT_SUFFIX = ".kept"
SAMPLE_SUFFIX = ".sample"
"""Of the entries by which copies are compared."""
REQUEST_BYTES = 1_000
"""About what a request without data and its response move."""
NO_ROWS: Mapping[str, int] = MappingProxyType({})
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> ObjectStore:
        return open_store(self.url, self.options)[0]


@dataclass(frozen=True, slots=True)
class StepWork:
    source: Place
    own: Place
    """The store that Lithify writes to."""
    target: str
    """Key of the output, without a suffix; in the last step a folder."""
    reporting: Reporting | None


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A segment to index."""

    work: StepWork
    segment: Segment
    end_offset: int
    """The base of the next segment."""


@dataclass(frozen=True, slots=True)
class MatchTask:
    work: StepWork
    slice: int
    slices: int
    """A power of two, at most `FENCES`."""
    bound: int
    """Records from here on supersede nothing."""
    plan: str
    """Key of the `MatchPlan` that all slices share."""
    start: int = 0
    """Records before this offset are deleted, and delete nothing."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A group of segments to write as one, or as several if one cannot count so much."""

    work: StepWork
    base_offset: int
    segments: tuple[Segment, ...]
    matched: str
    """Folder with the match results; empty if the segments are copied as they are."""
    slices: int
    part: int
    """Index of the first segment's part in the match results."""
    parts: int
    plan: str
    """Key of the `GroupPlan`."""
    rules: Rules
    companions: tuple[str, ...] = ()
    """Keys of files that are copied unchanged into the new folder."""


@dataclass(frozen=True, slots=True)
class Output:
    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    outputs: tuple[Output, ...]
    rows: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    cpu_s: float
    peak_memory_bytes: int
    """Peak of the task's process."""


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    segment: Segment
    key: str
    """Key of the index, without a suffix."""
    entries: tuple[int, ...]
    """Number of entries of each of its runs."""

    @property
    def runs(self) -> list[StoredRun]:
        return [StoredRun(run_key(self.key, number), count) for number, count in enumerate(self.entries)]

    def fields(self) -> list[object]:
        """Return JSON values, which `of` reads."""
        objects = self.segment.objects if isinstance(self.segment, ObjectChunk) else ()
        return [*_listed(self.segment), list(map(_listed, objects)), self.key, *self.entries]

    @classmethod
    def of(cls, found: Sequence[Any]) -> IndexedSegment:
        """Return the segment with these `fields`; raise `ValueError`, `TypeError` or `LookupError` if they
        are invalid."""
        entries = tuple(whole_number(value, most=_MOST) for value in found[7:])
        segment = _segment(found[:5])
        if found[5]:
            objects = tuple(map(_segment, found[5]))
            segment = ObjectChunk(
                segment.key,
                segment.base_offset,
                segment.size_bytes,
                segment.modified_ms,
                segment.etag,
                objects,
            )
        return cls(segment, text(found[6]), entries)


def _listed(one: Segment) -> list[object]:
    return [one.key, one.base_offset, one.size_bytes, one.modified_ms, one.etag]


def _segment(found: Sequence[Any]) -> Segment:
    base_offset, size_bytes = (whole_number(value, most=_MOST) for value in found[1:3])
    etag = None if found[4] is None else text(found[4])
    return Segment(text(found[0]), base_offset, size_bytes, int(found[3]), etag)


@dataclass(frozen=True, slots=True)
class MatchPlan:
    """Facts about the whole log for all slices, as two objects: they may be too large for a task's
    argument."""

    segments: tuple[IndexedSegment, ...]
    fences: tuple[int, ...]
    """End offsets of the parts of the results: the bounds of segments."""
    aborted: Records
    """First and last offsets of the batches whose transaction aborted."""

    def put(self, store: ObjectStore, key: str) -> None:
        spans = np.ascontiguousarray(self.aborted, OFFSETS)
        put_fenced(store, f"{key}.aborted", spans.reshape(-1), [2 * len(spans)])
        document = {"segments": [one.fields() for one in self.segments], "fences": self.fences}
        store.put(key, json.dumps(document).encode())

    @classmethod
    def get(cls, store: ObjectStore, key: str) -> MatchPlan:
        """Return the plan written by `put`; raise `CorruptObject` if it does not decode."""
        try:
            found = json.loads(store.get(key))
            segments = tuple(map(IndexedSegment.of, found["segments"]))
            fences = tuple(map(int, found["fences"]))
        except UNDECODABLE as error:
            raise CorruptObject(key, f"does not decode: {error}") from error
        spans = get_parts(store, f"{key}.aborted", OFFSETS, 1, 0, 1)
        return cls(segments, fences, spans.reshape(-1, 2))


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Facts about the log before and after a group."""

    aborted: tuple[AbortedTransaction, ...]
    passed: Passed
    producers: Mapping[int, LastRecord]

    def encode(self) -> bytes:
        document = {
            "aborted": [
                [one.producer_id, one.first_offset, one.last_offset, one.stable_offset]
                for one in self.aborted
            ],
            "committed": sorted(self.passed.committed),
            "met": sorted(self.passed.aborted.items()),
            "last_offset": self.passed.last_offset,
            "producers": [
                [who, last.epoch, last.data_offset, last.timestamp_ms] for who, last in self.producers.items()
            ],
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> GroupPlan:
        """Return the plan that `encode` made; raise `CorruptObject` if it does not decode."""
        try:
            found = json.loads(data)
            return cls(
                tuple(AbortedTransaction(*map(int, one)) for one in found["aborted"]),
                Passed(
                    frozenset(map(int, found["committed"])),
                    {int(who): bool(met) for who, met in found["met"]},
                    int(found["last_offset"]),
                ),
                {who: LastRecord(epoch, data, at) for who, epoch, data, at in found["producers"]},
            )
        except UNDECODABLE as error:
            raise CorruptObject(name, f"does not decode: {error}") from error


def recorded(result: TaskResult) -> TaskResult:
    """Inside a Spark task: return the result that an earlier attempt has recorded."""
    return result


class Movements:
    """A counter of bytes read and written that also reports progress when due."""

    def __init__(self, reporter: BackgroundReporter | None) -> None:
        self.bytes_read = self.bytes_written = self._request_bytes = 0
        self._began_s = time.process_time()
        self._reporter = reporter

    def moved(self, read: int, written: int) -> None:
        self.bytes_read += read
        self.bytes_written += written
        self._report()

    def requested(self, requests: int) -> None:
        """Report progress that moves no data, so that a worker that deletes for long is not taken for stuck;
        the result does not include it."""
        self._request_bytes += requests * REQUEST_BYTES
        self._report()

    def _report(self) -> None:
        if self._reporter is not None and self._reporter.is_due():
            self._reporter.report(self.bytes_read, self.bytes_written + self._request_bytes)

    def result(self, *outputs: Output, rows: Mapping[str, int] = NO_ROWS) -> TaskResult:
        cpu_s = time.process_time() - self._began_s
        moved = self.bytes_read, self.bytes_written
        return TaskResult(outputs, dict(rows), *moved, cpu_s, peak_memory_bytes())


def index_segment(task: IndexTask) -> TaskResult:
    """Inside a Spark task: read and check a segment, and write its index."""
    return reporting(task.work, lambda own, movements: _index(task, own, movements))


def match_slice(task: MatchTask) -> TaskResult:
    """Inside a Spark task: find superseded records in a slice of the hash space."""
    return reporting(task.work, lambda own, movements: _match(task, own, movements))


def rewrite_group(task: RewriteTask) -> TaskResult:
    """Inside a Spark task: write a segment of the kept records of a group."""
    return reporting(task.work, lambda own, movements: _rewrite(task, own, movements))


def reporting(work: StepWork, run: Callable[[ObjectStore, Movements], TaskResult]) -> TaskResult:
    """Run a task with its own store and progress reports."""
    keep_freed_memory()
    own = work.own.open()
    with reported(work.reporting, own, SystemClock(), RandomIds()) as reporter:
        return run(own, Movements(reporter))


def _index(task: IndexTask, own: ObjectStore, movements: Movements) -> TaskResult:
    source, target, before = task.work.source.open(), task.work.target, movements.bytes_written
    is_newest = task.end_offset == NO_BOUND
    facts = index_of(source, own, task.segment, target, movements.moved, is_newest=is_newest).facts
    if facts.end_offset > task.end_offset:
        reason = (
            f"its last offset is {facts.end_offset - 1}, but the next segment begins at {task.end_offset}"
        )
        raise CorruptObject(task.segment.key, reason)
    return movements.result(Output(target, movements.bytes_written - before))


def _match(task: MatchTask, own: ObjectStore, movements: Movements) -> TaskResult:
    plan, within = MatchPlan.get(own, task.plan), slices(task.slices)[task.slice]
    spans, runs, deleted = plan.aborted, [], [NO_OFFSETS]
    source, newest = task.work.source.open(), plan.segments[-1]
    for of, stored in ((one, run) for one in plan.segments for run in one.runs):
        first = task.slice * stored.parts // task.slices
        last = max(first + 1, (task.slice + 1) * stored.parts // task.slices)
        which = (first, last)
        run = run_of(source, own, of.segment, of.key, stored, which, movements.moved, is_newest=of is newest)
        run = part(run, within)
        run = run[run["offset"] < task.bound]
        if task.start:
            deleted.append(run["offset"][run["offset"] < task.start].astype(np.int64))
            run = run[run["offset"] >= task.start]
        if len(spans):
            at = np.searchsorted(spans[:, 0], run["offset"], side="right") - 1
            run = run[(at < 0) | (run["offset"] > spans[np.maximum(at, 0), 1])]
        runs.append(run)
    found = match(runs)
    dead = np.sort(np.concatenate([*deleted, found.dead]))
    written = 0
    for suffix, offsets in ((".dead", dead), (".pinned", found.pinned)):
        ends = np.searchsorted(offsets, np.array(plan.fences, np.int64))
        written += put_fenced(own, task.work.target + suffix, offsets.astype(OFFSETS), ends)
    written += put_fenced(own, task.work.target + SAMPLE_SUFFIX, found.sample, [len(found.sample)])
    movements.moved(0, written)
    return movements.result(Output(task.work.target, written))


def sample_of(own: ObjectStore, keys: Sequence[str]) -> dict[int, int]:
    """Return the sample of the whole partition: hashes of keys by offset. `keys` are those of all slices'
    results. Hashes are cut to the numbers that a report can have."""
    parts = [get_parts(own, key + SAMPLE_SUFFIX, ENTRY, 1, 0, 1) for key in keys]
    return {int(entry["offset"]): int(entry["high"]) >> 2 for entry in sampled(np.concatenate(parts))}


def _rewrite(task: RewriteTask, own: ObjectStore, movements: Movements) -> TaskResult:
    source = task.work.source.open()
    plan = GroupPlan.decode(own.get(task.plan), task.plan)
    rows = Counter[str]()
    for key in task.companions:
        own.put(join(task.work.target, key.rpartition("/")[2]), source.get(key))
    dead = pinned = NO_OFFSETS
    if task.matched:
        dead, pinned = (matched_offsets(own, task, suffix) for suffix in (".dead", ".pinned"))
    cleaner = Cleaner(
        task.rules,
        dead,
        pinned,
        aborted=plan.aborted,
        passed=plan.passed,
        producers=plan.producers,
        after=task.base_offset - 1,
    )
    writer = SplitWriter(own, task.work.target, task.base_offset)
    try:
        for segment in task.segments:
            if not task.matched:
                for _, data in pieces(source, segment):
                    writer.write(data, plan.aborted)
                    movements.moved(len(data), len(data))
                continue
            for one in cleaner.cleaned(streamed(source, segment)):
                writer.write(one.kept, plan.aborted)
                rows.update(rows_in=int(one.tally.sum()), rows_out=int(one.tally[RemovalReason.STAYS]))
                rows.update(dropped(one.tally))
                movements.moved(one.size, len(one.kept))
        written = writer.close()
    finally:
        writer.abort()
    put_kept(own, task.plan, cleaner.kept)
    return movements.result(*(Output(one.key, one.size_bytes) for one in written), rows=rows)


def put_kept(own: ObjectStore, plan: str, kept: FirstKept) -> None:
    """Write what a group kept only because of the thresholds next to its plan, if there is anything."""
    if kept != FirstKept():
        own.put(plan + _KEPT_SUFFIX, json.dumps([kept.tombstone, kept.marker]).encode())


def get_kept(own: ObjectStore, folder: str) -> FirstKept:
    """Return what all groups of a round kept; raise `CorruptObject` if it does not decode."""
    found = FirstKept()
    for meta in own.list(folder):
        if meta.key.endswith(_KEPT_SUFFIX):
            found = found.least(_decoded_kept(own.get(meta.key), meta.key))
    return found


def _decoded_kept(data: bytes, key: str) -> FirstKept:
    try:
        tombstone, marker = json.loads(data)
        return FirstKept(whole_number(tombstone, most=_MOST), whole_number(marker, most=_MOST))
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def matched_offsets(own: ObjectStore, task: RewriteTask, suffix: str) -> Offsets:
    """Return the offsets that all slices have found in the group, in order."""
    first, last = task.part, task.part + len(task.segments)
    found: Sequence[Records] = [
        get_parts(own, key + suffix, OFFSETS, task.parts, first, last)
        for key in slice_keys(task.matched, task.slices)
    ]
    return np.sort(np.concatenate(found)).astype(np.int64)


def slice_keys(folder: str, slices: int) -> list[str]:
    """Return the keys, without a suffix, of all slices' results."""
    return [join(folder, f"{number:04d}") for number in range(slices)]

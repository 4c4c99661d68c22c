"""Copies a topic (`copies.py`): one task for each partition, then the announcement to the broker.

A task, repeated after each crash:

1. *Check* that the source has the planned id and objects, and that no other topic has the new name. Otherwise
   write nothing; the next run plans the partition anew.
2. Write the new partition's *watermark*, unless another process has changed it. If the broker knows the
   partition, this reserves the offsets of the next objects.
3. Create *objects* in the order of offsets: merged ones, and all others unchanged. An existing object must
   have the same bytes. The last object is never a merged one, since readers find the end of the log by its
   number of records. Objects of an attempt with other parameters are removed or replaced only in a
   partition's first copy, and only if no broker knows the partition.
4. Correct the *times* of objects (`object_times.py`).
5. Carry over *offsets of groups* (`carried_offsets.py`).

The announcement is one conditional write into the broker's `meta.json`, after all its partitions are copied.

Copies of two sources to one name would replace each other's objects while no broker knows the new topic. So
each process first checks the claim on the name: an object that only one source can create.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from lithify.base.clock import Clock, SystemClock
from lithify.base.concurrency import all_of, each_of
from lithify.base.documents import Count, DocumentCodec
from lithify.base.errors import (
    DatasetNotFound,
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    Refused,
)
from lithify.datasets.kafka.buckets.carried_offsets import carry_offsets, listed_offsets
from lithify.datasets.kafka.buckets.copies import (
    Found,
    ending_at,
    high_of,
    rest_of,
    told_of,
    with_topic,
)
from lithify.datasets.kafka.buckets.manifest import BucketManifest, ManifestAction
from lithify.datasets.kafka.buckets.object_times import put_times_right
from lithify.datasets.kafka.buckets.publishing import Changed, has_metadata, read_same_topic
from lithify.datasets.kafka.cleaning.tasks import Movements, Output, StepWork, TaskResult, reporting
from lithify.datasets.kafka.format.record_batches import rebased
from lithify.datasets.kafka.layouts.cluster_metadata import metadata_key
from lithify.datasets.kafka.layouts.contract import Segment
from lithify.datasets.kafka.layouts.objects import (
    RECORDS,
    REQUESTS,
    WATERMARK,
    ObjectRange,
    as_segment,
    base_of,
    fingerprint_of_segments,
    listed_objects,
    object_name,
    read_objects,
)
from lithify.datasets.kafka.state import Copied
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

ItemT = TypeVar("ItemT")
CLAIM = "copy.json"
"""The object in Lithify's folder for the new topic that names its source."""
_MAX_CONFLICTS = 20


@dataclass(frozen=True, slots=True)
class CopyTask:
    """The copy of one partition."""

    work: StepWork
    """Its target is the key of the report."""
    root: str
    """Folder of the source topic."""
    target: str
    """Folder of the new topic."""
    topic_id: str
    target_id: str
    number: int
    cut: ObjectRange
    fingerprint: str
    """Fingerprint of the source's objects to copy."""
    end: int
    """End offset of the copy after this task."""
    merged_below: int
    """Objects from this offset on are copied unchanged."""
    manifests: tuple[str, ...]
    """Keys of the merged objects' manifests, in the folder of the objects."""
    copied: Copied | None
    """The part that the copy has already; `None` if it is the partition's first copy."""
    carried: str
    """Key of the hashes of carried offsets."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of copying a partition."""

    refused: str
    """Why the partition must be planned anew; empty if it was copied."""
    fingerprint: str = ""
    """Fingerprint of the copied part of the source, as listed before copying."""
    objects: Count = 0
    """Objects in the copy."""
    size_bytes: Count = 0
    marks: str = ""
    groups: tuple[str, ...] = ()
    gone_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Claim:
    of: str
    """The source of the new topic."""


COPY_REPORTS = DocumentCodec(CopyReport)
_CLAIMS = DocumentCodec(_Claim)


def copy_partition(task: CopyTask) -> TaskResult:
    """Copy a partition, or continue an interrupted copy. Runs inside a Spark task."""
    return reporting(task.work, lambda own, movements: _copy(task, own, movements, SystemClock()))


def _copy(task: CopyTask, own: ObjectStore, movements: Movements, clock: Clock) -> TaskResult:
    try:
        report = _Copying(task, task.work.source.open(), own, movements, clock).carry_out()
    except Changed as changed:
        report = CopyReport(str(changed))
    data = json.dumps(asdict(report)).encode()  # without importing pydantic in each task
    own.put(task.work.target, data)
    return movements.result(Output(task.work.target, len(data)))


class _Copying:
    def __init__(
        self, task: CopyTask, store: ObjectStore, own: ObjectStore, movements: Movements, clock: Clock
    ) -> None:
        self._task, self._store, self._own = task, store, own
        self._movements, self._clock = movements, clock
        self._etag: str | None = None
        """Etag of the broker's metadata, as checked last."""
        self._is_shown = task.copied is not None
        """Whether the broker may know the partition. If so, none of its objects is removed or changed."""
        self._name = _name(task.target)
        self._folder = partition_folder(task.target, task.number)
        self._records = join(self._folder, RECORDS)

    def carry_out(self) -> CopyReport:
        """Do everything that is left to do.

        Raises `Changed` and `Refused`.
        """
        task = self._task
        self._look()
        listed = listed_objects(self._store, join(partition_folder(task.root, task.number), RECORDS))
        segments = task.cut.chosen(map(as_segment, listed))
        if fingerprint_of_segments(segments, task.topic_id) != task.fingerprint:
            raise Changed(f"{task.root}: the copied part of partition {task.number} has changed meanwhile")
        staged, as_they_are = self._planned(segments)
        self._make_room({*staged, *(one.base_offset for one in as_they_are)})
        self._put_watermark()
        self._put_objects(staged, as_they_are)
        there = self._listed()
        if there:
            there = put_times_right(
                self._store, self._records, self._clock, self._look_again, self._movements.moved
            )
        offsets = listed_offsets(self._store, task.root, self._name).get(task.number, [])
        carried = carry_offsets(self._store, self._own, offsets, task.carried, self._look_again)
        kept = ObjectRange(task.cut.until_ms, task.end).chosen(segments)
        fingerprint = fingerprint_of_segments(kept, task.topic_id) if kept else ""
        size_bytes = sum(meta.size for meta in there)
        return CopyReport("", fingerprint, len(there), size_bytes, *carried)

    # Checking

    def _look(self) -> None:
        task = self._task
        found = read_same_topic(self._store, task.root, task.topic_id)
        new = find_topic(self._store, task.root, task.target)
        if new.id not in (None, task.target_id):
            raise Refused(f"a topic {self._name} was created meanwhile; choose another name")
        self._is_shown = self._is_shown or task.number < new.partitions
        self._etag = found.object.etag

    def _look_again(self) -> None:
        """Check again before a write, if the broker's metadata have changed."""
        if not has_metadata(self._store, self._task.root, self._etag):
            self._look()

    def _planned(self, segments: tuple[Segment, ...]) -> tuple[dict[int, str], list[Segment]]:
        """Return the keys of merged objects by base offset, and the segments to copy unchanged, in order."""
        task = self._task
        below = [one for one in segments if one.base_offset < task.end]
        if task.copied is not None:
            return {}, list(rest_of(below, task.copied))
        staged: dict[int, str] = {}
        stay = set()
        for key in task.manifests:
            for one in BucketManifest.decode(self._own.get(key), key).objects:
                if one.action is ManifestAction.PUT:
                    staged[one.base_offset] = join(key.rpartition("/")[0], object_name(one.base_offset))
                elif one.action is ManifestAction.STAY:
                    stay.add(one.base_offset)
        return staged, [
            one for one in below if one.base_offset >= task.merged_below or one.base_offset in stay
        ]

    # Writing

    def _make_room(self, wanted: set[int]) -> None:
        """Delete objects that are not wanted; raise `Refused` if the broker may know the partition."""
        copied = self._task.copied
        begin = 0 if copied is None else copied.end
        others = [
            meta for meta in self._listed() if base_of(meta.key) >= begin and base_of(meta.key) not in wanted
        ]
        if others and self._is_shown:
            raise Refused(self._written(others[0].key))
        for some in _some(iter(others), REQUESTS):
            self._look_again()
            all_of((partial(self._store.delete, meta.key) for meta in some), REQUESTS)
            self._movements.requested(len(some))

    def _put_watermark(self) -> None:
        task = self._task
        key, known = (
            join(partition_folder(root, task.number), WATERMARK) for root in (task.target, task.root)
        )
        data = ending_at(_get(self._store, known), known, task.end)
        self._look_again()
        try:
            before, meta = self._store.get_with_meta(key)
        except ObjectNotFound:
            self._create(key, data)
            return
        high = high_of(before, key)
        # A process may have announced the partition, copied or empty, and crashed before it recorded so.
        is_ours = high in (0, task.end) if task.copied is None else task.copied.end <= high <= task.end
        if self._is_shown and not is_ours:
            raise Refused(self._written(key))
        if before == data or (self._is_shown and high == task.end):
            return
        assert meta.etag is not None, key
        try:
            self._store.replace(key, data, meta.etag)
        except PreconditionFailed as error:
            if self._store.get(key) != data:
                raise Refused(self._written(key)) from error

    def _put_objects(self, staged: Mapping[int, str], as_they_are: list[Segment]) -> None:
        merged = (
            (base, data)
            for base, data in zip(
                sorted(staged),
                each_of((partial(self._own.get, staged[base]) for base in sorted(staged)), REQUESTS),
                strict=True,
            )
        )
        verbatim = (
            (one.base_offset, rebased(one.data, 0))
            for one in read_objects(self._store, as_they_are)
            if not one.is_leftover
        )
        items = heapq.merge(merged, verbatim, key=lambda item: item[0])
        # Readers of a partition that the broker knows must not see a later object first.
        at_once = 1 if self._is_shown else REQUESTS
        for some in _some(items, at_once):
            self._look_again()
            first, *others = some
            self._put(*first)
            all_of((partial(self._put, *one) for one in others), REQUESTS)

    def _put(self, base: int, data: bytes) -> None:
        self._create(join(self._records, object_name(base)), data)
        self._movements.moved(len(data), len(data))

    def _create(self, key: str, data: bytes) -> None:
        """Write an object. Replace one with other bytes, or raise `Refused` if the broker may know the
        partition."""
        try:
            self._store.create(key, data)
        except ObjectExists as error:
            before, meta = self._store.get_with_meta(key)
            if before == data:
                return
            if self._is_shown:
                raise Refused(self._written(key)) from error
            assert meta.etag is not None, key
            self._store.replace(key, data, meta.etag)

    def _listed(self) -> list[ObjectMeta]:
        return listed_objects(self._store, self._records)

    def _written(self, key: str) -> str:
        return (
            f"{key} was not written by Lithify: a producer already writes to {self._name}, so newer records "
            "cannot be copied into it; if the producer was started too early, make another copy"
        )


def find_topic(store: ObjectStore, root: str, target: str) -> Found:
    """Find the new topic with the folder `target`, and its source in `root`.

    Raises `DatasetNotFound` if the broker does not know the source.
    """
    key = metadata_key(root)
    try:
        document = store.get(key)
    except ObjectNotFound as error:
        raise DatasetNotFound(f"{root}: there is no broker metadata at {key}") from error
    source_id, of_source = told_of(document, key, _name(root))
    if source_id is None:
        raise DatasetNotFound(f"{root}: the broker does not know this topic ({key})")
    id, partitions = told_of(document, key, _name(target))
    found = store.folder(target)
    return Found(id, partitions, source_id, of_source, bool(found.folders or found.objects))


def claim_name(store: ObjectStore, root: str, target: str) -> None:
    """Claim the name of the new topic for copies of the topic in `root`. Raise `Refused` if another topic has
    claimed it."""
    cluster, _, source = root.rpartition("/topics/")
    name = _name(target)
    key = join(cluster, "lithify", name, CLAIM)
    of = _claimed_for(store, key, source)
    if of != source:
        raise Refused(
            f"{root}: the name {name} is already used by a copy of {of} ({key}); choose another name, or, "
            f"if that copy has been given up, delete {cluster}/lithify/{of}/copies/{name}, and then that "
            "object"
        )


def _claimed_for(store: ObjectStore, key: str, source: str) -> str:
    """Return the name of the topic that has the claim `key`: `source`, unless another was first."""
    for _ in range(_MAX_CONFLICTS):
        try:
            store.create(key, _CLAIMS.encode(_Claim(source)))
            return source
        except ObjectExists:
            pass
        try:
            return _CLAIMS.decode(store.get(key), key).of
        except ObjectNotFound:
            continue  # another process is creating it, or it has just been deleted
    raise Refused(f"{key} is created and deleted repeatedly by other processes; run again")


def announce(store: ObjectStore, root: str, target: str, source_id: str, id: str, count: int) -> None:
    """Announce `count` partitions of the new topic to the broker, unless it knows them. Raise `Refused` if
    another topic has either name, or the source has fewer partitions."""
    key, name = metadata_key(root), _name(target)
    for _ in range(_MAX_CONFLICTS):
        before, meta = store.get_with_meta(key)
        after = with_topic(before, key, _name(root), source_id, name, id, count)
        if after is None:
            return
        for number in range(told_of(before, key, name)[1], count):
            _put_empty(store, root, target, number)
        assert meta.etag is not None, key
        try:
            store.replace(key, after, meta.etag)
        except PreconditionFailed:
            continue  # the broker has written it, or a response was lost
        return
    raise Refused(f"the broker wrote {key} during each of {_MAX_CONFLICTS} attempts to change it; run again")


def _put_empty(store: ObjectStore, root: str, target: str, number: int) -> None:
    """Create the watermark of a partition without objects. It has no end offset even if the source has
    objects: these may be young, or in an open transaction."""
    known, key = (join(partition_folder(of, number), WATERMARK) for of in (root, target))
    try:
        store.create(key, ending_at(_get(store, known), known, 0))
    except ObjectExists:
        return


def partition_folder(root: str, number: int) -> str:
    """Return the folder of a partition of the topic in `root`."""
    return join(root, "partitions", f"{number:010d}")


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]


def _get(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def _some(items: Iterator[ItemT], most: int) -> Iterator[list[ItemT]]:
    while some := list(islice(items, most)):
        yield some

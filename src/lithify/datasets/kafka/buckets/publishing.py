"""Publishes a partition's merged objects in a broker's bucket, in one task.

The broker is stopped, unless the topic is compacted live. The intent is in the manifests (`manifest.py`),
named by a version of the state that was created only if absent. The task, repeated after each crash:

1. *Check*: the topic has the planned id; the broker has written nothing for a while; each object has the etag
   that was read, or its final bytes; no object was added in between. Otherwise nothing more is put, and the
   next run plans the topic anew; only objects that a merged one covers are still deleted.
2. Delete *leftovers* of an earlier publication.
3. In the order of offsets, *put* each merged object, if the etag is the one that was read, and *delete*
   objects that have no kept records and lie in no merged object; of neighbours, markers last. So each marker
   outlasts the data that it decides; otherwise another marker of the same producer would decide that data.
   After each write the log can be read and planned anew.
4. *Delete* covered objects, markers last. Not all stores have a conditional delete, so each object is checked
   directly before. Names inside a span are never written again, unless the topic is recreated.
5. Correct the *times* of objects, by which such a broker finds the ends of the log (`object_times.py`).

Live (`live_topic.py`), the broker may write, but the topic must not be recreated. The deletes of covered
objects follow each put, so that readers see both for a moment only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from lithify.base.clock import Clock, SystemClock
from lithify.base.concurrency import all_of
from lithify.base.documents import Count, DocumentCodec
from lithify.base.errors import DatasetNotFound, ObjectNotFound, PreconditionFailed, Refused
from lithify.datasets.kafka.buckets.manifest import BucketManifest, ManifestAction, Planned
from lithify.datasets.kafka.buckets.object_times import put_times_right
from lithify.datasets.kafka.cleaning.tasks import Movements, Output, StepWork, TaskResult, reporting
from lithify.datasets.kafka.layouts.cluster_metadata import TopicMetadata, metadata_key, read_metadata
from lithify.datasets.kafka.layouts.contract import fingerprint_of
from lithify.datasets.kafka.layouts.objects import (
    REQUESTS,
    WATERMARK,
    activity_of,
    base_of,
    listed_objects,
    object_name,
)
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.times import store_now_ms

WRITES_BETWEEN_LOOKS = 64
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Standstill:
    """The broker's last write, and how long the broker must be idle after it."""

    activity: str
    seen_ms: int
    """When `activity` was seen at the latest, by the clock of Lithify's store."""
    quiet_ms: int
    """0 if the broker may write."""


@dataclass(frozen=True, slots=True)
class PublishTask:
    """The publication of a partition's merged objects."""

    work: StepWork
    """Its target is the key of the report."""
    root: str
    """Folder of the topic."""
    records: str
    """Folder of the partition's objects."""
    topic_id: str
    standstill: Standstill
    staged: str
    """Folder of the merged objects."""
    manifests: tuple[str, ...]
    live_from: int | None = None
    """If the broker runs, all objects from this offset on are its own. `None` if it is stopped."""


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """The result of a publication."""

    refused: str
    """Why the topic must be planned anew; empty if all is published."""
    fingerprint: str = ""
    """Fingerprint of the folder afterwards; of the objects below `live_from` if the broker runs."""
    objects: Count = 0
    size_bytes: Count = 0


PUBLICATION_REPORTS = DocumentCodec(PublicationReport)


class Changed(Exception):
    """The topic is not as it was planned. The message describes the difference."""


def read_same_topic(store: ObjectStore, root: str, topic_id: str) -> TopicMetadata:
    """Read the broker's metadata of the topic. Raise `Changed` if it was deleted or recreated."""
    try:
        found = read_metadata(store, root)
    except DatasetNotFound as error:
        raise Changed(str(error)) from error
    if found.topic.id != topic_id:
        raise Changed(f"{root}: the topic was deleted and created again")
    return found


def has_metadata(store: ObjectStore, root: str, etag: str | None) -> bool:
    """Return whether the broker's metadata still have this etag. Raise `Changed` if they are gone."""
    key = metadata_key(root)
    try:
        return store.head(key).etag == etag
    except ObjectNotFound as error:
        raise Changed(f"{key} is gone") from error


def publish_merged(task: PublishTask) -> TaskResult:
    """Publish merged objects, or continue an interrupted publication. Runs inside a Spark task."""
    return reporting(task.work, lambda own, movements: _publish(task, own, movements, SystemClock()))


def _publish(task: PublishTask, own: ObjectStore, movements: Movements, clock: Clock) -> TaskResult:
    store = task.work.source.open()
    try:
        listed = _Publication(task, store, own, movements, clock).carry_out()
        if task.live_from is not None:
            listed = [meta for meta in listed if base_of(meta.key) < task.live_from]
        size_bytes = sum(meta.size for meta in listed)
        report = PublicationReport("", fingerprint_of(listed, task.topic_id), len(listed), size_bytes)
    except Changed as changed:
        report = PublicationReport(str(changed))
    data = json.dumps(asdict(report)).encode()  # without importing pydantic in each task
    own.put(task.work.target, data)
    return movements.result(Output(task.work.target, len(data)))


class _Publication:
    def __init__(
        self, task: PublishTask, store: ObjectStore, own: ObjectStore, movements: Movements, clock: Clock
    ) -> None:
        self._task, self._store, self._own = task, store, own
        self._movements, self._clock = movements, clock
        self._etag: str | None = None
        """Etag of the broker's metadata, as checked last."""

    def carry_out(self) -> list[ObjectMeta]:
        """Do everything that is left to do, and return the objects afterwards.

        Raises `Changed` and `Refused`.
        """
        self._stand_still()
        manifests = (BucketManifest.decode(self._own.get(key), key) for key in self._task.manifests)
        planned = [one for manifest in manifests for one in manifest.objects]
        try:
            to_do, _, changed = self._judge(planned)
            if changed:
                raise Changed(changed[0])
            self._delete(one for one in to_do if one.action is ManifestAction.LEFTOVER)
            covered = set() if self._task.live_from is not None else _covered(planned, set(planned))
            for some in _each_put_apart(to_do):
                for one in some:
                    if one.action is ManifestAction.PUT:
                        self._put(one)
                self._delete_markers_last([one for one in some if one.goes and one not in covered])
            self._delete_markers_last([one for one in to_do if one in covered])
        except Changed:
            to_do, done, _ = self._judge(planned)
            covered = _covered(planned, set(done))
            self._delete_markers_last([one for one in to_do if one in covered])
            raise
        return put_times_right(
            self._store,
            self._task.records,
            self._clock,
            self._look_again,
            self._movements.moved,
            self._task.live_from,
        )

    # Checking

    def _stand_still(self) -> None:
        """Wait until the broker is known to be idle; raise `Refused` if it writes."""
        known = self._task.standstill
        activity = self._look()
        if not known.quiet_ms:
            return
        now_key = join(self._task.work.target.rpartition("/")[0], "now")
        if activity == known.activity and store_now_ms(self._own, now_key) - known.seen_ms >= known.quiet_ms:
            return
        self._clock.sleep_s(known.quiet_ms / 1000)
        if self._look() != activity:
            raise Refused(self._moves())

    def _look(self) -> str:
        """Return the broker's activity. Raise `Changed` if the topic is another one."""
        task = self._task
        found = read_same_topic(self._store, task.root, task.topic_id)
        self._etag = found.object.etag
        beside = self._store.folder(task.records.rpartition("/")[0]).objects
        watermark = next((meta for meta in beside if meta.key.endswith(f"/{WATERMARK}")), None)
        return activity_of(found.object, watermark)

    def _look_again(self) -> None:
        """Check again before a write; raise `Refused` if the broker has written and must not."""
        task = self._task
        if has_metadata(self._store, task.root, self._etag):
            return
        self._look()
        if task.standstill.quiet_ms:
            raise Refused(self._moves())

    def _moves(self) -> str:
        return (
            f"{self._task.root}: the broker is writing (meta.json or a watermark changes); stop it, and run "
            "again to continue the publication"
        )

    def _judge(self, planned: Sequence[Planned]) -> tuple[list[Planned], list[Planned], list[str]]:
        """Return the objects left to do, the objects done, and descriptions of changes since planning."""
        listed = {base_of(meta.key): meta for meta in self._listed()}
        if not planned:
            return [], [], []
        last, known = planned[-1].base_offset, {one.base_offset for one in planned}
        changed = [
            f"{listed[base].key} was added meanwhile"
            for base in sorted(listed)
            if base <= last and base not in known
        ]
        verdicts = all_of(
            (partial(self._judge_one, one, listed.get(one.base_offset)) for one in planned), REQUESTS
        )
        changed += [found for found in verdicts if isinstance(found, str)]
        judged = list(zip(planned, verdicts, strict=True))
        to_do = [one for one, found in judged if found is True]
        return to_do, [one for one, found in judged if found is False], changed

    def _judge_one(self, one: Planned, meta: ObjectMeta | None) -> bool | str:
        """Return whether the object is left to do, or a description of its change since planning."""
        key = self._key(one)
        if meta is None:
            return False if one.goes or one.action is ManifestAction.LEFTOVER else f"{key} is gone"
        if one.action is ManifestAction.STAY:
            return False
        if (meta.etag or self._store.head(key).etag) == one.etag:
            return True
        if one.action is ManifestAction.PUT and self._store.get(key) == self._own.get(self._staged(one)):
            return False
        return f"{key} has changed since it was read"

    # Writing

    def _put(self, one: Planned) -> None:
        self._look_again()
        data = self._own.get(self._staged(one))
        try:
            self._store.replace(self._key(one), data, one.etag)
        except PreconditionFailed as error:
            if self._store.get(self._key(one)) != data:
                raise Changed(f"{self._key(one)} has changed since it was read") from error
        self._movements.moved(len(data), len(data))

    def _delete(self, objects: Iterable[Planned]) -> None:
        for some in _some(objects):
            self._look_again()
            all_of((partial(self._delete_one, one) for one in some), REQUESTS)
            self._movements.requested(2 * len(some))

    def _delete_markers_last(self, objects: Sequence[Planned]) -> None:
        self._delete(one for one in objects if one.action is not ManifestAction.MARKER)
        self._delete(one for one in objects if one.action is ManifestAction.MARKER)

    def _delete_one(self, one: Planned) -> None:
        key = self._key(one)
        try:
            meta = self._store.head(key)
        except ObjectNotFound:
            return
        if meta.etag != one.etag:
            raise Changed(f"{key} has changed since it was read")
        self._store.delete(key)

    def _listed(self) -> list[ObjectMeta]:
        return listed_objects(self._store, self._task.records)

    def _key(self, one: Planned) -> str:
        return join(self._task.records, object_name(one.base_offset))

    def _staged(self, one: Planned) -> str:
        return join(self._task.staged, object_name(one.base_offset))


def _covered(planned: Iterable[Planned], merged: Set[Planned]) -> set[Planned]:
    """Return the objects to delete that lie in the span of a put in `merged`."""
    end, found = -1, set()
    for one in planned:
        if one.action is ManifestAction.PUT and one in merged:
            end = one.last_offset
        elif one.goes and one.base_offset <= end:
            found.add(one)
    return found


def _each_put_apart(to_do: Sequence[Planned]) -> list[list[Planned]]:
    """Group each put with the deletes that follow it."""
    found: list[list[Planned]] = [[]]
    for one in to_do:
        if one.action is ManifestAction.PUT:
            found.append([])
        found[-1].append(one)
    return found


def _some(items: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    """Yield as many items at a time as may be written between two checks of the broker."""
    left = iter(items)
    while some := list(islice(left, WRITES_BETWEEN_LOOKS)):
        yield some

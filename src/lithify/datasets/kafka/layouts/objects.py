"""Topics of a diskless broker (Nisshi, formerly Tansu): one batch per object.

    clusters/C/meta.json                         (`cluster_metadata.py`)
    clusters/C/topics/orders/partitions/0000000003/records/00000000000000081240.batch
    clusters/C/topics/orders/partitions/0000000003/watermark.json

The name is the base offset; the field in the batch is 0. The broker lists the whole folder for each fetch, so
many objects make reads slow. Objects are merged up to `TARGET_BYTES`, since a fetch ends at 5 MiB, and
replaced in place (`publishing.py`).

1. These objects must stay as they are: the newest, since readers find the end of the log by it; and from the
   first open transaction on all, with the one before, where the stable part ends.
2. The rest is read in chunks of at most `CHUNK_BYTES` or `CHUNK_OBJECTS`, so that a task has enough to merge.
3. *Leftovers*: a merged object is put before the objects that it covers are deleted. A crash in between
   leaves objects in the span of an earlier one. The next run continues the publication and deletes them by
   name. Leftovers of a forgotten publication are recognized by the span in the header of the earlier object:
   they are ignored, and removed first. Only if a chunk ends among them, indexing refuses it.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lithify.base.concurrency import all_of, each_of
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused, StoreError, Unsupported
from lithify.base.jsonvalues import whole_number
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.format.kernel.layout import (
    BASE_OFFSET_BYTES,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    UNCOUNTED_BYTES,
)
from lithify.datasets.kafka.format.record_batches import rebased
from lithify.datasets.kafka.layouts.cluster_metadata import read_metadata
from lithify.datasets.kafka.layouts.contract import ObjectChunk, PartitionFolder, Segment, fingerprint_of
from lithify.datasets.kafka.layouts.topic_settings import is_compacted
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

TARGET_BYTES = 900_000
CHUNK_BYTES = 32 << 20
CHUNK_OBJECTS = 4000
PIECE_BYTES = 8 << 20
"""Stored bytes of a chunk in memory at once, unless an object is larger."""
LIVE_TAIL = 3
"""Number of a partition's newest objects that no round covers while a broker runs. The one before them stays
as it is too."""
PROBED = 64
"""Number of a partition's objects whose headers are read to find covered objects."""
REQUESTS = 16
"""Number of concurrent requests."""
LAST_OFFSET = (1 << 63) - 2
"""The largest offset of a record: the end of the log after it must be an offset too."""
RECORDS = "records"
WATERMARK = "watermark.json"
_TOPIC = re.compile(r"(?:.*/)?clusters/[^/]+/topics/([^/]+)")
_OBJECT = re.compile(r"([0-9]{20})\.batch")
_NAME = re.compile(r"([0-9]{10})/(?:watermark\.json|records/[0-9]{20}\.batch)")


@dataclass(frozen=True, slots=True)
class ReadObject:
    """An object's batch, as read."""

    base_offset: int
    etag: str
    data: bytes
    """The batch, with its base offset filled in."""
    is_leftover: bool
    """Whether an earlier object covers it."""


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """A selection of a partition's objects to which later ones do not belong."""

    until_ms: int
    """Latest time of an object's last write, by the store's clock."""
    below: int
    """Exclusive limit of base offsets."""

    @classmethod
    def of(cls, found: object) -> ObjectRange | None:
        """Decode a range from its two numbers; `None` stays `None`. Raise `ValueError` for anything else."""
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != 2:
            raise ValueError(f"{found!r} is not a cut")
        return cls(*(whole_number(value, most=NO_BOUND) for value in found))

    def chosen(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        return tuple(
            one for one in segments if one.modified_ms <= self.until_ms and one.base_offset < self.below
        )

    def within(self, folder: PartitionFolder) -> PartitionFolder | None:
        """Return a partition restricted to this range; `None` if it has no objects there."""
        segments = self.chosen(folder.segments)
        if not segments:
            return None
        bound = segments[-1].base_offset
        return replace(
            folder,
            segments=segments,
            chunks=tuple(chunks_of(segments, bound)),
            bound=bound,
            fingerprint=fingerprint_of_segments(segments, folder.topic_id),
        )


def live_cut(folder: PartitionFolder) -> ObjectRange | None:
    """Return a live round's cut: all objects but the newest `LIVE_TAIL`, up to the first open transaction.
    `None` if these are too few, since the first and the last of them stay."""
    if len(folder.segments) < LIVE_TAIL + 4:
        return None
    return ObjectRange(NO_BOUND, min(folder.segments[-LIVE_TAIL].base_offset, folder.bound + 1))


def live_part(folder: PartitionFolder, cut: ObjectRange) -> PartitionFolder | None:
    """Restrict a live partition like `within`, with the first object in a chunk of its own."""
    found = cut.within(folder)
    if found is None:
        return None
    first, rest = found.segments[:1], found.segments[1:]
    chunks = (part for some in (first, rest) if some for part in chunks_of(some, found.bound))
    return replace(found, chunks=tuple(chunks))


class ObjectTopic:
    """A topic in a broker's bucket (`contract.LogLayout`)."""

    target_bytes = TARGET_BYTES

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store, self._root = store, root

    @staticmethod
    def is_at(store: ObjectStore, root: str) -> bool:
        """Return whether a folder is a topic of such a broker. Reads the store only if the name allows it."""
        return _TOPIC.fullmatch(root) is not None and join(root, "partitions") in store.folder(root).folders

    @property
    def refusal(self) -> str | None:
        policy = read_metadata(self._store, self._root).topic.configs.get("cleanup.policy", "delete")
        if is_compacted(policy):
            return None
        return (
            f"has cleanup.policy {policy}, so its older records must be kept; to compact it, set that to "
            "compact"
        )

    def partitions(self) -> Mapping[str, PartitionFolder]:
        records: dict[str, list[ObjectMeta]] = defaultdict(list)
        watermarks: dict[str, ObjectMeta] = {}
        folder = join(self._root, "partitions")
        for meta in self._store.list(folder):
            if (found := _NAME.fullmatch(meta.key.removeprefix(f"{folder}/"))) is None:
                continue
            if meta.key.endswith(WATERMARK):
                watermarks[found[1]] = meta
            else:
                records[found[1]].append(meta)
        if not records:
            raise DatasetNotFound(f"{self._root}: there are no partitions with objects (.batch)")
        known = read_metadata(self._store, self._root)  # after the objects: see `cluster_metadata`
        topic = _name(self._root)
        found_partitions = {}
        for number, listed in sorted(records.items()):
            listed.sort(key=lambda meta: meta.key)
            segments = tuple(as_segment(meta) for meta in listed)
            bound = bound_of(segments, known.open_from.get(int(number), NO_BOUND))
            found_partitions[f"{topic}-{int(number)}"] = PartitionFolder(
                join(folder, number, RECORDS),
                segments,
                (),
                fingerprint_of(listed, known.topic.id),
                tuple(chunks_of(segments, bound)),
                bound,
                known.topic,
                activity_of(known.object, watermarks.get(number)),
                configs=known.topic.configs,
            )
        return found_partitions

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """Accept the output: its folder is fixed, and outside the broker's (`places.py`)."""


def chunks_of(segments: Iterable[Segment], bound: int) -> Iterator[ObjectChunk]:
    """Yield chunks greedily from the first object on, so that chunks of unchanged objects stay the same."""
    found: list[Segment] = []
    size_bytes = 0
    for segment in segments:
        is_full = size_bytes + segment.size_bytes > CHUNK_BYTES or len(found) >= CHUNK_OBJECTS
        if found and (is_full or segment.base_offset >= bound > found[-1].base_offset):
            yield _chunk(found)
            found, size_bytes = [], 0
        found.append(segment)
        size_bytes += segment.size_bytes
    yield _chunk(found)


def bound_of(segments: tuple[Segment, ...], open_from: int) -> int:
    """Return the base offset of the first object that must stay as it is; `open_from` is the first offset of
    open transactions."""
    below = [segment.base_offset for segment in segments if segment.base_offset < open_from]
    return below[-1] if below else segments[0].base_offset


def activity_of(metadata: ObjectMeta, watermark: ObjectMeta | None) -> str:
    """Return a fingerprint that changes if the broker writes either object."""
    found = [
        "" if one is None else f"{one.key} {one.size} {one.last_modified_ms} {one.etag}"
        for one in (metadata, watermark)
    ]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def read_objects(store: ObjectStore, objects: Iterable[Segment]) -> Iterator[ReadObject]:
    """Read consecutive objects concurrently, and yield them in order.

    Raises `CorruptObject`, `Refused` and `Unsupported`.
    """
    after = -1
    wanted = list(objects)
    answers = each_of((partial(store.get_with_meta, segment.key) for segment in wanted), REQUESTS)
    for segment, (data, meta) in zip(wanted, answers, strict=True):
        if any(data[:BASE_OFFSET_BYTES]):
            raise Unsupported(
                f"{segment.key}: the base offset in its batch must be 0, because its name contains the offset"
            )
        if len(data) != segment.size_bytes or segment.etag not in (None, meta.etag):
            raise Refused(f"{segment.key}: has changed while it was read; it is planned again")
        if meta.etag is None:
            raise Refused(
                f"{segment.key}: the store returns no etag, without which objects cannot be replaced safely"
            )
        last = segment.base_offset + _last_delta(data, segment.key)
        is_leftover = segment.base_offset <= after
        if is_leftover and last > after:
            raise CorruptObject(
                segment.key, f"begins before and ends after {after}, where another object ends"
            )
        after = max(after, last)
        yield ReadObject(segment.base_offset, meta.etag, rebased(data, segment.base_offset), is_leftover)


def read_pieces(store: ObjectStore, chunk: ObjectChunk) -> Iterator[list[ReadObject]]:
    """Read the chunk's objects in pieces of up to `PIECE_BYTES`."""
    piece: list[ReadObject] = []
    size_bytes = 0
    for found in read_objects(store, chunk.objects):
        if piece and size_bytes + len(found.data) > PIECE_BYTES:
            yield piece
            piece, size_bytes = [], 0
        piece.append(found)
        size_bytes += len(found.data)
    if piece:
        yield piece


def joined(folder_key: str, piece: list[ReadObject]) -> tuple[str, bytes]:
    """Return a name for errors, and the piece's concatenated batches without leftovers."""
    found = [one for one in piece if not one.is_leftover]
    first = f"{folder_key}/{object_name(piece[0].base_offset)}"
    name = first if len(found) == 1 else f"{len(found)} objects from {first} on"
    return name, b"".join(one.data for one in found)


def count_covered(store: ObjectStore, segments: Sequence[Segment]) -> int:
    """Count a partition's objects in the span of an earlier one. Only the headers of the `PROBED` largest
    objects are read, since merged ones are large; invalid headers and missing objects are ignored."""

    def last_of(segment: Segment) -> int:
        try:
            header = store.get_range(segment.key, 0, min(HEADER_BYTES, segment.size_bytes))
            length = int.from_bytes(header[LENGTH_AT : LENGTH_AT + 4])
            is_whole = UNCOUNTED_BYTES + length == segment.size_bytes
            return segment.base_offset + _last_delta(header, segment.key) if is_whole else -1
        except (CorruptObject, StoreError):
            return -1

    bases = [one.base_offset for one in segments]
    probed = sorted(segments, key=lambda one: -one.size_bytes)[:PROBED]
    covered: set[int] = set()
    for one, last in zip(probed, all_of((partial(last_of, one) for one in probed), REQUESTS), strict=True):
        covered.update(range(bisect_right(bases, one.base_offset), bisect_right(bases, last)))
    return len(covered)


def chunk_pieces(store: ObjectStore, chunk: ObjectChunk) -> Iterator[tuple[str, bytes]]:
    """Yield the chunk's batches, several at a time, with a name for errors."""
    folder = chunk.key.rpartition("/")[0]
    for piece in read_pieces(store, chunk):
        name, data = joined(folder, piece)
        if data:
            yield name, data


def fingerprint_of_segments(segments: Iterable[Segment], topic_id: str) -> str:
    """Return the fingerprint of a folder with exactly these segments."""
    return fingerprint_of(
        (ObjectMeta(one.key, one.size_bytes, one.modified_ms, one.etag) for one in segments), topic_id
    )


def listed_objects(store: ObjectStore, folder: str) -> list[ObjectMeta]:
    """List the objects of a partition in order."""
    return sorted(
        (meta for meta in store.list(folder) if _OBJECT.fullmatch(_name(meta.key))), key=lambda meta: meta.key
    )


def as_segment(meta: ObjectMeta) -> Segment:
    """Convert a listed object. Raise `CorruptObject` if its name exceeds all offsets."""
    if (base_offset := base_of(meta.key)) > LAST_OFFSET:
        raise CorruptObject(meta.key, "there is no such offset")
    return Segment(meta.key, base_offset, meta.size, meta.last_modified_ms, meta.etag)


def object_name(base_offset: int) -> str:
    """Return the name of the object with this base offset."""
    return f"{base_offset:020d}.batch"


def base_of(key: str) -> int:
    """Return the base offset in an object's name."""
    found = _OBJECT.fullmatch(_name(key))
    assert found is not None, key
    return int(found[1])


def _last_delta(data: bytes, key: str) -> int:
    if len(data) < HEADER_BYTES:
        raise CorruptObject(key, "is shorter than the header of a batch")
    delta = int.from_bytes(data[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4], signed=True)
    if delta < 0:
        raise CorruptObject(key, "ends before it begins")
    return delta


def _chunk(objects: list[Segment]) -> ObjectChunk:
    first = objects[0]
    size_bytes = sum(one.size_bytes for one in objects)
    known = [f"{one.key} {one.size_bytes} {one.modified_ms} {one.etag}" for one in objects]
    etag = hashlib.sha256("\n".join(known).encode()).hexdigest()
    modified_ms = max(one.modified_ms for one in objects)
    return ObjectChunk(first.key, first.base_offset, size_bytes, modified_ms, etag, tuple(objects))


def _name(key: str) -> str:
    return key.rpartition("/")[2]

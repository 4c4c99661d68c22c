"""Partitions as folders of segments: the layout of brokers' directories, backups and tiered storage.

    orders-0/00000000000000000000.log        consecutive record batches
    orders-0/00000000000000000000.index      and .timeindex, .txnindex (`segment_indexes.py`)
    orders-0/00000000000000081240.log        the next segment; its name is its base offset
    orders-0/00000000000000081240.snapshot   the broker's producer state at that offset
    orders-0/leader-epoch-checkpoint, orders-0/partition.metadata

*Reading*: only `.log` files count; indexes are rebuilt. `read_folder` lists a partition, and `pieces` yields
the batches of a segment, a few megabytes at a time. A folder that is read is never written to.

*Writing*: `SegmentWriter` writes a segment and its index files to another folder. A segment without batches
is written too, as a broker does: its name keeps the start of the log. `companions` are copied unchanged: a
compaction changes neither epochs, nor the topic's id, nor producer state.

A folder is refused if another process may be writing to it:

1. A broker's directory has `.lock`, and after a clean stop `.kafka_cleanshutdown` as well. With only the
   first, the broker runs, or has crashed and must recover first.
2. `.swap` files are left by a broker that crashed while it replaced segments: it must start once more.
3. The listing has changed by the end of the work (`PartitionFolder.fingerprint`).

In a directory of partitions, a refused partition does not stop the others. The same directory contains the
committed offsets and start offsets of its partitions (`high_watermarks.py`), and the settings of its topics
(`metadata_log.py`). In a directory of several topics, only those known to be compacted are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lithify.base.allocator import MAX_PIECE_BYTES
from lithify.base.concurrency import each_of
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.format.kernel.headers import whole_batches
from lithify.datasets.kafka.format.kernel.layout import HEADER_BYTES, MAX_OFFSET_DELTA, Records
from lithify.datasets.kafka.format.record_batches import headers
from lithify.datasets.kafka.format.transactions import AbortedTransaction
from lithify.datasets.kafka.layouts.contract import (
    ALL_COMMITTED,
    CommittedOffset,
    ObjectChunk,
    PartitionFolder,
    Segment,
    fingerprint_of,
)
from lithify.datasets.kafka.layouts.high_watermarks import (
    CLEANED,
    STARTS,
    HighWatermarks,
    read_checkpoint,
)
from lithify.datasets.kafka.layouts.metadata_log import METADATA_FOLDER, METADATA_TOPIC, MetadataLog
from lithify.datasets.kafka.layouts.objects import chunks_of
from lithify.datasets.kafka.layouts.segment_indexes import IndexBuilder, markers_of
from lithify.datasets.kafka.layouts.topic_settings import OwnSettings, is_compacted
from lithify.store.keys import join
from lithify.store.local import real_key
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore

PIECE_BYTES = MAX_PIECE_BYTES - (1 << 20)
"""Maximum bytes of a request, unless a batch is larger. Buffers below `MAX_PIECE_BYTES` come from the heap;
larger ones would be mapped anew for each segment."""
LISTINGS_AT_ONCE = 16
CHUNKED_FROM = 256
"""Number of segments from which small ones are read together."""
LOG_SUFFIX = ".log"
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})")
_SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
_COMPANIONS = ("leader-epoch-checkpoint", "partition.metadata")
_LOCK, _STOPPED = ".lock", ".kafka_cleanshutdown"
_TIERED = ".rsm-manifest"
_IS_TIERED = (
    "has segments in tiered storage (.rsm-manifest), in the format of a remote storage manager, and Kafka "
    "does not tier compacted topics; name a folder of a broker's directory"
)
_MAX_OFFSET = (1 << 63) - 1


class SegmentFolders:
    """The partitions at `root` (`contract.LogLayout`)."""

    target_bytes = None

    def __init__(self, store: ObjectStore, root: str, *, is_compacted: bool = False) -> None:
        """`is_compacted` states that the topics are compacted, whatever their own settings say."""
        self._store, self._root, self._is_compacted = store, root, is_compacted
        self._metadata = MetadataLog(store)
        self._refusal: str | None = None
        self._is_listed = False

    @property
    def refusal(self) -> str | None:
        if not self._is_listed:
            self.partitions()
        return self._refusal

    def partitions(self) -> Mapping[str, PartitionFolder]:
        directory = find_partitions(self._store, self._root)
        around = {
            parent: _Around.of(self._store, parent, listed, self._metadata)
            for parent, listed in directory.parents.items()
        }
        topics = {_name_and_number(name)[0] for name in directory.partitions}
        reads = [
            partial(
                self._read,
                name,
                folder,
                around[directory.parent_of(folder, self._store)],
                is_only=len(topics) == 1,
            )
            for name, folder in directory.partitions.items()
        ]
        found = dict(zip(directory.partitions, each_of(reads, LISTINGS_AT_ONCE), strict=True))
        refusals = [folder.refusal for folder in found.values()]
        self._refusal, self._is_listed = (refusals[0] if all(refusals) else None), True
        return found

    def _read(self, name: str, folder: str, around: _Around, *, is_only: bool) -> PartitionFolder:
        """Read a partition's listing. `is_only` is false if the directory has several topics."""
        topic, number = _name_and_number(name)
        try:
            found = read_folder(self._store, folder, around.watermarks.committed(topic, number))
        except (Refused, CorruptObject, DatasetNotFound) as error:
            if folder == self._root.strip("/"):
                raise
            return PartitionFolder(folder, (), (), "", refusal=str(error))
        configs = around.configs.get(topic)
        refusal = "" if self._is_compacted else self._policy_refusal(name, configs, around, is_only=is_only)
        try:
            OwnSettings.of(configs)
        except Refused as error:
            refusal = str(error)
        found = starting_at(found, around.start_of(topic, number))
        return replace(found, configs=configs, refusal=refusal, chunks=_chunks(found))

    def _policy_refusal(
        self, name: str, configs: Mapping[str, str] | None, around: _Around, *, is_only: bool
    ) -> str:
        """Return why the partition's topic must be taken for one that is not compacted; empty if it need
        not."""
        advice = "if it is compacted all the same, set kafka.cleanup_policy to compact"
        if configs is None:
            is_known = is_only or _name_and_number(name) in around.cleaned
            return "" if is_known else f"has a cleanup.policy that is not known; {advice}, or name it alone"
        policy = configs.get("cleanup.policy")
        if policy is None:
            return f"has no cleanup.policy, and the default of brokers is delete; {advice}"
        if is_compacted(policy):
            return ""
        return f"has cleanup.policy {policy}, so its older records must be kept; {advice}"

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """Raise `Refused` for a broker's directory or a folder directly in it: the broker could not start."""
        folder = real_key(store, folder.strip("/"))
        places = {folder, folder.rpartition("/")[0]}
        if any(_name(meta.key) == _LOCK for place in places for meta in store.folder(place).objects):
            raise Refused(
                f"{folder}: lies in a broker's directory, and a broker does not start in a directory with "
                "folders other than partitions; name another output"
            )


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of partitions."""

    parents: Mapping[str, FolderListing]
    """The directories that contain the partitions: one, unless some are symbolic links."""
    partitions: Mapping[str, str]
    """The folders to read, by name (`orders-0`), in the order of topics and numbers."""

    @staticmethod
    def parent_of(folder: str, store: ObjectStore) -> str:
        return real_key(store, folder).rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class _Around:
    """The evidence about partitions in the directory that contains them."""

    watermarks: HighWatermarks
    starts: Mapping[tuple[str, int], int]
    cleaned: Container[tuple[str, int]]
    """Partitions that the broker's own cleaner has cleaned, so that they are compacted."""
    configs: Mapping[str, Mapping[str, str]]
    """Settings of the topics; empty if they are not known."""

    @classmethod
    def of(cls, store: ObjectStore, root: str, listed: FolderListing, metadata: MetadataLog) -> _Around:
        starts, cleaned = (read_checkpoint(store, root, listed, name) or {} for name in (STARTS, CLEANED))
        folder = join(root, METADATA_FOLDER)
        configs = metadata.configs(folder) if folder in listed.folders else {}
        return cls(HighWatermarks.of(store, root, listed), starts, cleaned, configs)

    def start_of(self, topic: str, number: int) -> int:
        """Return the offset before which a partition's records are deleted."""
        return self.starts.get((topic, number), 0)


def _chunks(folder: PartitionFolder) -> tuple[ObjectChunk, ...]:
    """Return chunks of neighbouring segments if there are many small ones, so that a task has enough to read.
    The newest segment is alone, and a chunk does not reach over the end of what is committed."""
    *settled, newest = folder.segments
    if len(settled) < CHUNKED_FROM:
        return ()
    end = folder.committed.end
    bound = next((one.base_offset for one in reversed(settled) if one.base_offset <= end), 0)
    return (*chunks_of(settled, bound), *chunks_of([newest], bound))


def find_partitions(store: ObjectStore, root: str) -> Directory:
    """Return the partitions at `root`, which is one of them or holds them.

    Raises `DatasetNotFound` and `Refused`.
    """
    root = root.strip("/")
    listed = store.folder(root)
    name = root.rpartition("/")[2]
    if any(_SEGMENT.fullmatch(_name(meta.key)) for meta in listed.objects):
        if name.startswith(METADATA_TOPIC):
            raise Refused(f"{root}: is the cluster's own metadata, which only its controllers may compact")
        if not _PARTITION.fullmatch(name):
            raise Refused(f"{root}: a folder of segments must be named after its partition, such as orders-0")
        found = {name: root}
    else:
        names = {_name(folder): folder for folder in listed.folders if _PARTITION.fullmatch(_name(folder))}
        found = {name: names[name] for name in sorted(names, key=_name_and_number)}
        found = {name: folder for name, folder in found.items() if not name.startswith(METADATA_TOPIC)}
    if not found:
        _check_not_tiered(store, root, listed)
        raise DatasetNotFound(f"{root}: there are neither segments (.log) nor folders of partitions")
    parents = {}
    for parent in {Directory.parent_of(folder, store) for folder in found.values()}:
        parents[parent] = around = listed if parent == root else store.folder(parent)
        _check_stopped(parent, around)
    return Directory(parents, found)


def _check_not_tiered(store: ObjectStore, root: str, listed: FolderListing) -> None:
    """Raise `Refused` if there are segments of a remote storage manager, at most two folders below."""
    for _ in range(3):
        if any(_name(meta.key).endswith(_TIERED) for meta in listed.objects):
            raise Refused(f"{root}: {_IS_TIERED}")
        if not listed.folders:
            return
        listed = store.folder(listed.folders[0])


def read_folder(
    store: ObjectStore, folder: str, committed: CommittedOffset = ALL_COMMITTED
) -> PartitionFolder:
    """Read the listing of the partition in this folder.

    Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
    """
    listed = sorted(store.folder(folder).objects, key=lambda meta: meta.key)
    if any(_name(meta.key).endswith(_TIERED) for meta in listed):
        raise Refused(f"{folder}: {_IS_TIERED}")
    segments = []
    for meta in listed:
        name = _name(meta.key)
        if name.endswith(".swap"):
            raise Refused(
                f"{meta.key}: a broker died while it replaced segments; start it and stop it cleanly first"
            )
        if (found := _SEGMENT.fullmatch(name)) is None:
            if name.endswith(LOG_SUFFIX):
                raise Refused(f"{meta.key}: a segment must be named by its base offset in 20 digits")
            continue
        if (base_offset := int(found[1])) > _MAX_OFFSET:
            raise CorruptObject(meta.key, "there is no such offset")
        segments.append(Segment(meta.key, base_offset, meta.size, meta.last_modified_ms, meta.etag))
    if not segments:
        raise DatasetNotFound(f"{folder}: there are no segments (.log)")
    owner = f"high watermark {committed.end}" if committed.end < NO_BOUND else ""
    return PartitionFolder(
        folder, tuple(segments), _companions(listed), fingerprint_of(listed, owner), committed=committed
    )


def starting_at(folder: PartitionFolder, start: int) -> PartitionFolder:
    """Return the partition without the segments whose records all lie before its start offset."""
    bases = [segment.base_offset for segment in folder.segments]
    if start <= bases[0]:
        return folder
    first = bisect_right(bases, start) - 1
    fingerprint = fingerprint_of((), f"{folder.fingerprint} start {start}")
    return replace(folder, segments=folder.segments[first:], start=start, fingerprint=fingerprint)


def pieces(
    store: ObjectStore, segment: Segment, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[str, memoryview]]:
    """Yield the segment's batches, several whole ones at a time, with a name for errors. An incomplete batch
    at the end is yielded too, and refused by the decoder. A piece is valid until the next but one is
    requested: pieces reuse memory, since allocating it costs more than filling it."""
    position = 0
    wanted = piece_bytes
    memory, other = bytearray(), bytearray()
    while position < segment.size_bytes:
        length = min(wanted, segment.size_bytes - position)
        memory = memory if len(memory) >= length else bytearray(length)
        data = memoryview(memory)[:length]
        store.get_range_into(segment.key, position, data)
        is_last = position + length == segment.size_bytes
        whole, next_bytes = (length, 0) if is_last else _whole(data)
        wanted = piece_bytes
        if not whole:  # a batch larger than a piece
            wanted = next_bytes
            continue
        name = segment.key if not position else f"{segment.key}, from byte {position}"
        yield name, data[:whole]
        position += whole
        memory, other = other, memory


class SplitWriter:
    """Writes segments to a folder, and begins another one before one is too large for its index files.
    `close` makes the last one visible; those before are visible earlier, and belong to no folder until it is
    published."""

    def __init__(
        self, store: ObjectStore, folder: str, base_offset: int, *, limit_bytes: int = MAX_OFFSET_DELTA
    ) -> None:
        self._store, self._folder, self._limit_bytes = store, folder, limit_bytes
        self._writer = SegmentWriter(store, folder, base_offset)
        self._closed: list[Segment] = []

    def write(self, data: bytes | memoryview, aborted: tuple[AbortedTransaction, ...]) -> None:
        """Append whole batches like `SegmentWriter.write`."""
        if not data:
            return
        batches, view = headers(data, self._writer.key), memoryview(data)
        ends = batches["position"] + batches["size"]
        while len(batches):
            base, start = self._writer.base_offset, int(batches["position"][0])
            fits = (self._writer.size_bytes + ends - start <= self._limit_bytes) & (
                batches["last_offset"] - base <= MAX_OFFSET_DELTA
            )
            count = int(fits.argmin()) if not fits.all() else len(batches)
            if not count and (self._writer.size_bytes or batches["base_offset"][0] > base):
                self._closed.append(self._writer.close())
                first = int(batches["base_offset"][0])
                self._writer = SegmentWriter(self._store, self._folder, first)
                continue
            count = max(count, 1)  # a batch that is too large alone is refused
            part = batches[:count].copy()
            part["position"] -= start
            self._writer.append(part, view[start : ends[count - 1]], aborted)
            batches, ends = batches[count:], ends[count:]

    def close(self) -> tuple[Segment, ...]:
        """Publish the last segment, and return all."""
        return (*self._closed, self._writer.close())

    def abort(self) -> None:
        """Discard the last segment; harmless after `close`."""
        self._writer.abort()


class SegmentWriter:
    """Writes a new segment to a folder. `close` makes it visible, after its index files."""

    def __init__(self, store: ObjectStore, folder: str, base_offset: int) -> None:
        self.key = join(folder, f"{base_offset:020d}{LOG_SUFFIX}")
        self.base_offset = base_offset
        self._store = store
        self._indexes = IndexBuilder(base_offset)
        self._writer = store.open_writer(self.key)

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def write(self, data: bytes | memoryview, aborted: tuple[AbortedTransaction, ...]) -> None:
        """Append whole batches, and index those aborted transactions whose markers are among them."""
        if data:
            self.append(headers(data, self.key), data, aborted)

    def append(
        self, batches: Records, data: bytes | memoryview, aborted: tuple[AbortedTransaction, ...]
    ) -> None:
        """Append batches whose headers are known already, so that checksums are not computed twice."""
        self._indexes.add(batches)
        self._indexes.add_aborted(markers_of(batches, aborted))
        self._writer.write(data)

    def close(self) -> Segment:
        """Publish the index files, then the segment."""
        for suffix, data in self._indexes.files().items():
            self._store.put(self.key.removesuffix(LOG_SUFFIX) + suffix, data)
        self._writer.commit()
        return Segment(self.key, self._indexes.base_offset, self._indexes.size_bytes)

    def abort(self) -> None:
        """Discard the segment; harmless after `close`."""
        self._writer.abort()


def _whole(data: memoryview) -> tuple[int, int]:
    """Return the lengths of the whole batches and of the next batch. Invalid bytes count as whole, so that
    the decoder refuses them."""
    size, following = whole_batches(np.frombuffer(data, np.uint8).ctypes.data, len(data), len(data))
    return (size, max(following, HEADER_BYTES)) if following else (len(data), 0)


def _check_stopped(directory: str, listed: FolderListing) -> None:
    names = {_name(meta.key) for meta in listed.objects}
    if _LOCK in names and _STOPPED not in names:
        raise Refused(
            f"{directory}: a broker runs in this directory, or died in it ({_LOCK} and no {_STOPPED}); stop "
            f"it cleanly, or copy its folders without {_LOCK}"
        )


def _companions(listed: list[ObjectMeta]) -> tuple[str, ...]:
    """Return the companions; of snapshots only the last: a broker drops others that belong to no segment."""
    snapshots = [meta.key for meta in listed if _SNAPSHOT.fullmatch(_name(meta.key))]
    return (*(meta.key for meta in listed if _name(meta.key) in _COMPANIONS), *snapshots[-1:])


def is_segment(key: str) -> bool:
    """Return whether this is the key of a segment."""
    return key.endswith(LOG_SUFFIX)


def number_of(partition: str) -> int:
    """Return the number in a partition's name."""
    return _name_and_number(partition)[1]


def topic_of(partition: str) -> str:
    """Return the topic in a partition's name."""
    return _name_and_number(partition)[0]


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _name_and_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)

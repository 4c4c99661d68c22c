"""Partitions as folders of segments, as brokers keep them, and as backups and tiered storage take them over.

    orders-0/00000000000000000000.log        record batches, one behind the other
    orders-0/00000000000000000000.index      and .timeindex, .txnindex (`segment_indexes.py`)
    orders-0/00000000000000081240.log        the next segment; its name is its base offset
    orders-0/00000000000000081240.snapshot   what the broker knew of producers at that offset
    orders-0/leader-epoch-checkpoint, orders-0/partition.metadata

*Reading*: only `.log` files count; indexes are made anew. `read_folder` tells a partition from its listing,
`pieces` gives the whole batches of a segment, a few megabytes at a time. Nothing is ever written into a
folder that is read.

*Writing*: `SegmentWriter` puts a segment and its index files into another folder. A segment without batches
is written too, as a broker does: its name keeps the start of the log. `companions` are taken over as they
are: a compaction changes neither epochs, nor the topic's id, nor what producers may do next.

Refused is a folder that somebody may be writing:

1. A directory of a broker has `.lock`, and after a clean stop `.kafka_cleanshutdown` as well. With the first
   and without the second the broker runs, or has died and has to recover first.
2. `.swap` files are left by a broker that died while it replaced segments: it has to start once more.
3. A listing that is not the same any more when the work is done (`PartitionFolder.fingerprint`).

How far its partitions are committed is beside them (`high_watermarks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lithify.base.allocator import MAX_PIECE_BYTES
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.format.kernel.headers import whole_batches
from lithify.datasets.kafka.format.kernel.layout import HEADER_BYTES
from lithify.datasets.kafka.format.record_batches import headers
from lithify.datasets.kafka.format.transactions import AbortedTransaction
from lithify.datasets.kafka.layouts.contract import (
    ALL_COMMITTED,
    CommittedOffset,
    PartitionFolder,
    Segment,
    fingerprint_of,
)
from lithify.datasets.kafka.layouts.high_watermarks import HighWatermarks
from lithify.datasets.kafka.layouts.segment_indexes import IndexBuilder, markers_of
from lithify.store.keys import join
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore

PIECE_BYTES = MAX_PIECE_BYTES - (1 << 20)
"""The most that a request reads, unless a batch is larger. The heap gives less than `MAX_PIECE_BYTES`: what
is as large would be mapped anew for each segment."""
LOG_SUFFIX = ".log"
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})")
_SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
_COMPANIONS = ("leader-epoch-checkpoint", "partition.metadata")
_LOCK, _STOPPED = ".lock", ".kafka_cleanshutdown"
_MAX_OFFSET = (1 << 63) - 1


class SegmentFolders:
    """The partitions at `root` (`contract.Layout`)."""

    target_bytes = None
    refusal = None

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store, self._root = store, root

    def partitions(self) -> Mapping[str, PartitionFolder]:
        directory = find_partitions(self._store, self._root)
        watermarks = HighWatermarks.of(self._store, directory.root, directory.listed)
        return {
            name: read_folder(self._store, folder, watermarks.committed(*_name_and_number(name)))
            for name, folder in directory.partitions.items()
        }

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """`Refused` for a directory of a broker, or a folder directly in one, which would not start there any
        more."""
        folder = folder.strip("/")
        places = {folder, folder.rpartition("/")[0]}
        if any(_name(meta.key) == _LOCK for place in places for meta in store.folder(place).objects):
            raise Refused(
                f"{folder}: lies in a broker's directory, and a broker starts in none with folders that are "
                "no partitions; name another output"
            )


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder of partitions."""

    root: str
    listed: FolderListing
    partitions: Mapping[str, str]
    """The folders that are read, by name (`orders-0`), in the order of their numbers."""


def find_partitions(store: ObjectStore, root: str) -> Directory:
    """Return the directory of the partitions at `root`, which is one of them or holds them.

    Raises `DatasetNotFound` and `Refused`.
    """
    root = root.strip("/")
    listed = store.folder(root)
    parent, _, name = root.rpartition("/")
    if any(_SEGMENT.fullmatch(_name(meta.key)) for meta in listed.objects):
        if not _PARTITION.fullmatch(name):
            raise Refused(f"{root}: a folder of segments is named after its partition, like orders-0")
        around = store.folder(parent)
        _check_stopped(parent, around)
        return Directory(parent, around, {name: root})
    found = {_name(folder): folder for folder in listed.folders if _PARTITION.fullmatch(_name(folder))}
    if not found:
        raise DatasetNotFound(f"{root}: there are neither segments (.log) nor folders of partitions")
    topics = {_name_and_number(name)[0] for name in found}
    if len(topics) > 1:
        some = ", ".join(sorted(topics)[:3])
        raise Refused(f"{root}: there are partitions of {len(topics)} topics ({some}); name one partition")
    _check_stopped(root, listed)
    partitions = dict(sorted(found.items(), key=lambda item: _name_and_number(item[0])))
    return Directory(root, listed, partitions)


def read_folder(
    store: ObjectStore, folder: str, committed: CommittedOffset = ALL_COMMITTED
) -> PartitionFolder:
    """The partition in this folder.

    Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
    """
    listed = sorted(store.folder(folder).objects, key=lambda meta: meta.key)
    segments = []
    for meta in listed:
        name = _name(meta.key)
        if name.endswith(".swap"):
            raise Refused(
                f"{meta.key}: a broker died while it replaced segments; let it start and stop first"
            )
        if (found := _SEGMENT.fullmatch(name)) is None:
            if name.endswith(LOG_SUFFIX):
                raise Refused(f"{meta.key}: a segment's name is its base offset in 20 digits")
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


def pieces(
    store: ObjectStore, segment: Segment, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[str, memoryview]]:
    """The segment's batches, several whole ones at a time, each time with a name for errors. What does not
    end with a whole batch is given as it is, for who decodes it to refuse. A piece stays as it is until the
    next but one is asked for: pieces share memory, which costs more to take anew than to fill."""
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


class SegmentWriter:
    """A new segment in a folder. It is there when `close` returns; its index files are before."""

    def __init__(self, store: ObjectStore, folder: str, base_offset: int) -> None:
        self.key = join(folder, f"{base_offset:020d}{LOG_SUFFIX}")
        self._store = store
        self._indexes = IndexBuilder(base_offset)
        self._writer = store.open_writer(self.key)

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def write(self, data: bytes | memoryview, aborted: tuple[AbortedTransaction, ...]) -> None:
        """Append whole batches; of the aborted transactions those count whose markers are among them."""
        if not data:
            return
        batches = headers(data, self.key)
        self._indexes.add(batches)
        self._indexes.add_aborted(markers_of(batches, aborted))
        self._writer.write(data)

    def close(self) -> Segment:
        """Publish index files and segment."""
        for suffix, data in self._indexes.files().items():
            self._store.put(self.key.removesuffix(LOG_SUFFIX) + suffix, data)
        self._writer.commit()
        return Segment(self.key, self._indexes.base_offset, self._indexes.size_bytes)

    def abort(self) -> None:
        """Leave the segment unwritten; harmless after `close`."""
        self._writer.abort()


def _whole(data: memoryview) -> tuple[int, int]:
    """How many bytes of these are whole batches, and how long the next batch is. What can be none is whole,
    for who decodes it to refuse."""
    size, following = whole_batches(np.frombuffer(data, np.uint8).ctypes.data, len(data), len(data))
    return (size, max(following, HEADER_BYTES)) if following else (len(data), 0)


def _check_stopped(directory: str, listed: FolderListing) -> None:
    names = {_name(meta.key) for meta in listed.objects}
    if _LOCK in names and _STOPPED not in names:
        raise Refused(
            f"{directory}: a broker works in this directory, or has died in it ({_LOCK} and no {_STOPPED}); "
            "stop it cleanly, or take a copy"
        )


def _companions(listed: list[ObjectMeta]) -> tuple[str, ...]:
    """Of snapshots only the last: a broker drops others that belong to no segment."""
    snapshots = [meta.key for meta in listed if _SNAPSHOT.fullmatch(_name(meta.key))]
    return (*(meta.key for meta in listed if _name(meta.key) in _COMPANIONS), *snapshots[-1:])


def number_of(partition: str) -> int:
    """The number of a partition with this name."""
    return _name_and_number(partition)[1]


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _name_and_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)

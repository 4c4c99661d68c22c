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

The committed offsets of the partitions are in the same directory (`high_watermarks.py`).
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
"""Maximum bytes of a request, unless a batch is larger. Buffers below `MAX_PIECE_BYTES` come from the heap;
larger ones would be mapped anew for each segment."""
LOG_SUFFIX = ".log"
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})")
_SNAPSHOT = re.compile(r"[0-9]{20}\.snapshot")
_COMPANIONS = ("leader-epoch-checkpoint", "partition.metadata")
_LOCK, _STOPPED = ".lock", ".kafka_cleanshutdown"
_MAX_OFFSET = (1 << 63) - 1


class SegmentFolders:
    """The partitions at `root` (`contract.LogLayout`)."""

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
        """Raise `Refused` for a broker's directory or a folder directly in it: the broker could not start."""
        folder = folder.strip("/")
        places = {folder, folder.rpartition("/")[0]}
        if any(_name(meta.key) == _LOCK for place in places for meta in store.folder(place).objects):
            raise Refused(
                f"{folder}: lies in a broker's directory, and a broker does not start in a directory with "
                "folders other than partitions; name another output"
            )


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of partitions."""

    root: str
    listed: FolderListing
    partitions: Mapping[str, str]
    """The folders to read, by name (`orders-0`), in the order of their numbers."""


def find_partitions(store: ObjectStore, root: str) -> Directory:
    """Return the directory of the partitions at `root`, which is one of them or holds them.

    Raises `DatasetNotFound` and `Refused`.
    """
    root = root.strip("/")
    listed = store.folder(root)
    parent, _, name = root.rpartition("/")
    if any(_SEGMENT.fullmatch(_name(meta.key)) for meta in listed.objects):
        if not _PARTITION.fullmatch(name):
            raise Refused(f"{root}: a folder of segments must be named after its partition, such as orders-0")
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
    """Read the listing of the partition in this folder.

    Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
    """
    listed = sorted(store.folder(folder).objects, key=lambda meta: meta.key)
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


class SegmentWriter:
    """Writes a new segment to a folder. `close` makes it visible, after its index files."""

    def __init__(self, store: ObjectStore, folder: str, base_offset: int) -> None:
        self.key = join(folder, f"{base_offset:020d}{LOG_SUFFIX}")
        self._store = store
        self._indexes = IndexBuilder(base_offset)
        self._writer = store.open_writer(self.key)

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def write(self, data: bytes | memoryview, aborted: tuple[AbortedTransaction, ...]) -> None:
        """Append whole batches, and index those aborted transactions whose markers are among them."""
        if not data:
            return
        batches = headers(data, self.key)
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
            "it cleanly, or take a copy"
        )


def _companions(listed: list[ObjectMeta]) -> tuple[str, ...]:
    """Return the companions; of snapshots only the last: a broker drops others that belong to no segment."""
    snapshots = [meta.key for meta in listed if _SNAPSHOT.fullmatch(_name(meta.key))]
    return (*(meta.key for meta in listed if _name(meta.key) in _COMPANIONS), *snapshots[-1:])


def number_of(partition: str) -> int:
    """Return the number in a partition's name."""
    return _name_and_number(partition)[1]


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _name_and_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)

"""Values of a SlateDB database: the contents of its manifest and its compactions file.

All values are immutable. They mirror the wire format field by field, with references resolved: a view carries
its physical SST instead of naming it. Codecs (`manifest`, `ledger`) turn them into bytes and back, and lose
nothing that another program wrote.

Words: a *tree* is one LSM tree, the root tree or one named segment. Its L0 list is newest first; its sorted
runs are in strictly descending id, which is also newest first. A *view* is a reference, with an id of its
own, to a physical SST; it may show only a key range of that SST.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

from lithify.base.ids import Ulid

I64_MIN = -(1 << 63)
MAX_SST_BYTES = 1 << 48
"""No store holds a larger object."""
MAX_METADATA_BYTES = 256 << 20
"""No filter, index or stats block is larger, stored or unpacked: the index of a million blocks is below 100
MB."""


class Codec(IntEnum):
    """Block compression, numbered as in the SST's info."""

    NONE = 0
    SNAPPY = 1
    ZLIB = 2
    LZ4 = 3
    ZSTD = 4


class FilterFormat(IntEnum):
    """How the filter block is framed."""

    LEGACY = 0
    COMPOSITE = 1


class SstType(IntEnum):
    """The kind of an SST's content."""

    COMPACTED = 0
    WAL = 1


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys. `None` as a bound means unbounded on that side."""

    start: bytes | None = None
    """Inclusive lower bound. SlateDB allows no exclusive one."""
    end: bytes | None = None
    end_inclusive: bool = False

    def contains(self, key: bytes) -> bool:
        """Return whether `key` lies in the range."""
        if self.start is not None and key < self.start:
            return False
        if self.end is None:
            return True
        return key <= self.end if self.end_inclusive else key < self.end

    def intersect(self, other: KeyRange) -> KeyRange:
        """Return the keys in both ranges (possibly none, see `is_empty`)."""
        start = max((s for s in (self.start, other.start) if s is not None), default=None)
        end, inclusive = self.end, self.end_inclusive
        if other.end is not None and (end is None or (other.end, other.end_inclusive) < (end, inclusive)):
            end, inclusive = other.end, other.end_inclusive
        return KeyRange(start, end, inclusive)

    @property
    def is_empty(self) -> bool:
        """Return whether no key can lie in the range."""
        if self.end is None:
            return False
        if self.start is None:
            return not self.end and not self.end_inclusive
        return self.start > self.end or (self.start == self.end and not self.end_inclusive)


EVERYTHING = KeyRange()


@dataclass(frozen=True, slots=True)
class SstInfo:
    """The descriptor of an SST (`SsTableInfo`). Offsets and lengths are bytes; lengths include
    the four bytes of the checksum."""

    first_entry: bytes | None
    """First key, inclusive. Absent only in SSTs of a WAL."""
    last_entry: bytes | None
    """Last key, inclusive; absent in SSTs of old databases, where it means an unbounded end."""
    index_offset: int
    index_len: int
    filter_offset: int
    filter_len: int
    stats_offset: int
    stats_len: int
    compression: Codec = Codec.NONE
    sst_type: SstType = SstType.COMPACTED
    filter_format: FilterFormat = FilterFormat.COMPOSITE

    @property
    def data_end(self) -> int:
        """Return the end of the data blocks."""
        return self.filter_offset if self.filter_len else self.index_offset


def layout_problem(info: SstInfo) -> str | None:
    """Return why no SST can have this `info`, or `None`. Call it before using its numbers. (Manifests and
    ledgers are read regardless of them: one wrong description must not harm other compactions.)"""
    for what, offset, length in (
        ("filter", info.filter_offset, info.filter_len),
        ("index", info.index_offset, info.index_len),
        ("stats", info.stats_offset, info.stats_len),
    ):
        if offset > MAX_SST_BYTES or length > MAX_METADATA_BYTES:
            return f"its {what} cannot have {length} bytes at {offset}"
    if not info.index_len:
        return "it has no index"
    return None


@dataclass(frozen=True, slots=True)
class Sst:
    """A physical SST: its id, its descriptor and its format version (1 or 2)."""

    id: Ulid
    info: SstInfo
    format_version: int = 2

    @property
    def size_bytes(self) -> int:
        """Return the size that SlateDB's scheduler uses: everything before the stats."""
        return self.info.index_offset + self.info.index_len


@dataclass(frozen=True, slots=True)
class View:
    """A reference to an SST that shows `visible_range` of it (all of it when absent)."""

    id: Ulid
    sst: Sst
    visible_range: KeyRange | None = None

    @property
    def effective_range(self) -> KeyRange:
        """Return the keys this view can show: from the SST's first to its last, within the visible range."""
        own = KeyRange(self.sst.info.first_entry, self.sst.info.last_entry, end_inclusive=True)
        return own if self.visible_range is None else own.intersect(self.visible_range)


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Views with ascending keys that do not overlap (one key's versions may straddle two)."""

    id: int
    views: tuple[View, ...]

    @property
    def size_bytes(self) -> int:
        return sum(view.sst.size_bytes for view in self.views)


@dataclass(frozen=True, slots=True)
class Tree:
    """One LSM tree. The root tree has the empty prefix."""

    prefix: bytes = b""
    last_compacted_l0: Ulid | None = None
    """View id of the newest L0 that a compaction has consumed (the marker)."""
    l0: tuple[View, ...] = ()
    """Newest first."""
    runs: tuple[SortedRun, ...] = ()
    """Strictly descending id, newest first."""

    def views(self) -> Iterator[View]:
        """Yield every view of the tree, in read order."""
        return chain(self.l0, (view for run in self.runs for view in run.views))


@dataclass(frozen=True, slots=True)
class ExternalDb:
    """SSTs of another database that this clone still reads."""

    path: str
    """Key of the other database's root, relative to the store's root."""
    source_checkpoint_id: uuid.UUID
    final_checkpoint_id: uuid.UUID | None
    sst_ids: tuple[Ulid, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Protects one manifest version, and the SSTs it names, from garbage collection."""

    id: uuid.UUID
    manifest_id: int
    expire_time_s: int
    """Wall-clock seconds; 0 means never."""
    create_time_s: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the database's state. Lithify changes only `root.l0`/`runs`/marker, the trees of
    `segments`, `checkpoints`, `external_dbs` and `compactor_epoch`."""

    initialized: bool
    writer_epoch: int
    compactor_epoch: int
    root: Tree
    replay_after_wal_id: int = 0
    wal_id_last_seen: int = 0
    last_l0_seq: int = 0
    last_l0_clock_tick: int = I64_MIN
    """Milliseconds; the clock that decides whether a row has expired."""
    recent_snapshot_min_seq: int = 0
    sequence_tracker: bytes | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    external_dbs: tuple[ExternalDb, ...] = ()
    segments: tuple[Tree, ...] = ()
    """Ascending prefixes, none a prefix of another."""
    segment_extractor_name: str | None = None
    format_version: int = field(default=2, compare=False)
    """Format version of the file it was read from."""

    def trees(self) -> tuple[Tree, ...]:
        """Return the root tree, then the segments."""
        return (self.root, *self.segments)

    def views_by_sst(self) -> dict[Ulid, View]:
        """Return a view of each SST that the manifest names, by the SST's id."""
        return {view.sst.id: view for tree in self.trees() for view in tree.views()}

    def tree(self, prefix: bytes) -> Tree | None:
        """Return the tree of that prefix (`b""` is the root), or `None` if there is no such segment."""
        return next((tree for tree in self.trees() if tree.prefix == prefix), None)


@dataclass(frozen=True, slots=True)
class TieredSpec:
    """Merge L0 views and sorted runs of one tree into the run `destination`."""

    segment: bytes
    l0_view_ids: tuple[Ulid, ...]
    """Newest first; they must be the oldest L0s of the tree."""
    sorted_runs: tuple[int, ...]
    """Newest (highest id) first."""
    destination: int


@dataclass(frozen=True, slots=True)
class DrainSpec:
    """Drop the listed L0 views and sorted runs of one segment."""

    segment: bytes
    l0_view_ids: tuple[Ulid, ...]
    sorted_runs: tuple[int, ...]


Spec = TieredSpec | DrainSpec


def tree_label(prefix: bytes) -> str:
    """Return the display name of the tree of that prefix."""
    return f"segment {prefix.hex()}" if prefix else "root"

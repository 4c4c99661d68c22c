"""The input side of a merge: from the SSTs of a source to windows of blocks in memory.

1. The bounds of an SST are what the task's range and the SST's visible range have in common. SSTs
   that cannot hold a key inside their bounds are left out.
2. All keys of the task share a common prefix, which follows from the first and last keys of the SSTs
   and their bounds.
3. An SST is opened when its source gets there: its index is read and cut to the blocks that may hold
   keys inside the bounds. Row decoding skips what the first and last of them hold beyond.

Invariant: at any time a source holds its windows, one index cut to its range, and the key buffer. The
offsets handed to compiled code ascend, and every block has room for its checksum and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lithify.datasets.slatedb.index import BlockIndex, decode_blocks
from lithify.datasets.slatedb.kernel.buffers import Bound, Bytes, bytes_of, new_bytes
from lithify.datasets.slatedb.kernel.crc32 import crc32_of
from lithify.datasets.slatedb.kernel.layout import CHECKSUM_BYTES, REASONS, Status
from lithify.datasets.slatedb.kernel.memory import SLACK
from lithify.datasets.slatedb.kernel.windows import Windows, window_bytes
from lithify.datasets.slatedb.model import KeyRange, layout_problem
from lithify.datasets.slatedb.sst import unseal
from lithify.datasets.slatedb.task import SourceSst
from lithify.errors import CorruptObject
from lithify.store.objects import ObjectStore

FIRST_KEY_CAPACITY = 1 << 10
_FIRST_UNPACKED_CAPACITY = 64 << 10
_GREATEST_PREFIX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Keys from `start` (inclusive) to `end` (exclusive)."""

    start: bytes | None
    end: bytes | None


def held_range(source: SourceSst) -> KeyRange:
    """From the first to the last key of an SST."""
    info = source.sst.info
    if info.first_entry is None:
        raise CorruptObject(source.key, "it does not say its first key")
    if info.last_entry is None:  # written by an old client
        return KeyRange(info.first_entry)
    if info.first_entry > info.last_entry:
        raise CorruptObject(source.key, f"its first key is behind its last: {info.first_entry!r}")
    return KeyRange(info.first_entry, info.last_entry, end_inclusive=True)


def bounds_of(source: SourceSst, key_range: KeyRange) -> Bounds | None:
    """The keys of an SST that the task takes; `None` when there can be none."""
    wanted = source.visible.intersect(key_range)
    held = held_range(source)
    if wanted.is_empty or wanted.intersect(held).is_empty:
        return None
    # The least key greater than an inclusive end is that key and a zero byte.
    end = wanted.end + b"\0" if wanted.end is not None and wanted.end_inclusive else wanted.end
    return Bounds(wanted.start, end)


def common_prefix(parts: Sequence[tuple[SourceSst, Bounds]]) -> bytes:
    """The bytes with which every key inside the bounds starts."""
    lowest: bytes | None = None
    highest: bytes | None = None
    for source, bounds in parts:
        first = max(source.sst.info.first_entry or b"", bounds.start or b"")
        lasts = [key for key in (source.sst.info.last_entry, bounds.end) if key is not None]
        if not lasts:
            return b""
        lowest = first if lowest is None else min(lowest, first)
        highest = min(lasts) if highest is None else max(highest, min(lasts))
    if lowest is None or highest is None:
        return b""
    shared = 0
    while shared < min(len(lowest), len(highest)) and lowest[shared] == highest[shared]:
        shared += 1
    return lowest[:shared]


def read_index(store: ObjectStore, source: SourceSst) -> BlockIndex:
    """The block index of an SST."""
    return read_blocks(store, source, Bounds(None, None))[1]


def read_blocks(store: ObjectStore, source: SourceSst, bounds: Bounds) -> tuple[int, BlockIndex]:
    """The part of an SST's block index that has all blocks inside the bounds, and its first block."""
    info = source.sst.info
    name = f"{source.key} (index)"
    if problem := layout_problem(info):
        raise CorruptObject(source.key, problem)
    memory = new_bytes(info.index_len)[: info.index_len]
    store.get_range_into(source.key, info.index_offset, memory.data)
    raw = unseal(memory.data.toreadonly(), info.compression, name, crc32_of)
    return decode_blocks(raw, info, name, bounds.start, bounds.end)


def blocks_below(index: BlockIndex, key: bytes) -> int:
    """How many blocks have an index key below `key`."""
    low, high = 0, len(index)
    while low < high:
        middle = (low + high) // 2
        if index.key(middle) < key:
            low = middle + 1
        else:
            high = middle
    return low


def blocks_inside(index: BlockIndex, bounds: Bounds) -> tuple[int, int]:
    """First and one past the last block that may hold keys inside the bounds."""
    # A block whose index key equals the start may follow one that ends with versions of that key.
    first = 0 if bounds.start is None else max(0, blocks_below(index, bounds.start) - 1)
    last = len(index) if bounds.end is None else blocks_below(index, bounds.end)
    return first, last


class Input:
    """One source of a merge and its record."""

    def __init__(
        self,
        store: ObjectStore,
        record: np.void,
        parts: Sequence[tuple[SourceSst, Bounds]],
        common: bytes,
        window_size: int,
        readers: Executor | None,
        memory: Bytes,
    ) -> None:
        """`memory` is for the first window."""
        self.bound = Bound(record)
        self.bytes_read = 0
        self._store = store
        self._window_size = window_size
        self._readers = readers
        self._windows: Windows | None = None
        self._memory: Bytes | None = memory
        self._common = common
        self._parts = iter(parts)
        self._left = len(parts)
        self._part: SourceSst | None = None
        self._first_block = 0
        self.bound.attach("key", new_bytes(FIRST_KEY_CAPACITY))
        self.bound.attach("common", bytes_of(common))
        self.bound["common_len"] = len(common)
        self.bound["key_capacity"] = FIRST_KEY_CAPACITY
        self.bound["more_ssts"] = 1

    def start(self) -> None:
        """Open the first SST and read its first window, before compiled code asks for them."""
        self._refill()
        self._refill()

    def provide(self, status: int) -> bool:
        """Provide what compiled code asked of this source; false when it did not ask for anything."""
        match status:
            case Status.NEED_INPUT:
                self._refill()
            case Status.NEED_KEY_SPACE:
                self._grow_key()
            case Status.NEED_UNPACK_SPACE:
                self._replace("unpacked")
            case Status.NEED_TRANSCODE_SPACE:
                self._replace("transcoded")
            case _:
                return False
        return True

    def corrupt(self, status: int) -> CorruptObject:
        """What is wrong with the current object."""
        block = self._first_block + self.bound["block"]
        if (
            status in (Status.BAD_CHECKSUM, Status.BAD_COMPRESSION, Status.BAD_SIZE)
            or self.bound["block"] < 0
        ):
            block += 1  # this block could not be opened
        reason = REASONS[Status(status)]
        assert self._part is not None
        return CorruptObject(self._part.key, f"block {block}: {reason}")

    @property
    def key_capacity(self) -> int:
        return self.bound["key_capacity"]

    def _grow_key(self) -> None:
        capacity = max(self.bound["needed"], 2 * self.key_capacity)
        self.bound.grow("key", capacity, self.bound["key_len"])
        self.bound["key_capacity"] = capacity

    def _replace(self, field: str) -> None:
        size = max(self.bound["needed"], _FIRST_UNPACKED_CAPACITY)
        self.bound.attach(field, new_bytes(size))
        self.bound[f"{field}_capacity"] = size

    def _refill(self) -> None:
        """Read the next window, of the next SST if this one is read."""
        if self._part is not None and self.bound["block"] + 1 < self.bound["block_end"]:
            self._read_window()
        elif self._left:
            self._open(*self._next_part())
        else:
            self.bound["more_ssts"] = 0

    def _next_part(self) -> tuple[SourceSst, Bounds]:
        self._left -= 1
        return next(self._parts)

    def _open(self, part: SourceSst, bounds: Bounds) -> None:
        """Make `part` the current SST. It may turn out to hold no block inside the bounds."""
        number, index = read_blocks(self._store, part, bounds)
        first, last = blocks_inside(index, bounds)
        offsets = index.offsets[first : max(first, last) + 1].copy()
        if len(offsets) > 1 and int(np.diff(offsets).min()) <= CHECKSUM_BYTES:
            raise CorruptObject(part.key, "its index has a block too short for a checksum")
        self._part, self._first_block = part, number + first
        memory, self._memory = self._memory, None
        self._windows = Windows(self._store, part.key, offsets, self._window_size, self._readers, memory)
        self.bound.attach("offsets", offsets)
        for field in ("cursor", "rows_end", "shareable", "has_previous", "window_end"):
            self.bound[field] = 0
        self.bound["block"] = -1
        self.bound["block_end"] = len(offsets) - 1
        self.bound["codec"] = part.sst.info.compression
        self.bound["row_format"] = part.sst.format_version
        self._set_bounds(bounds)

    def _set_bounds(self, bounds: Bounds) -> None:
        for field, key in (("start", bounds.start), ("end", bounds.end)):
            self.bound.attach(field, bytes_of(key or b""))
            self.bound[f"{field}_len"] = len(key or b"")
            self.bound[f"check_{field}"] = key is not None
        self.bound.record["end_prefix"] = self._end_prefix(bounds.end)

    def _end_prefix(self, end: bytes | None) -> int:
        """The least merge prefix that a key at or behind `end` can have."""
        if end is None:
            return _GREATEST_PREFIX
        head, tail = end[: len(self._common)], end[len(self._common) :]
        if head != self._common:
            return 0 if head < self._common else _GREATEST_PREFIX
        return int.from_bytes(tail[:8].ljust(8, b"\0"), "big")

    def _read_window(self) -> None:
        assert self._windows is not None
        window = self._windows.take(self.bound["block"] + 1)
        self.bytes_read += window.size_bytes
        self.bound["window_base"] = window.memory.ctypes.data - window.start
        self.bound["window_end"] = window.end_block


def open_inputs(
    store: ObjectStore,
    records: npt.NDArray[np.void],
    sources: Sequence[Sequence[tuple[SourceSst, Bounds]]],
    readers: Executor | None = None,
) -> list[Input]:
    """An input for each source, over the records in order. With `readers`, the first windows are read
    at the same time, and every following one ahead of its use."""
    common = common_prefix([part for parts in sources for part in parts])
    size = window_bytes(store, len(sources))
    # In one piece, the system backs it by large pages.
    memory = np.array_split(new_bytes(len(sources) * (size + SLACK)), len(sources)) if sources else []
    inputs = [
        Input(store, record, parts, common, size, readers, part_of_memory)
        for record, parts, part_of_memory in zip(records, sources, memory, strict=False)
    ]
    if readers is not None:
        list(readers.map(Input.start, inputs))
    return inputs

"""The selection of the blocks that a task reads of an SST.

1. The bounds of an SST are the intersection of the task's range and the SST's visible range. SSTs without a
   possible key inside are left out.
2. The SST's index shows which blocks may have keys inside the bounds. The driver, which read the indexes to
   cut the ranges, sends these blocks with the task (`sent_blocks`); otherwise the task reads the index.

Invariant: offsets ascend, and every block is longer than its checksum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import Blocks, SourceSst
from lithify.datasets.slatedb.format.index import BlockIndex, decode_blocks
from lithify.datasets.slatedb.format.sst import unseal
from lithify.datasets.slatedb.kernel.layout import CHECKSUM_BYTES
from lithify.datasets.slatedb.model import KeyRange, layout_problem
from lithify.kernel.buffers import new_bytes
from lithify.kernel.crc32 import crc32_of
from lithify.store.objects import ObjectStore

_SIZE = np.dtype("<u4")
_FASTEST = 1
"""The zstd level: preparing a task compresses the sizes of all its blocks before any range starts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Keys from `start` (inclusive) to `end` (exclusive)."""

    start: bytes | None
    end: bytes | None


def held_range(source: SourceSst) -> KeyRange:
    """Return the range from the first to the last key of an SST."""
    info = source.sst.info
    if info.first_entry is None:
        raise CorruptObject(source.key, "it does not state its first key")
    if info.last_entry is None:  # written by an old client
        return KeyRange(info.first_entry)
    if info.first_entry > info.last_entry:
        raise CorruptObject(source.key, f"its first key is above its last: {info.first_entry!r}")
    return KeyRange(info.first_entry, info.last_entry, end_inclusive=True)


def bounds_of(source: SourceSst, key_range: KeyRange) -> Bounds | None:
    """Return the bounds of the keys that the task reads of an SST; `None` if there can be none."""
    wanted = source.visible.intersect(key_range)
    held = held_range(source)
    if wanted.is_empty or wanted.intersect(held).is_empty:
        return None
    # The least key greater than an inclusive end is that key and a zero byte.
    end = wanted.end + b"\0" if wanted.end is not None and wanted.end_inclusive else wanted.end
    return Bounds(wanted.start, end)


def read_index(store: ObjectStore, source: SourceSst) -> BlockIndex:
    return read_blocks(store, source, Bounds(None, None))[1]


def read_blocks(store: ObjectStore, source: SourceSst, bounds: Bounds) -> tuple[int, BlockIndex]:
    """Return the part of an SST's block index with all blocks inside the bounds, and the number of its first
    block."""
    info = source.sst.info
    name = f"{source.key} (index)"
    if problem := layout_problem(info):
        raise CorruptObject(source.key, problem)
    memory = new_bytes(info.index_len)[: info.index_len]
    store.get_range_into(source.key, info.index_offset, memory.data)
    raw = unseal(memory.data.toreadonly(), info.compression, name, crc32_of)
    return decode_blocks(raw, info, name, bounds.start, bounds.end)


def blocks_below(index: BlockIndex, key: bytes) -> int:
    """Return how many blocks have an index key below `key`."""
    low, high = 0, len(index)
    while low < high:
        middle = (low + high) // 2
        if index.key(middle) < key:
            low = middle + 1
        else:
            high = middle
    return low


def blocks_inside(index: BlockIndex, bounds: Bounds) -> tuple[int, int]:
    """Return the first and one past the last block that may have keys inside the bounds."""
    # A block whose index key equals the start may follow one that ends with versions of that key.
    first = 0 if bounds.start is None else max(0, blocks_below(index, bounds.start) - 1)
    last = len(index) if bounds.end is None else blocks_below(index, bounds.end)
    return first, last


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The consecutive blocks of an SST that a task reads. Block `i` of the span is block `first_block + i` of
    the SST and lies at `offsets[i]` to `offsets[i + 1]`."""

    part: SourceSst
    bounds: Bounds
    first_block: int
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def open_span(store: ObjectStore, part: SourceSst, bounds: Bounds) -> Span:
    """Return the blocks of `part` inside the bounds, possibly none. Read the index if they did not come with
    the task."""
    if knows_blocks(part, bounds):
        assert part.blocks is not None
        return Span(part, bounds, part.blocks.first, _unpacked(part.blocks))
    number, index = read_blocks(store, part, bounds)
    first, offsets = _inside(index, bounds)
    _check_sizes(part, offsets)
    return Span(part, bounds, number + first, offsets)


def knows_blocks(part: SourceSst, bounds: Bounds) -> bool:
    """Return whether the blocks inside exactly these bounds came with the task. If a task's bounds differ
    from the planned ones, for example because it resumes, it must read the index to miss no block."""
    return part.blocks is not None and Bounds(part.blocks.from_key, part.blocks.to_key) == bounds


def sent_blocks(part: SourceSst, index: BlockIndex, bounds: Bounds) -> Blocks | None:
    """Return the blocks of `part` inside the bounds as they are sent; `None` if a block's size exceeds 32
    bits."""
    first, offsets = _inside(index, bounds)
    _check_sizes(part, offsets)
    sizes = np.diff(offsets)
    if len(sizes) and int(sizes.max()) > np.iinfo(_SIZE).max:
        return None
    return Blocks(
        bounds.start,
        bounds.end,
        first,
        int(offsets[0]),
        zstandard.ZstdCompressor(_FASTEST).compress(sizes.astype(_SIZE).tobytes()),
    )


def _unpacked(blocks: Blocks) -> npt.NDArray[np.int64]:
    sizes = np.frombuffer(zstandard.ZstdDecompressor().decompress(blocks.sizes), _SIZE)
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = blocks.start
    np.cumsum(sizes, out=offsets[1:])
    offsets[1:] += blocks.start
    return offsets


def _inside(index: BlockIndex, bounds: Bounds) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the index's first block inside the bounds and the offsets of all."""
    first, last = blocks_inside(index, bounds)
    return first, index.offsets[first : max(first, last) + 1].copy()


def _check_sizes(part: SourceSst, offsets: npt.NDArray[np.int64]) -> None:
    if len(offsets) > 1 and int(np.diff(offsets).min()) <= CHECKSUM_BYTES:
        raise CorruptObject(part.key, "its index has a block too short for a checksum")

"""Cutting a compaction into ranges of about one output SST each.

1. Read the block index of every source SST, several at a time. All of them together may not fit into
   memory, so each is let go of as soon as step 2 is done with it.
2. From each index take anchors: the key at which a group of consecutive blocks starts, and the stored
   bytes of the group. A group is a small share of the target, so that cuts can be placed evenly, but
   no index gives more than a fixed number of anchors. Blocks outside the view's range do not count,
   and a key outside it is no place to cut.
3. Sort all anchors by key and sum up the bytes. The total divided by the target says how many ranges
   there are; each cut is the first anchor at which its share of the bytes is reached.

Cuts are keys, so all versions of one key are in one range. Ranges are disjoint, ascend and cover
everything: (-inf, b1) [b1, b2) ... [bk, +inf).

The block size of a database is recorded nowhere. Where it is not given, it follows from the inputs:
a block with several rows is never larger, and nearly as large unless it is the last of its SST.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lithify.datasets.slatedb.index import BlockIndex
from lithify.datasets.slatedb.kernel.spans import held_range, read_index
from lithify.datasets.slatedb.model import EVERYTHING, Codec, KeyRange
from lithify.datasets.slatedb.sst import CHECKSUM_BYTES, MAX_MULTI_ROW_BLOCK_BYTES, unseal
from lithify.datasets.slatedb.stats import decode_stats, max_stats_bytes
from lithify.datasets.slatedb.task import DEFAULT_BLOCK_SIZE, SourceSst, SstOptions
from lithify.errors import CorruptObject
from lithify.store.objects import ObjectStore

MAX_RANGES = 10_000
"""More would make the record of a compaction unwieldy; ranges get larger instead."""
INDEX_READERS = 8
BLOCK_SIZES = tuple(1024 << i for i in range(7))

_ANCHORS_PER_TARGET = 64
_MAX_ANCHORS_PER_SST = 4096
_BLOCKS_LOOKED_AT = 16
_BLOCKS_THAT_PROVE = 4


@dataclass(frozen=True, slots=True)
class Anchor:
    """A key where a range may start, and the stored bytes from it to the next anchor of its SST."""

    key: bytes
    size_bytes: int


def anchors(index: BlockIndex, effective: KeyRange, target_bytes: int) -> list[Anchor]:
    """The anchors of one SST. The bytes of blocks before the first possible cut have the key that the
    range starts with, or the empty key."""
    sizes = np.diff(index.offsets)
    group_bytes = max(1, target_bytes // _ANCHORS_PER_TARGET)
    total = int(sizes.sum())
    step = max(1, len(index) // max(1, min(_MAX_ANCHORS_PER_SST, -(-total // group_bytes))))
    found = []
    for first in range(0, len(index), step):
        last = min(first + step, len(index))
        size_bytes = int(index.offsets[last] - index.offsets[first])
        key = index.key(first)
        behind = None if last == len(index) else index.key(last)
        if effective.end is not None and key > effective.end:
            break
        if effective.start is not None and behind is not None and behind <= effective.start:
            continue
        found.append(Anchor(max(key, effective.start or b""), size_bytes))
    return found


def split(
    views: Iterable[tuple[BlockIndex, KeyRange]], target_bytes: int, max_ranges: int = MAX_RANGES
) -> tuple[KeyRange, ...]:
    """Ranges of about `target_bytes` stored bytes each. `views` are indexes with the keys they show."""
    found = sorted(
        (anchor for index, effective in views for anchor in anchors(index, effective, target_bytes)),
        key=lambda anchor: anchor.key,
    )
    total = sum(anchor.size_bytes for anchor in found)
    count = min(max_ranges, max(1, -(-total // max(1, target_bytes))))
    cuts: list[bytes] = []
    passed = 0
    for anchor in found:
        # No range before the smallest key; a cut there would leave the first one empty.
        is_new = anchor.key > (cuts[-1] if cuts else found[0].key)
        if is_new and len(cuts) + 1 < count and passed * count >= total * (len(cuts) + 1):
            cuts.append(anchor.key)
        passed += anchor.size_bytes
    return ranges_between(cuts)


def ranges_between(cuts: Sequence[bytes]) -> tuple[KeyRange, ...]:
    """The cover of the key space with these boundaries."""
    if not cuts:
        return (EVERYTHING,)
    starts: list[bytes | None] = [None, *cuts]
    ends: list[bytes | None] = [*cuts, None]
    return tuple(KeyRange(start, end) for start, end in zip(starts, ends, strict=True))


def effective_range(source: SourceSst) -> KeyRange:
    """The keys that a source SST shows."""
    return source.visible.intersect(held_range(source))


def largest_of(sources: Sequence[Sequence[SourceSst]]) -> SourceSst | None:
    """The SST that tells the block size of all; `None` when none shows a key."""
    return max(_shown(sources), key=lambda part: part.sst.info.data_end, default=None)


def _shown(sources: Sequence[Sequence[SourceSst]]) -> list[SourceSst]:
    return [part for source in sources for part in source if not effective_range(part).is_empty]


def plan_ranges(
    store: ObjectStore,
    sources: Sequence[Sequence[SourceSst]],
    options: SstOptions,
    block_size: int | None = None,
) -> tuple[SstOptions, tuple[KeyRange, ...]]:
    """How to write the outputs of a compaction, and its ranges. Without `block_size` the one of the
    largest input is kept."""
    parts = _shown(sources)
    largest = largest_of(sources)

    def views() -> Iterator[tuple[BlockIndex, KeyRange]]:
        nonlocal block_size
        for part, index in zip(parts, readers.map(partial(read_index, store), parts), strict=True):
            if block_size is None and part is largest:
                block_size = _block_size_of(store, part, index)
            yield index, effective_range(part)

    with ThreadPoolExecutor(INDEX_READERS) as readers:
        ranges = split(views(), options.max_sst_size)
    return replace(options, block_size=block_size or DEFAULT_BLOCK_SIZE), ranges


def _block_size_of(store: ObjectStore, part: SourceSst, index: BlockIndex) -> int:
    """The block size that an SST was written with; the default if it is too small to tell."""
    sizes = _multi_row_block_sizes(store, part, index)
    if len(sizes) < _BLOCKS_THAT_PROVE:
        return DEFAULT_BLOCK_SIZE
    largest = int(sizes.max())
    return next((size for size in BLOCK_SIZES if size >= largest), BLOCK_SIZES[-1])


def _multi_row_block_sizes(store: ObjectStore, part: SourceSst, index: BlockIndex) -> NDArray[np.int64]:
    """Uncompressed sizes of blocks with several rows, the last block of the SST apart."""
    info = part.sst.info
    if not info.stats_len:
        return np.empty(0, np.int64)
    name = f"{part.key} (stats)"
    stored = store.get_range(part.key, info.stats_offset, info.stats_len)
    most = max_stats_bytes(len(index))
    stats = decode_stats(unseal(stored, info.compression, name, limit=most), name)
    rows = stats.block_puts + stats.block_deletes + stats.block_merges
    chosen = np.flatnonzero(rows[: len(index) - 1] > 1)
    if info.compression is Codec.NONE:
        return np.diff(index.offsets)[chosen] - CHECKSUM_BYTES
    sizes = []
    for block in chosen[:_BLOCKS_LOOKED_AT]:
        start, end = int(index.offsets[block]), int(index.offsets[block + 1])
        sizes.append(_unpacked_bytes(store, part, start, end, f"{part.key} (block {block})"))
    return np.array(sizes, np.int64)


def _unpacked_bytes(store: ObjectStore, part: SourceSst, start: int, end: int, name: str) -> int:
    """The uncompressed size of a block with several rows, from byte `start` to `end` of its SST."""
    if end - start > 2 * MAX_MULTI_ROW_BLOCK_BYTES:  # no codec adds as much
        raise CorruptObject(name, f"{end - start} bytes are too many for a block with several rows")
    stored = store.get_range(part.key, start, end - start)
    return len(unseal(stored, part.sst.info.compression, name, limit=MAX_MULTI_ROW_BLOCK_BYTES))

"""The block size of a database, which no file records.

If it is not given, it follows from the largest input: a block with several rows is never larger than the
block size, and nearly as large unless it is the last of its SST. The stats show which blocks have several
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import DEFAULT_BLOCK_SIZE, SourceSst
from lithify.datasets.slatedb.format.index import BlockIndex
from lithify.datasets.slatedb.format.sst import CHECKSUM_BYTES, MAX_MULTI_ROW_BLOCK_BYTES, unseal
from lithify.datasets.slatedb.format.stats import decode_stats, max_stats_bytes
from lithify.datasets.slatedb.kernel.block_ranges import read_index
from lithify.datasets.slatedb.model import Codec, layout_problem
from lithify.store.objects import ObjectStore

BLOCK_SIZES = tuple(1024 << i for i in range(7))

_BLOCKS_LOOKED_AT = 16
_BLOCKS_THAT_PROVE = 4


def largest_of(parts: Sequence[SourceSst]) -> SourceSst | None:
    """Return the SST from which the block size of all is derived, or `None` if there is none."""
    return max(parts, key=lambda part: part.sst.info.data_end, default=None)


def read_stored_stats(store: ObjectStore, part: SourceSst) -> bytes:
    """Return the stats block as stored, or empty bytes if the SST has none."""
    info = part.sst.info
    if problem := layout_problem(info):
        raise CorruptObject(part.key, problem)
    return store.get_range(part.key, info.stats_offset, info.stats_len) if info.stats_len else b""


def block_size_of(store: ObjectStore, part: SourceSst, index: BlockIndex, stored_stats: bytes) -> int:
    """Return the block size that an SST was written with, or the default if the SST is too small to determine
    it."""
    sizes = _multi_row_block_sizes(store, part, index, stored_stats)
    if len(sizes) < _BLOCKS_THAT_PROVE:
        return DEFAULT_BLOCK_SIZE
    largest = int(sizes.max())
    return next((size for size in BLOCK_SIZES if size >= largest), BLOCK_SIZES[-1])


def read_block_size(store: ObjectStore, parts: Sequence[SourceSst]) -> int:
    """Return the block size that the largest of these SSTs was written with."""
    largest = largest_of(parts)
    if largest is None:
        return DEFAULT_BLOCK_SIZE
    return block_size_of(store, largest, read_index(store, largest), read_stored_stats(store, largest))


def _multi_row_block_sizes(
    store: ObjectStore, part: SourceSst, index: BlockIndex, stored_stats: bytes
) -> NDArray[np.int64]:
    """Return the uncompressed sizes of blocks with several rows, without the last block of the SST."""
    codec = part.sst.info.compression
    if not stored_stats:
        return np.empty(0, np.int64)
    name = f"{part.key} (stats)"
    stats = decode_stats(unseal(stored_stats, codec, name, limit=max_stats_bytes(len(index))), name)
    rows = stats.block_puts + stats.block_deletes + stats.block_merges
    chosen = np.flatnonzero(rows[: len(index) - 1] > 1)
    if codec is Codec.NONE:
        return np.diff(index.offsets)[chosen] - CHECKSUM_BYTES
    return _unpacked_sizes(store, part, index, [int(block) for block in chosen[:_BLOCKS_LOOKED_AT]])


def _unpacked_sizes(
    store: ObjectStore, part: SourceSst, index: BlockIndex, chosen: list[int]
) -> NDArray[np.int64]:
    """Return the uncompressed sizes of those of these blocks that are near the first, from one request."""
    spans = [(block, int(index.offsets[block]), int(index.offsets[block + 1])) for block in chosen]
    for block, start, end in spans:
        if end - start > 2 * MAX_MULTI_ROW_BLOCK_BYTES:  # no codec adds as much
            name = f"{part.key} (block {block})"
            raise CorruptObject(name, f"{end - start} bytes are too many for a block with several rows")
    if not spans:
        return np.empty(0, np.int64)
    first = spans[0][1]
    near = [span for span in spans if span[2] - first <= 2 * MAX_MULTI_ROW_BLOCK_BYTES * _BLOCKS_LOOKED_AT]
    stored = memoryview(store.get_range(part.key, first, near[-1][2] - first))
    return np.array(
        [
            len(
                unseal(
                    stored[start - first : end - first],
                    part.sst.info.compression,
                    f"{part.key} (block {block})",
                    limit=MAX_MULTI_ROW_BLOCK_BYTES,
                )
            )
            for block, start, end in near
        ],
        np.int64,
    )

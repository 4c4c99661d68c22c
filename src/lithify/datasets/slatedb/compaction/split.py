"""Splitting a compaction into ranges, one task each.

1. A range makes about one output SST of the largest size. Ranges are smaller if that keeps the engine's slots
   busy: one range for each slot. They are even (4), so more ranges would not finish sooner, and each costs
   the start of a task. But a range is no smaller than `MIN_RANGE_BYTES`, or a quarter of a small compaction's
   total: clients open each SST, and each is a line in the manifest for as long as it lives. A small
   compaction is one range, and no index is read for it. If it is so small that its contents fit into the
   task's request, and they were read when the compaction was foreseen, they are sent with the task.
2. Read the block index of every source SST, and the stats that give the block size, all at the same time, or
   use the reads that began when the compaction was foreseen. The indexes give tasks the positions of their
   blocks, so they are kept if they are few; those of a large compaction do not fit into memory, and each is
   freed as soon as step 3 has used it.
3. Take anchors from each index: the key at which a group of consecutive blocks starts, and the stored bytes
   of the group. A group is a small share of the target, so that cuts can be placed evenly, but no index gives
   more than a fixed number of anchors. Blocks outside the view's range do not count, and no cut is made at a
   key outside it.
   An anchor's key has at most `MAX_CUT_KEY_BYTES`: a beginning of a longer one is a boundary as well.
4. Sort all anchors by key and sum up the bytes. The total divided by the target is the number of ranges; each
   cut is the first anchor at which its share of the bytes is reached.

Cuts are keys, so all versions of one key are in one range. Ranges are disjoint, ascend and cover everything:
(-inf, b1) [b1, b2) ... [bk, +inf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from lithify.base import concurrency
from lithify.base.errors import LithifyError
from lithify.datasets.slatedb.compaction.task import SENT_BYTES, SMALL_BYTES, SourceSst, SstOptions
from lithify.datasets.slatedb.format.block_size import block_size_of, largest_of, read_stored_stats
from lithify.datasets.slatedb.format.index import BlockIndex
from lithify.datasets.slatedb.format.policies import newest_filtered, read_stored_filter
from lithify.datasets.slatedb.kernel.block_ranges import held_range, read_index
from lithify.datasets.slatedb.model import EVERYTHING, KeyRange
from lithify.store.objects import ObjectStore, is_local

MAX_RANGES = 10_000
"""More would make the record of a compaction unwieldy; ranges get larger instead."""
INDEX_READERS = 32
MIN_RANGE_BYTES = 32 << 20
MIN_SMALL_RANGE_BYTES = 16 << 20
MIN_RANGES_OF_SMALL = 4
"""A compaction may be split into this many ranges even if they are smaller than `MIN_RANGE_BYTES`."""
MAX_KEPT_INDEX_BYTES = 64 << 20
MAX_CUT_KEY_BYTES = 1 << 10
"""Ranges travel with tasks, and stay in the record of a compaction."""

ReadT = TypeVar("ReadT")

_ANCHORS_PER_TARGET = 64
_MAX_ANCHORS_PER_SST = 4096


@dataclass(frozen=True, slots=True)
class Anchor:
    """A key where a range may start, and the stored bytes from it to the next anchor of its SST."""

    key: bytes
    size_bytes: int


def anchors(index: BlockIndex, effective: KeyRange, target_bytes: int) -> list[Anchor]:
    """Return the anchors of one SST. The bytes of blocks before the first possible cut are counted at the key
    that the range starts with, or at the empty key."""
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
        found.append(Anchor(max(key, effective.start or b"")[:MAX_CUT_KEY_BYTES], size_bytes))
    return found


def split(
    views: Iterable[tuple[BlockIndex, KeyRange]], target_bytes: int, max_ranges: int = MAX_RANGES
) -> tuple[KeyRange, ...]:
    """Return ranges of about `target_bytes` stored bytes each. `views` are indexes with the keys they
    show."""
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
    """Return the cover of the key space with these boundaries."""
    if not cuts:
        return (EVERYTHING,)
    starts: list[bytes | None] = [None, *cuts]
    ends: list[bytes | None] = [*cuts, None]
    return tuple(KeyRange(start, end) for start, end in zip(starts, ends, strict=True))


def effective_range(source: SourceSst) -> KeyRange:
    """Return the keys that a source SST shows."""
    return source.visible.intersect(held_range(source))


def shown_parts(sources: Sequence[Sequence[SourceSst]]) -> list[SourceSst]:
    """Return the source SSTs that show a key."""
    return [part for source in sources for part in source if not effective_range(part).is_empty]


def is_small(parts: Sequence[SourceSst], options: SstOptions) -> bool:
    """Return whether all of them are one range that a task reads at once."""
    return sum(part.stated_bytes for part in parts) <= min(SMALL_BYTES, options.max_sst_size)


def range_bytes(total_bytes: int, options: SstOptions, slots: int) -> int:
    """Return the stored bytes that a range should have. `slots` is how many run at once, 0 if not known."""
    if not slots:
        return options.max_sst_size
    least = max(MIN_SMALL_RANGE_BYTES, min(MIN_RANGE_BYTES, total_bytes // MIN_RANGES_OF_SMALL))
    return min(options.max_sst_size, max(least, -(-total_bytes // slots)))


@dataclass(frozen=True, slots=True)
class CompactionSplit:
    """The plan for carrying out a compaction."""

    options: SstOptions
    """How to write the outputs. The block size is left open if only the task will know it."""
    ranges: tuple[KeyRange, ...]
    indexes: Mapping[str, BlockIndex] = field(default_factory=dict)
    """Indexes of some source SSTs, by object key."""
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of some source SSTs without their tails, by object key."""


def read_content(store: ObjectStore, part: SourceSst) -> bytes:
    """Return the file without its tail."""
    return store.get_range(part.key, 0, part.stated_bytes)


class Foreseen:
    """Data for splitting some SSTs, whose reading begins before it is certain that they will be split."""

    def __init__(self) -> None:
        self._begun: dict[tuple[object, str], Callable[[], Any]] = {}

    def begin(self, store: ObjectStore, sources: Sequence[Sequence[SourceSst]], options: SstOptions) -> None:
        """Begin to read; if there are many SSTs, only those that are read first. Failures are raised when the
        data is requested."""
        parts = shown_parts(sources)
        reads: list[tuple[Callable[..., Any], SourceSst]]
        if is_small(parts, options):
            is_sent = not is_local(store) and sum(part.stated_bytes for part in parts) <= SENT_BYTES
            reads = [(read_content, part) for part in parts] if is_sent else []
        else:
            largest = largest_of(parts) if options.block_size is None else None
            reads = [(read_index, part) for part in parts]
            if largest is not None:
                reads.insert(0, (read_stored_stats, largest))
            if (filtered := newest_filtered(sources)) is not None:
                reads.insert(0, (read_stored_filter, filtered))
        self._begun = {
            (read, part.key): concurrency.background.start(partial(read, store, part))
            for read, part in reads[:INDEX_READERS]
        }

    def take(
        self, read: Callable[[ObjectStore, SourceSst], ReadT], store: ObjectStore, part: SourceSst
    ) -> ReadT:
        """Return the result of `read`. A read that was begun is returned once."""
        begun = self._begun.pop((read, part.key), None)
        return read(store, part) if begun is None else cast(ReadT, begun())

    def contents(self, parts: Sequence[SourceSst]) -> dict[str, bytes]:
        """Return the contents that were begun to be read and have arrived. The others are read by their
        tasks, which also report their defects."""
        found: dict[str, bytes] = {}
        for part in parts:
            begun = self._begun.pop((read_content, part.key), None)
            if begun is not None:
                with suppress(LithifyError):
                    found[part.key] = begun()
        return found


def plan_ranges(
    store: ObjectStore,
    sources: Sequence[Sequence[SourceSst]],
    options: SstOptions,
    slots: int = 0,
    foreseen: Foreseen | None = None,
) -> CompactionSplit:
    """Return the ranges of a compaction. Without a block size in `options`, the largest input's is kept."""
    foreseen = Foreseen() if foreseen is None else foreseen
    take = foreseen.take
    parts = shown_parts(sources)
    if is_small(parts, options):
        return CompactionSplit(options, (EVERYTHING,), contents=foreseen.contents(parts))
    largest = largest_of(parts) if options.block_size is None else None
    kept = _KeptIndexes()
    block_size = options.block_size

    def views() -> Iterator[tuple[BlockIndex, KeyRange]]:
        nonlocal block_size
        stats = (
            None
            if largest is None
            else concurrency.background.start(partial(take, read_stored_stats, store, largest))
        )
        indexes = concurrency.each_of(
            (partial(take, read_index, store, part) for part in parts), INDEX_READERS
        )
        for part, index in zip(parts, indexes, strict=True):
            if stats is not None and part is largest:
                block_size = block_size_of(store, part, index, stats())
            kept.add(part.key, index)
            yield index, effective_range(part)

    target_bytes = range_bytes(sum(part.sst.info.data_end for part in parts), options, slots)
    ranges = split(views(), target_bytes)
    return CompactionSplit(replace(options, block_size=block_size), ranges, kept.indexes)


class _KeptIndexes:
    """The indexes of a compaction, all or none."""

    def __init__(self) -> None:
        self.indexes: dict[str, BlockIndex] = {}
        self._bytes = 0

    def add(self, key: str, index: BlockIndex) -> None:
        self._bytes += index.offsets.nbytes + index.key_bytes.nbytes + index.key_offsets.nbytes
        if self._bytes <= MAX_KEPT_INDEX_BYTES:
            self.indexes[key] = index
        else:
            self.indexes.clear()

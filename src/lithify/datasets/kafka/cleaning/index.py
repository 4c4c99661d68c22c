"""What is superseded in a log of any number of keys, in bounded memory and without a shuffle.

1. *Index*: each settled object is read once. `index` gives an entry of 32 bytes for each record that counts
   (a hash of its key, its offset, its size, whether it is a tombstone), ordered by hash and offset: a *run*.
   Keys themselves go no further. Markers, records without a key and aborted records have no entry: an
   aborted record is never the newest of its key.
2. *Match*: the hash space is cut into equal slices. A slice of every run lies in one piece (`part`), so a
   task reads only its slice of all runs, and its memory is bounded by the number of slices. `match` finds the
   newest offset of each key; all older ones are dead.
3. Once what was dead in some runs is gone, they may be merged into one (`merge`), which keeps only the newest
   entry of each key: the next round reads that one and what is new.

A tombstone that is the newest of its key and has an older record in any run is *pinned*: it still deletes
something, and must not go in the publication that removes that. Runs have to cover the log from its start, or
from behind what holds no such key, for that to be the whole truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lithify.datasets.kafka.format.kernel.keys import ENTRY, TOMBSTONE, hash_keys, sort_entries
from lithify.datasets.kafka.format.kernel.layout import CONTROL, Records
from lithify.datasets.kafka.format.kernel.retaining import Offsets
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.datasets.kafka.format.record_batches import RecordBatches
from lithify.datasets.kafka.format.transactions import Fates

Run = Records
"""An array of `ENTRY`, ordered by hash and offset."""
_HASHES = 1 << 64
_FEW_BITS = 3
"""Of the number of entries that share a bucket while they are sorted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The keys whose first half of the hash lies from `start` up to, and without, `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Matched:
    """What a slice of all runs says of its keys."""

    keys: int
    dead: Offsets
    """Records that a newer one of their key supersedes."""
    pinned: Offsets
    """Tombstones that still delete something."""


def index(source: RecordBatches, fates: Fates, bound: int) -> Run:
    """The run of these batches below the offset `bound`: what is not decided supersedes nothing."""
    return ordered(entries(source, fates, bound))


def entries(source: RecordBatches, fates: Fates, bound: int) -> Records:
    """What a run of these batches has, in the order of the records."""
    skipped = fates.aborted | (source.batches["attributes"] & CONTROL != 0)
    found = np.empty(len(source.records), ENTRY)
    count = hash_keys(source.memory.ctypes.data, source.records, skipped, found)
    return _where(found[:count], found[:count]["offset"] < bound)


def slices(count: int) -> list[Slice]:
    """The hash space in so many slices of equal size."""
    bounds = [_HASHES * number // count for number in range(count + 1)]
    return [Slice(start, end) for start, end in pairwise(bounds)]


def part(run: Run, within: Slice) -> Run:
    """What a run has of a slice."""
    high = run["high"]
    start = np.searchsorted(high, np.uint64(within.start))
    end = len(run) if within.end == _HASHES else np.searchsorted(high, np.uint64(within.end))
    return run[start:end]


def match(runs: Sequence[Run]) -> Matched:
    """Compare all runs, or the same part of all of them."""
    entries = _together(runs)
    newest = _newest(entries)
    dead = entries[~newest]
    pinned = entries[newest & ~_oldest(newest) & (entries["flags"] & TOMBSTONE != 0)]
    return Matched(
        int(newest.sum()),
        np.sort(dead["offset"]),
        np.sort(pinned["offset"]),
    )


def merge(runs: Sequence[Run]) -> Run:
    """One run with the newest entry of each key of all of them."""
    entries = _together(runs)
    return entries[_newest(entries)]


def _together(runs: Sequence[Run]) -> Run:
    """All entries in order, each record once: an object may have been indexed twice."""
    entries = ordered(np.concatenate([np.empty(0, ENTRY), *runs]))
    again = _equal(entries, "high") & _equal(entries, "low") & _equal(entries, "offset")
    return _where(entries, np.concatenate([~again, np.ones(min(1, len(entries)), np.bool_)]))


def ordered(entries: Records) -> Run:
    """Order by hash and offset; equal entries stay in the order they had."""
    if not len(entries):
        return entries
    least, greatest = int(entries["high"].min()), int(entries["high"].max())
    shift = max(0, (greatest - least).bit_length() - max(1, len(entries).bit_length() - _FEW_BITS))
    ends = np.zeros(((greatest - least) >> shift) + 1, np.int64)
    target = np.empty(len(entries), ENTRY)
    if sort_entries(entries, np.uint64(least), np.uint64(shift), ends, target):
        return target
    return entries[np.lexsort((entries["offset"], entries["low"], entries["high"]))]


def _where(entries: Records, wanted: Flags) -> Records:
    """Those entries; mostly all are, and copying them costs more than asking."""
    return entries if wanted.all() else entries[wanted]


def _equal(entries: Run, field: str) -> Flags:
    """Whether each entry but the last has in this field what the next one has."""
    return np.asarray(entries[field][1:] == entries[field][:-1], np.bool_)


def _newest(entries: Run) -> Flags:
    """Which entries are the last of their key."""
    superseded = _equal(entries, "high") & _equal(entries, "low")
    return np.concatenate([~superseded, np.ones(min(1, len(entries)), np.bool_)])


def _oldest(newest: Flags) -> Flags:
    """Which entries are the first of their key: those behind the last of another."""
    return np.concatenate([np.ones(min(1, len(newest)), np.bool_), newest[:-1]])

"""Finds superseded records in a log with any number of keys, in bounded memory and without a shuffle.

1. *Index* reads each settled object once. `index` returns a *run*: an entry of 32 bytes for each valid record
   (hash of the key, offset, size, whether it is a tombstone), ordered by hash and offset. Markers, records
   without a key and aborted records have no entry: an aborted record is never the newest of its key.
2. *Match* cuts the hash space into equal slices. A slice is contiguous in every run (`part`), so a task reads
   only its slice, and the number of slices bounds its memory. `match` finds the newest offset of each key;
   all older ones are dead.
3. Once the dead records of some runs are removed, `merge` may combine these runs into one for the next round,
   with only the newest entry of each key.

A tombstone is *pinned* if it is the newest of its key and any run has an older record of the key: it still
deletes something and must not be removed together with that record. For this, the runs must cover the log
from its start, or from a point before which no such key occurs.
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
SAMPLE_RECORDS = 32
"""Few enough to report for thousands of partitions."""
_SCATTER = np.uint64(0x9E3779B97F4A7C15)
_HASHES = 1 << 64
_FEW_BITS = 3
"""Binary logarithm of the entries that share a bucket while they are sorted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The keys whose first half of the hash is at least `start` and below `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Matched:
    keys: int
    dead: Offsets
    """Offsets of records that a newer record of the same key supersedes."""
    pinned: Offsets
    """Offsets of tombstones that still delete something."""
    sample: Run
    """The entries that `sampled` chooses."""


def index(source: RecordBatches, fates: Fates, bound: int) -> Run:
    """Return the run of the batches below the offset `bound`: undecided records supersede nothing."""
    return ordered(entries(source, fates, bound))


def entries(source: RecordBatches, fates: Fates, bound: int) -> Records:
    """Return the entries of these batches, in the order of the records."""
    skipped = fates.aborted | (source.batches["attributes"] & CONTROL != 0)
    found = np.empty(len(source.records), ENTRY)
    count = hash_keys(source.memory.ctypes.data, source.records, skipped, found)
    return _where(found[:count], found[:count]["offset"] < bound)


def slices(count: int) -> list[Slice]:
    """Cut the hash space into `count` slices of equal size."""
    bounds = [_HASHES * number // count for number in range(count + 1)]
    return [Slice(start, end) for start, end in pairwise(bounds)]


def part(run: Run, within: Slice) -> Run:
    high = run["high"]
    start = np.searchsorted(high, np.uint64(within.start))
    end = len(run) if within.end == _HASHES else np.searchsorted(high, np.uint64(within.end))
    return run[start:end]


def match(runs: Sequence[Run]) -> Matched:
    """Compare all runs, or the same slice of all of them."""
    entries = _together(runs)
    newest = _newest(entries)
    dead = entries[~newest]
    pinned = entries[newest & ~_oldest(newest) & (entries["flags"] & TOMBSTONE != 0)]
    return Matched(
        int(newest.sum()),
        np.sort(dead["offset"]),
        np.sort(pinned["offset"]),
        sampled(entries),
    )


def sampled(entries: Records) -> Records:
    """Return at most `SAMPLE_RECORDS` entries, in the same order. They are chosen by their offsets alone, so
    all copies of a log choose the same ones, as far as these are left."""
    if len(entries) <= SAMPLE_RECORDS:
        return entries
    scattered = entries["offset"].astype(np.uint64) * _SCATTER
    chosen = np.argpartition(scattered, SAMPLE_RECORDS)[:SAMPLE_RECORDS]
    return entries[np.sort(chosen)]


def merge(runs: Sequence[Run]) -> Run:
    """Return one run with the newest entry of each key in any of the runs."""
    entries = _together(runs)
    return entries[_newest(entries)]


def _together(runs: Sequence[Run]) -> Run:
    """Return all entries in order, each record once: an object may have been indexed twice."""
    entries = ordered(np.concatenate([np.empty(0, ENTRY), *runs]))
    again = _equal(entries, "high") & _equal(entries, "low") & _equal(entries, "offset")
    return _where(entries, np.concatenate([~again, np.ones(min(1, len(entries)), np.bool_)]))


def ordered(entries: Records) -> Run:
    """Sort by hash and offset; equal entries keep their order."""
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
    """Return the wanted entries; usually they are all, and the check is cheaper than a copy."""
    return entries if wanted.all() else entries[wanted]


def _equal(entries: Run, field: str) -> Flags:
    """Return for each entry but the last whether the next one has the same value."""
    return np.asarray(entries[field][1:] == entries[field][:-1], np.bool_)


def _newest(entries: Run) -> Flags:
    superseded = _equal(entries, "high") & _equal(entries, "low")
    return np.concatenate([~superseded, np.ones(min(1, len(entries)), np.bool_)])


def _oldest(newest: Flags) -> Flags:
    return np.concatenate([np.ones(min(1, len(newest)), np.bool_), newest[:-1]])

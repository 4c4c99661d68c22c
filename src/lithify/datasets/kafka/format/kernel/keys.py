"""Hashes of keys, of 128 bits: the probability that two of a billion keys share one is below 1 in 10^20.

`sort_entries` sorts stably by hash and offset:

1. Distribute the entries to buckets by the leading bits of their hash's first half, above the least one.
2. Sort each bucket by insertion. Hashes are spread evenly, so buckets are small.

Keys with many entries share a bucket and would take quadratic time: after `_MOST_MOVES` per entry the
function gives up, and the caller sorts in another way.
"""

from __future__ import annotations

import numpy as np

from lithify.datasets.kafka.format.kernel.layout import Record, Records
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.kernel.cache import entry, inlined
from lithify.kernel.siphash import U64, siphash_128

ENTRY = np.dtype(
    [
        ("high", "u8"),  # the hash, first half
        ("low", "u8"),
        ("offset", "i8"),
        ("size", "u4"),  # bytes of the record
        ("flags", "u4"),
    ]
)
"""The data of one record in an index."""

TOMBSTONE = 1
_MOST_MOVES = 16


@entry
def hash_keys(memory: int, records: Records, skipped: Flags, entries: Records) -> int:
    """Write the entries of all records that have a key and are not in a skipped batch; return their
    number."""
    count = 0
    for number in range(len(records)):
        record = records[number]
        if record.key_len < 0 or skipped[record.batch]:
            continue
        found = entries[count]
        key_len: int = record.key_len
        found.high, found.low = siphash_128(memory + record.key, key_len)
        found.offset = record.offset
        found.size = record.end - record.tail
        found.flags = TOMBSTONE if record.value_len < 0 else 0
        count += 1
    return count


@inlined
def _is_behind(one: Record, high: U64, low: U64, offset: int) -> bool:
    """Return whether the entry sorts after this hash and offset."""
    if one.high != high:
        return bool(one.high > high)
    if one.low != low:
        return bool(one.low > low)
    return bool(one.offset > offset)


@entry
def sort_entries(entries: Records, least: U64, shift: U64, ends: Records, target: Records) -> bool:
    """Write the sorted entries to `target`. Return `False` if that takes too long; `target` is undefined
    then.

    `least` is at most every first half of a hash; `ends` are zeros, one more than the largest `(high - least)
    >> shift`.
    """
    for number in range(len(entries)):
        ends[(entries[number].high - least) >> shift] += 1
    position = 0
    for bucket in range(len(ends)):
        position, ends[bucket] = position + ends[bucket], position
    for number in range(len(entries)):
        bucket = (entries[number].high - least) >> shift
        target[ends[bucket]] = entries[number]
        ends[bucket] += 1
    moves, most = 0, _MOST_MOVES * len(entries)
    for number in range(1, len(entries)):
        found = target[number]
        high, low, offset = found.high, found.low, found.offset
        size, flags = found.size, found.flags
        at = number
        while at > 0 and _is_behind(target[at - 1], high, low, offset):
            target[at] = target[at - 1]
            at -= 1
            moves += 1
            if moves > most:
                return False
        if at < number:
            place = target[at]
            place.high, place.low, place.offset = high, low, offset
            place.size, place.flags = size, flags
    return True

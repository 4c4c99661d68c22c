"""Hashes of keys, of 128 bits: that two of a billion keys share one is less likely than 1 in 10^20."""

from __future__ import annotations

import numpy as np

from lithify.datasets.kafka.kernel.layout import Records
from lithify.datasets.kafka.kernel.rewrite import Flags
from lithify.kernel.cache import entry
from lithify.kernel.siphash import siphash_128

ENTRY = np.dtype(
    [
        ("high", "u8"),  # the hash, first half
        ("low", "u8"),
        ("offset", "i8"),
        ("size", "u4"),  # bytes of the record
        ("flags", "u4"),
    ]
)
"""What an index knows of a record."""

TOMBSTONE = 1


@entry
def hash_keys(memory: int, records: Records, skipped: Flags, entries: Records) -> int:
    """Write the entries of all records that have a key and are not in a skipped batch; how many."""
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

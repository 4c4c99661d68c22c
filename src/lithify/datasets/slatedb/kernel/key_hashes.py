"""Hashes of keys for the filter, several at once.

In SipHash nearly every operation depends on the one before. Hashing eight keys in the lanes of vectors takes
about as long as hashing one.

1. Keys of appended rows collect, with their lengths, until there is one for each lane.
2. If all have the same number of whole words, they are hashed together; otherwise one by one.
3. A key that exceeds its place is hashed immediately.

The hashes are not in the order of the rows, which the filter does not need.

Invariant: between calls the list has one hash for each row of the output except the waiting ones.
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel.layout import Record
from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import copy_key, load_i64, signed, store_64
from lithify.kernel.siphash import LANES, siphash, siphash_lanes

PLACE_BYTES = 128
"""Bytes of a waiting key; reads may include all of its last word."""
_WORD_BITS = 3


@called
def hash_keys(keys: int, lengths: int, count: int, target: int) -> None:
    """Write the hashes of `count` keys that are `PLACE_BYTES` apart."""
    words = load_i64(lengths) >> _WORD_BITS
    are_alike = count == LANES
    for lane in range(1, count):
        are_alike = are_alike and load_i64(lengths + 8 * lane) >> _WORD_BITS == words
    if are_alike:
        siphash_lanes(keys, PLACE_BYTES, words, lengths, target)
        return
    for lane in range(count):
        key_hash = siphash(keys + PLACE_BYTES * lane, load_i64(lengths + 8 * lane))
        store_64(target + 8 * lane, signed(key_hash))


@called
def _hash_waiting(output: Record, count: int) -> None:
    target = output.hashes + 8 * (output.rows - output.waiting_keys)
    hash_keys(output.waiting, output.waiting_lengths, count, target)
    output.waiting_keys = 0


@called
def _hash_at_once(output: Record, key: int, key_len: int) -> None:
    target = output.hashes + 8 * (output.rows - output.waiting_keys)
    store_64(target, signed(siphash(key, key_len)))


@inlined
def add_hash(output: Record, key: int, key_len: int) -> None:
    """Hash a row's key, or let it wait. The row must not be counted yet."""
    count = output.waiting_keys
    if key_len >= PLACE_BYTES:
        _hash_at_once(output, key, key_len)
        return
    copy_key(output.waiting + PLACE_BYTES * count, key, key_len)
    store_64(output.waiting_lengths + 8 * count, key_len)
    if count + 1 == LANES:
        _hash_waiting(output, LANES)
    else:
        output.waiting_keys = count + 1


@called
def add_prefix_hash(output: Record, key: int) -> None:
    """Hash a key's prefix, which must be that long. One as before is not hashed again, as in SlateDB."""
    count = output.prefixes
    prefix_hash = signed(siphash(key, output.prefix_len))
    if count == 0 or load_i64(output.prefix_hashes + 8 * (count - 1)) != prefix_hash:
        store_64(output.prefix_hashes + 8 * count, prefix_hash)
        output.prefixes = count + 1


@called
def finish_hashes(output: Record) -> None:
    """Hash the waiting keys, after all rows were counted."""
    _hash_waiting(output, output.waiting_keys)

"""Hashes of keys for the filter, several at once.

SipHash is one long chain: nearly every operation waits for the one before. Eight keys in the lanes of vectors
cost about as much time as one.

1. The keys of the rows that are added collect, with their lengths, until there are as many as lanes.
2. If all have the same number of whole words, they are hashed together; else one by one.
3. A key that does not fit into its place is hashed at once.

The filter does not ask which row a hash is of, so they stand in any order.

Invariant: between calls the list has one hash for each row of the output but those that wait.
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel.layout import Record
from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import copy_key, load_i64, signed, store_64
from lithify.kernel.siphash import LANES, siphash, siphash_lanes

PLACE_BYTES = 128
"""Of a key that waits; the last word of it may be read to its end."""
_WORD_BITS = 3


@called
def hash_keys(keys: int, lengths: int, count: int, target: int) -> None:
    """Write the hashes of `count` keys that lie `PLACE_BYTES` apart."""
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
    """Hash the key of a row, now or soon, before the row is counted."""
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
def finish_hashes(output: Record) -> None:
    """Hash what still waits, when all rows are counted."""
    _hash_waiting(output, output.waiting_keys)

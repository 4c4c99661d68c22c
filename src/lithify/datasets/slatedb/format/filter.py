"""The filter block of an SST: which keys it may hold (SlateDB format: filter).

A composite block is a count followed by that many named filters: `u16` length and name, `u64` length and
data, all big-endian. Readers skip an unknown name. A legacy block is the data of one bloom filter.

Bloom filter: `u16` number of probes, then `m` bits, bit `b` being bit `b & 7` of byte `b >> 3`. The hash of a
key is SipHash-1-3 with a zero key. With `h` its low and `d` its high 32 bits, both modulo `m`, probe `i`
tests bit `h` after `d` has grown by `i`; then `h` grows by `d`; all modulo `m`.

The size follows from the number of rows, not of distinct keys.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.format.sst import BytesLike
from lithify.kernel.buffers import Bytes, bytes_of
from lithify.kernel.cache import entry
from lithify.kernel.siphash import siphash

_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_PROBES_PER_BIT = np.float32(0.69)
"""About ln 2; the official client multiplies in single precision."""
_U16_MAX = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """One filter of a composite block."""

    name: str
    data: bytes


def encode_filters(filters: Sequence[NamedFilter]) -> bytes:
    """Return a raw composite filter block."""
    parts = [_U16.pack(len(filters))]
    for named in filters:
        name = named.name.encode()
        parts += [_U16.pack(len(name)), name, _U64.pack(len(named.data)), named.data]
    return b"".join(parts)


def decode_filters(raw: BytesLike, where: str) -> list[NamedFilter]:
    """Return the filters of a raw composite filter block. Raise `CorruptObject` if it is not one."""
    try:
        (count,) = _U16.unpack_from(raw, 0)
        position, filters = _U16.size, []
        for _ in range(count):
            (length,) = _U16.unpack_from(raw, position)
            position += _U16.size
            name = bytes(raw[position : position + length])
            (size,) = _U64.unpack_from(raw, position + length)
            start = position + length + _U64.size
            position = start + size
            filters.append(NamedFilter(name.decode(), bytes(raw[start:position])))
        if position != len(raw):
            raise ValueError(f"{len(raw)} bytes, of which the filters take {position}")
    except (struct.error, ValueError) as error:
        raise CorruptObject(where, f"is not a filter block: {error}") from error
    return filters


def probes_of(bits_per_key: int) -> int:
    """Return how many bits of a filter a hash sets, with so many bits per key."""
    return int(np.float32(bits_per_key) * _PROBES_PER_BIT)


def bloom_probes(data: bytes) -> int | None:
    """Return how many bits of this filter a hash sets; `None` if it is no bloom filter."""
    return _U16.unpack_from(data)[0] if len(data) >= _U16.size else None


def may_contain(data: bytes, key_hash: int) -> bool:
    """Return whether a client finds the hash in this bloom filter."""
    count = 8 * (len(data) - _U16.size)
    if not count:
        return False
    bit, step = (key_hash & 0xFFFFFFFF) % count, (key_hash >> 32) % count
    for i in range(_U16.unpack_from(data)[0]):
        step = (step + i) % count
        if not data[_U16.size + (bit >> 3)] >> (bit & 7) & 1:
            return False
        bit = (bit + step) % count
    return True


def build_bloom(hashes: NDArray[np.uint64], bits_per_key: int) -> bytes:
    """Return the data of a bloom filter over one hash for each row."""
    if bits_per_key < 1:
        raise ValueError(f"a bloom filter needs at least one bit per key, not {bits_per_key}")
    probes = probes_of(bits_per_key)
    if probes > _U16_MAX:
        raise ValueError(f"{bits_per_key} bits per key need too many probes")
    bits = np.zeros(-(-len(hashes) * bits_per_key // 8), np.uint8)
    if len(bits):
        _set_bits(bits, hashes, probes)
    return _U16.pack(probes) + bits.tobytes()


def key_hash(key: bytes) -> int:
    """Return the hash of one key."""
    return int(_hash_of(bytes_of(key), len(key)))


@entry
def _hash_of(memory: Bytes, length: int) -> np.uint64:
    return siphash(memory.ctypes.data, length)


@entry
def _set_bits(bits: NDArray[np.uint8], hashes: NDArray[np.uint64], probes: int) -> None:
    count = 8 * len(bits)
    for key_hash in hashes:
        bit = np.int64(key_hash & np.uint64(0xFFFFFFFF)) % count
        step = np.int64(key_hash >> np.uint64(32)) % count
        for i in range(probes):
            step += i
            while step >= count:
                step -= count
            bits[bit >> 3] |= np.uint8(1 << (bit & 7))
            bit += step
            if bit >= count:
                bit -= count

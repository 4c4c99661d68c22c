"""Levels, indexes and values of Parquet pages (Parquet: Encodings).

Data is given as an address and a length, and has `SLACK` bytes after its end. Every length in it is compared
with its end: `INVALID` is returned where it is not what it should be, and nothing is read beyond the slack.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.kernel.cache import called, entry
from lithify.kernel.memory import copy_bytes, load_i64, load_u8, load_u32, signed, store_u8

INVALID = -1
_MAX_SHIFT = 63
_MAX_BLOCK = 1 << 20

Numbers = npt.NDArray[np.int64]
SmallNumbers = npt.NDArray[np.int32]


@called
def _varint(at: int, end: int) -> tuple[int, int]:
    """Return an unsigned number, and where it ends: `INVALID` if it does not end or has over 63 bits."""
    number, shift = 0, 0
    while at < end and shift < _MAX_SHIFT:
        byte = load_u8(at)
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    return 0, INVALID


@called
def _zigzag(at: int, end: int) -> tuple[int, int]:
    """Return a signed number of 64 bits, and where it ends, or `INVALID`."""
    number, shift = np.uint64(0), 0
    while at < end and shift <= _MAX_SHIFT:
        byte = load_u8(at)
        at += 1
        number |= np.uint64(byte & 127) << np.uint64(shift)
        if byte < 128:
            half = signed(number >> np.uint64(1))
            return (~half if number & np.uint64(1) else half), at
        shift += 7
    return 0, INVALID


@entry
def decode_hybrid(base: int, length: int, width: int, limit: int, out: SmallNumbers) -> int:
    """Decode as many numbers of `width` bits (0 to 32), each below `limit`, as `out` has. Return the bytes
    that they take, or `INVALID`."""
    at, end, done, count = base, base + length, 0, out.shape[0]
    mask = (1 << width) - 1
    while done < count:
        head, at = _varint(at, end)
        if at == INVALID:
            return INVALID
        if head & 1:
            groups = head >> 1
            if groups > _MAX_BLOCK * 256:
                return INVALID
            here = min(groups * 8, count - done)
            if (here * width + 7) // 8 > end - at:
                return INVALID
            highest = 0
            for n in range(here):
                bit = n * width
                value = (load_i64(at + (bit >> 3)) >> (bit & 7)) & mask
                highest = max(highest, value)
                out[done + n] = value
            if highest >= limit:
                return INVALID
            at += min(groups * width, end - at)  # some writers cut the last group short
        else:
            size = (width + 7) // 8
            if size > end - at:
                return INVALID
            value = load_i64(at) & ((1 << (8 * size)) - 1)
            if value >= limit:
                return INVALID
            at += size
            here = min(head >> 1, count - done)
            for n in range(here):
                out[done + n] = value
        done += here
    return at - base


@called
def _put_varint(number: int, at: int) -> int:
    while number > 127:
        store_u8(at, number & 127 | 128)
        at += 1
        number >>= 7
    store_u8(at, number)
    return at + 1


@called
def _put_literals(values: SmallNumbers, start: int, end: int, width: int, at: int) -> int:
    groups = (end - start + 7) // 8
    at = _put_varint(groups << 1 | 1, at)
    held, bits = np.int64(0), 0
    for n in range(start, start + groups * 8):
        value = np.int64(values[n]) if n < end else np.int64(0)
        held |= value << bits
        bits += width
        while bits >= 8:
            store_u8(at, held & 255)
            at += 1
            held >>= 8
            bits -= 8
    return at


@entry
def encode_hybrid(values: SmallNumbers, width: int, base: int) -> int:
    """Encode numbers of `width` bits at an address with room for `hybrid_bytes`. Return the bytes taken."""
    at, n, literals, count = base, 0, 0, values.shape[0]
    while n < count:
        run = 1
        while n + run < count and values[n + run] == values[n]:
            run += 1
        fill = -(n - literals) % 8
        if run - fill >= 8 or (n + run == count and n == literals):
            if n > literals:
                at = _put_literals(values, literals, n + fill, width, at)
                n += fill
                run -= fill
            at = _put_varint(run << 1, at)
            value = np.int64(values[n])
            for _ in range((width + 7) // 8):
                store_u8(at, value & 255)
                at += 1
                value >>= 8
            n += run
            literals = n
        else:
            n += run
    if literals < count:
        at = _put_literals(values, literals, count, width, at)
    return at - base


def hybrid_bytes(count: int, width: int) -> int:
    """Return the most bytes that numbers take."""
    return (count + 7) // 8 * (width + 16) + 16


@entry
def find_ends(base: int, length: int, ends: Numbers) -> int:
    """Note where each of consecutive texts, after their lengths, ends. Return the bytes that all take, or
    `INVALID`."""
    at = 0
    for n in range(ends.shape[0]):
        if length - at < 4:
            return INVALID
        size = load_u32(base + at)
        at += 4
        if size > length - at:
            return INVALID
        at += size
        ends[n] = at
    return at


@entry
def gather(base: int, ends: Numbers, indexes: SmallNumbers, target: int) -> int:
    """Copy texts of a dictionary, with their lengths, to an address with room for them. Return their size."""
    at = target
    for n in range(indexes.shape[0]):
        index = indexes[n]
        start = ends[index - 1] if index else 0
        copy_bytes(at, base + start, ends[index] - start)
        at += ends[index] - start
    return at - target


@entry
def decode_delta(base: int, length: int, out: Numbers) -> int:
    """Decode as many numbers of `DELTA_BINARY_PACKED` as `out` has. Return the bytes that they take, or
    `INVALID`."""
    end = base + length
    block, at = _varint(base, end)
    minis, count, first = 0, 0, 0
    if at != INVALID:
        minis, at = _varint(at, end)
    if at != INVALID:
        count, at = _varint(at, end)
    if at != INVALID:
        first, at = _zigzag(at, end)
    if at == INVALID or count != out.shape[0] or not 0 < block <= _MAX_BLOCK or not 0 < minis <= block:
        return INVALID
    each = block // minis
    if each * minis != block or each % 8:
        return INVALID
    if count:
        out[0] = first
    value, done = first, 1
    while done < count:
        least, at = _zigzag(at, end)
        if at == INVALID or minis > end - at:
            return INVALID
        widths, at = at, at + minis
        for mini in range(minis):
            if done >= count:
                break
            width = load_u8(widths + mini)
            if width > 64 or each * width // 8 > end - at:
                return INVALID
            mask = -1 if width == 64 else (1 << width) - 1
            for n in range(min(each, count - done)):
                bit = n * width
                place, shift = at + (bit >> 3), bit & 7
                part = load_i64(place)
                if shift:
                    part = (part >> shift) & ((1 << (64 - shift)) - 1)
                    if shift + width > 64:
                        part |= load_u8(place + 8) << (64 - shift)
                value += least + (part & mask)
                out[done] = value
                done += 1
            at += each * width // 8
    return at - base


@entry
def are_prefixes(prefixes: Numbers, suffixes: Numbers, most: int) -> bool:
    """Return whether each prefix is at most as long as the text before it, and no text longer than `most`."""
    before = 0
    for n in range(prefixes.shape[0]):
        if not 0 <= prefixes[n] <= before or not 0 <= suffixes[n] <= most:
            return False
        before = prefixes[n] + suffixes[n]
        if before > most:
            return False
    return True

"""Snappy's raw format: a varint of the length, then literals and copies.

Compression follows the reference algorithm with its hash table of at most 2^14 entries, in fragments of 64
KiB, because the bytes must equal other programs' output:

1. Search for four bytes whose hash occurred before, in steps that grow while nothing is found.
2. Write the skipped bytes as a literal, extend the match, write it as copies.
3. After a match, try the next position before searching again.

Decompression checks every length and offset against the rest of input and output.
"""

from __future__ import annotations

import numpy as np

from lithify.datasets.slatedb.kernel.varint import read_varint, write_varint
from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import (
    copy_16,
    copy_32,
    copy_bytes,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    trailing_zeros,
)

TABLE_BYTES = 2 * (1 << 14)
"""Size of the hash table that `compress` uses."""
MAX_RATIO = 22
"""Three bytes can stand for at most 64."""

_FRAGMENT_BYTES = 1 << 16
_MIN_TABLE_ENTRIES = 1 << 8
_MAX_TABLE_ENTRIES = 1 << 14
_MIN_MATCHED_INPUT = 17
_MARGIN_BYTES = 15
_MULTIPLIER = 0x1E35A7BD
_U32 = 0xFFFFFFFF
_NO_DIFFERENCE = np.uint64(0)
_FIRST_SKIP = 32

_LITERAL = 0
_COPY_1 = 1
_COPY_2 = 2
_LONGEST_INLINE_LITERAL = 60
_CORRUPT = -1


@inlined
def copy_literal(target: int, source: int, length: int) -> None:
    """Copy a literal; may read and write up to 31 bytes past its end."""
    if length <= 32:
        copy_32(target, source)
    else:
        copy_bytes(target, source, length)


@inlined
def _write_literal(target: int, source: int, length: int) -> int:
    stored = length - 1
    if stored < _LONGEST_INLINE_LITERAL:
        store_u8(target, stored << 2)
        target += 1
    elif stored < 256:
        store_u8(target, _LONGEST_INLINE_LITERAL << 2)
        store_u8(target + 1, stored)
        target += 2
    else:
        store_u8(target, (_LONGEST_INLINE_LITERAL + 1) << 2)
        store_u16(target + 1, stored)
        target += 3
    copy_literal(target, source, length)
    return target + length


@inlined
def _write_copy_2(target: int, offset: int, length: int) -> int:
    store_u8(target, (length - 1) << 2 | _COPY_2)
    store_u16(target + 1, offset)
    return target + 3


@inlined
def _write_copy(target: int, offset: int, length: int) -> int:
    while length >= 68:
        target = _write_copy_2(target, offset, 64)
        length -= 64
    if length > 64:
        target = _write_copy_2(target, offset, 60)
        length -= 60
    if length <= 11 and offset <= 2047:
        store_u8(target, (offset >> 8) << 5 | (length - 4) << 2 | _COPY_1)
        store_u8(target + 1, offset & 0xFF)
        return target + 2
    return _write_copy_2(target, offset, length)


@inlined
def _match_end(source: int, position: int, candidate: int, length: int) -> int:
    """Return the end of the match at `position` with the earlier `candidate`."""
    while position + 8 <= length:
        difference = load_u64(source + position) ^ load_u64(source + candidate)
        if difference != _NO_DIFFERENCE:
            return position + (trailing_zeros(difference) >> 3)
        position += 8
        candidate += 8
    while position < length and load_u8(source + position) == load_u8(source + candidate):
        position += 1
        candidate += 1
    return position


@inlined
def _hash(word: int, shift: int) -> int:
    return ((word * _MULTIPLIER) & _U32) >> shift


@inlined
def _swap(table: int, slot: int, position: int) -> int:
    """Put `position` into the slot; return the slot's previous position."""
    before = load_u16(table + 2 * slot)
    store_u16(table + 2 * slot, position)
    return before


@inlined
def _find_match(source: int, start: int, limit: int, table: int, shift: int) -> tuple[int, int]:
    """Return the next position whose four bytes occurred before, and that place; -1 if there is none."""
    skip = _FIRST_SKIP
    following = start
    following_slot = _hash(load_u32(source + start), shift)
    while True:
        position = following
        step = skip >> 5
        skip += step
        following = position + step
        if following > limit:
            return -1, 0
        candidate = _swap(table, following_slot, position)
        following_slot = _hash(load_u32(source + following), shift)
        if load_u32(source + position) == load_u32(source + candidate):
            return position, candidate


@called
def _compress_fragment(source: int, length: int, target: int, table: int) -> int:
    if length < _MIN_MATCHED_INPUT:
        return _write_literal(target, source, length)
    shift = 24
    entries = _MIN_TABLE_ENTRIES
    while entries < _MAX_TABLE_ENTRIES and entries < length:
        shift -= 1
        entries *= 2
    for entry in range(entries):
        store_u16(table + 2 * entry, 0)
    limit = length - _MARGIN_BYTES
    written = 0
    position = 1
    while True:
        position, candidate = _find_match(source, position, limit, table, shift)
        if position < 0:
            break
        target = _write_literal(target, source + written, position - written)
        while True:
            end = _match_end(source, position + 4, candidate + 4, length)
            target = _write_copy(target, position - candidate, end - position)
            position = written = end
            if position >= limit:
                break
            _swap(table, _hash(load_u32(source + position - 1), shift), position - 1)
            word = load_u32(source + position)
            candidate = _swap(table, _hash(word, shift), position)
            if word != load_u32(source + candidate):
                break
        if position >= limit:
            break
        position += 1
    if written < length:
        target = _write_literal(target, source + written, length - written)
    return target


@called
def compress(source: int, length: int, target: int, table: int) -> int:
    """Compress into `target`, which has room for `length`, a sixth more, and 64 bytes. Return the compressed
    length."""
    position = write_varint(target, length)
    while length > 0:
        fragment = min(length, _FRAGMENT_BYTES)
        position = _compress_fragment(source, fragment, position, table)
        source += fragment
        length -= fragment
    return position - target


@inlined
def declared_size(source: int, length: int) -> int:
    """Return the uncompressed length that the data declare; negative if they declare none."""
    size, _ = read_varint(source, source + length)
    return size


@inlined
def copy_match(target: int, offset: int, length: int) -> None:
    """Copy the bytes `offset` back, which may overlap; may write up to 31 bytes past the end."""
    source = target - offset
    done = 0
    if offset >= 32:
        while done < length:
            copy_32(target + done, source + done)
            done += 32
    elif offset >= 16:
        while done < length:
            copy_16(target + done, source + done)
            done += 16
    else:
        while done < length:
            store_u8(target + done, load_u8(source + done))
            done += 1


@inlined
def _read_literal_len(source: int, end: int, tag: int) -> tuple[int, int]:
    """Return the length of a literal and the start of its bytes."""
    length = (tag >> 2) + 1
    if length <= _LONGEST_INLINE_LITERAL:
        return length, source
    extra = length - _LONGEST_INLINE_LITERAL
    if extra > end - source:
        return _CORRUPT, source
    length = 0
    for index in range(extra):
        length |= load_u8(source + index) << (8 * index)
    return length + 1, source + extra


@inlined
def _read_copy(source: int, end: int, tag: int) -> tuple[int, int, int]:
    """Return length and offset of a copy, and the start of the next element."""
    kind = tag & 3
    extra = 4 if kind == 3 else kind
    if extra > end - source:
        return _CORRUPT, 0, source
    if kind == _COPY_1:
        return ((tag >> 2) & 7) + 4, (tag >> 5) << 8 | load_u8(source), source + 1
    offset = load_u16(source) if kind == _COPY_2 else load_u32(source)
    return (tag >> 2) + 1, offset, source + extra


@called
def decompress(source: int, length: int, target: int, capacity: int) -> int:
    """Decompress into `target`. Return the uncompressed length, or -1 for corrupt data."""
    end = source + length
    size, source = read_varint(source, end)
    if size < 0 or size > capacity:
        return _CORRUPT
    position = target
    target_end = target + size
    while source < end:
        tag = load_u8(source)
        source += 1
        if tag & 3 == _LITERAL:
            count, source = _read_literal_len(source, end, tag)
            if count < 0 or count > end - source or count > target_end - position:
                return _CORRUPT
            copy_literal(position, source, count)
            source += count
        else:
            count, offset, source = _read_copy(source, end, tag)
            if count < 0 or offset == 0 or offset > position - target or count > target_end - position:
                return _CORRUPT
            copy_match(position, offset, count)
        position += count
    return size if position == target_end else _CORRUPT

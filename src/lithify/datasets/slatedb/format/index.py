"""The index block of an SST: where each data block starts, and a key that separates it from its predecessor
(SlateDB format: index).

Reading a raw (unsealed) index, in compiled code:

1. Check the root table and the vector of blocks, which has `n` of them.
2. For each block check its table, then take its offset and the position of its key.
3. Offsets must ascend strictly and stay below the end of the data blocks. Keys must not descend.
4. Copy the keys into one array.

A task of a large SST needs few of its blocks. `decode_blocks` finds the first and the last by bisection and
reads only those, checked in the same way.

Writing produces the same bytes as the official client: tables are laid out backwards, and two blocks share a
vtable if their tables have the same fields at the same positions.

Keys are shortened: block 0 has the empty key, the others the shortest prefix of their first key that is
greater than the last key of the previous block. Never take an SST's first key from here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format.flatbuffer import SHARING_ALLOWANCE_BYTES, SHARING_FACTOR
from lithify.datasets.slatedb.format.sst import BytesLike
from lithify.datasets.slatedb.kernel import flatbuffer as fb
from lithify.datasets.slatedb.model import SstInfo
from lithify.kernel.cache import entry, inlined

_COUNT = struct.Struct("<I")
_BLOCK_BYTES_MAX = 64
"""The most bytes of one block in the buffer, without its key: table, reference, vtable and padding."""
_ROOT_BYTES_MAX = 64
_BLOCK_SLOTS = 2
_MAX_TABLE_BYTES = 24

_MISSING = -10
_OFFSET_ORDER = -11
_KEY_ORDER = -12
_TOO_LARGE = -13
_PROBLEMS = {
    fb.OUTSIDE: "lies outside the block",
    fb.UNALIGNED: "is not aligned",
    _MISSING: "lacks a required field",
    _OFFSET_ORDER: "does not start after the block before it and before the end of the data",
    _KEY_ORDER: "has a key below the one before",
    _TOO_LARGE: f"shares bytes with others, to more than {SHARING_FACTOR} times the size of the whole",
}


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """The positions of an SST's data blocks. Block `i` spans `offsets[i]` to `offsets[i + 1]`."""

    offsets: NDArray[np.int64]
    """One more than there are blocks; the last is the end of the data."""
    key_bytes: NDArray[np.uint8]
    key_offsets: NDArray[np.int64]
    """Key `i` is `key_bytes[key_offsets[i] : key_offsets[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def key(self, i: int) -> bytes:
        """Return the separating key of block `i`."""
        return self.key_bytes[self.key_offsets[i] : self.key_offsets[i + 1]].tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockIndex) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.offsets, other.offsets),
                (self.key_bytes, other.key_bytes),
                (self.key_offsets, other.key_offsets),
            )
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash


def decode_index(raw: BytesLike, info: SstInfo, name: str) -> BlockIndex:
    """Return the index in an unsealed index block. `name` identifies block and object in errors."""
    return decode_blocks(raw, info, name, None, None)[1]


def decode_blocks(
    raw: BytesLike, info: SstInfo, name: str, start: bytes | None, end: bytes | None
) -> tuple[int, BlockIndex]:
    """Return the part of an index with all blocks that may hold keys from `start` (inclusive) to `end`
    (exclusive), perhaps some more, and the number of its first block."""
    data = np.frombuffer(raw, np.uint8)
    blocks = _find_blocks(data)
    if blocks < 0:
        _refuse(blocks, "the index", name)
    (count,) = _COUNT.unpack_from(raw, blocks)
    if count == 0:
        raise CorruptObject(name, "the index has no blocks")
    # A block whose index key equals the start may follow one that ends with versions of that key.
    first = max(0, _below(data, blocks, count, start, name) - 1) if start is not None else 0
    last = _below(data, blocks, count, end, name) if end is not None else count
    last = min(max(first, last) + 1, count)
    return first, _decode(data, blocks, first, last, info, name)


def _below(data: fb.Buffer, blocks: int, count: int, key: bytes, name: str) -> int:
    """Return how many blocks have an index key below `key`."""
    found, block = _blocks_below(data, blocks, count, np.frombuffer(key, np.uint8))
    if found < 0:
        _refuse(found, f"block {block} of the index", name)
    return found


def _decode(data: fb.Buffer, blocks: int, first: int, last: int, info: SstInfo, name: str) -> BlockIndex:
    count = last - first
    offsets = np.empty(count + 1, np.int64)
    key_offsets = np.empty(count + 1, np.int64)
    key_starts = np.empty(count, np.int64)
    budget = SHARING_FACTOR * len(data) + SHARING_ALLOWANCE_BYTES
    status, block = _read_blocks(data, blocks, first, info.data_end, budget, offsets, key_starts, key_offsets)
    if status < 0:
        _refuse(status, f"block {first + block} of the index", name)
    key_bytes = np.empty(key_offsets[count], np.uint8)
    block = _copy_keys(data, key_starts, key_offsets, key_bytes)
    if block < count:
        _refuse(_KEY_ORDER, f"block {first + block} of the index", name)
    return BlockIndex(offsets, key_bytes, key_offsets)


def encode_index(index: BlockIndex) -> bytes:
    """Return the raw index block, byte for byte as the official client writes it."""
    count = len(index)
    buffer = np.empty(len(index.key_bytes) + _BLOCK_BYTES_MAX * count + _ROOT_BYTES_MAX, np.uint8)
    used = _write_index(buffer, index.offsets, index.key_bytes, index.key_offsets)
    return buffer[len(buffer) - used :].tobytes()


def _refuse(status: int, what: str, name: str) -> None:
    if status == fb.UNKNOWN_SLOT:
        raise Unsupported(f"{name}: {what} has a field which this version of Lithify does not know")
    raise CorruptObject(name, f"{what} {_PROBLEMS[status]}")


@entry
def _find_blocks(data: fb.Buffer) -> int:
    """Return the position of the vector of blocks, or a negative status."""
    table = fb.root(data)
    if table < 0:
        return table
    status = fb.check_table(data, table, 1)
    if status < 0:
        return status
    reference = fb.slot(data, table, 0, fb.REF_BYTES)
    if reference == fb.ABSENT:
        return _MISSING
    return fb.vector(data, reference, fb.REF_BYTES) if reference > 0 else reference


@inlined
def _block(data: fb.Buffer, blocks: int, i: int) -> tuple[int, int, int]:
    """Return a negative status or 0, and for block `i` its offset and the position of its key: a length, then
    bytes."""
    reference = blocks + 4 + 4 * i
    table = reference + fb.load(data, reference, 4)
    status = fb.check_table(data, table, _BLOCK_SLOTS)
    if status < 0:
        return status, 0, 0
    place = fb.slot(data, table, 0, 8)
    if place < 0:
        return place, 0, 0
    offset = 0 if place == fb.ABSENT else fb.load(data, place, 8)
    place = fb.slot(data, table, 1, fb.REF_BYTES)
    if place == fb.ABSENT:
        return _MISSING, 0, 0
    if place > 0:
        place = fb.vector(data, place, 1)
    if place < 0:
        return place, 0, 0
    return 0, offset, place


@inlined
def _is_key_below(data: fb.Buffer, one: int, other: int) -> bool:
    """Return whether the key at the position `one` is below the key at `other`."""
    length, other_length = fb.load(data, one, 4), fb.load(data, other, 4)
    shared = min(length, other_length)
    j = 0
    while j < shared and data[one + 4 + j] == data[other + 4 + j]:
        j += 1
    return data[one + 4 + j] < data[other + 4 + j] if j < shared else length < other_length


@entry
def _blocks_below(data: fb.Buffer, blocks: int, count: int, key: fb.Buffer) -> tuple[int, int]:
    """Return how many of the blocks have a key below `key`, or a negative status and the block it concerns.
    The keys read must be in order, otherwise the result would be arbitrary."""
    low, high = 0, count
    below, above = -1, -1  # positions of the nearest keys read so far
    while low < high:
        middle = (low + high) // 2
        status, _, place = _block(data, blocks, middle)
        if status < 0:
            return status, middle
        if (below >= 0 and _is_key_below(data, place, below)) or (
            above >= 0 and _is_key_below(data, above, place)
        ):
            return _KEY_ORDER, middle
        length = fb.load(data, place, 4)
        shared = min(length, len(key))
        j = 0
        while j < shared and data[place + 4 + j] == key[j]:
            j += 1
        if data[place + 4 + j] < key[j] if j < shared else length < len(key):
            low, below = middle + 1, place
        else:
            high, above = middle, place
    return low, 0


@entry
def _read_blocks(
    data: fb.Buffer,
    blocks: int,
    first: int,
    data_end: int,
    budget: int,
    offsets: fb.Numbers,
    key_starts: fb.Numbers,
    key_offsets: fb.Numbers,
) -> tuple[int, int]:
    """Fill the arrays from block `first` on. Return a status and the block it concerns, counted from
    there."""
    total = 0
    previous = -1
    count = len(key_starts)
    for i in range(count):
        status, offset, place = _block(data, blocks, first + i)
        if status < 0:
            return status, i
        if offset <= previous or offset >= data_end:
            return _OFFSET_ORDER, i
        previous = offset
        offsets[i] = offset
        key_starts[i] = place + 4
        key_offsets[i] = total
        total += fb.load(data, place, 4)
        if total > budget:
            return _TOO_LARGE, i
    offsets[count] = data_end
    key_offsets[count] = total
    if first + count < fb.load(data, blocks, 4):
        status, offset, _ = _block(data, blocks, first + count)
        if status < 0:
            return status, count
        if offset <= previous or offset >= data_end:
            return _OFFSET_ORDER, count
        offsets[count] = offset
    return 0, 0


@entry
def _copy_keys(data: fb.Buffer, key_starts: fb.Numbers, key_offsets: fb.Numbers, key_bytes: fb.Buffer) -> int:
    """Copy all keys. Return the first block whose key descends, else the number of blocks."""
    count = len(key_starts)
    for i in range(count):
        start = key_starts[i]
        target = key_offsets[i]
        length = key_offsets[i + 1] - target
        for j in range(length):
            key_bytes[target + j] = data[start + j]
        if i == 0:
            continue
        before = key_offsets[i - 1]
        shared = min(target - before, length)
        j = 0
        while j < shared and key_bytes[before + j] == key_bytes[target + j]:
            j += 1
        if key_bytes[before + j] > key_bytes[target + j] if j < shared else target - before > length:
            return i
    return count


@entry
def _write_index(
    buffer: fb.Buffer, offsets: fb.Numbers, key_bytes: fb.Buffer, key_offsets: fb.Numbers
) -> int:
    """Write the index to the end of the buffer; return its size."""
    count = len(offsets) - 1
    tables = np.empty(count, np.int64)
    # The size of a table shows which of its two fields it has, and therefore its vtable.
    vtables = np.zeros(_MAX_TABLE_BYTES + 1, np.int64)
    fields = np.zeros(_BLOCK_SLOTS, np.int64)
    alignment = 4
    used = 0
    for i in range(count):
        used = fb.put_bytes(buffer, used, key_bytes, key_offsets[i], key_offsets[i + 1] - key_offsets[i])
        key = used
        tail = used
        fields[0] = 0
        if offsets[i] != 0:
            used = fb.put(buffer, used, offsets[i], 8)
            fields[0] = used
            alignment = 8
        used = fb.put_reference(buffer, used, key)
        fields[1] = used
        used += 4
        table = used
        if vtables[table - tail] == 0:
            used = fb.put_vtable(buffer, used, table, tail, fields)
            vtables[table - tail] = used
        fb.link_vtable(buffer, table, vtables[table - tail])
        tables[i] = table
    blocks = fb.put_references(buffer, used, tables)
    used = fb.put_reference(buffer, blocks, blocks)
    table = used + 4
    root_field = np.array([used])
    used = fb.put_vtable(buffer, table, table, blocks, root_field)
    fb.link_vtable(buffer, table, used)
    return fb.finish(buffer, used, table, alignment)

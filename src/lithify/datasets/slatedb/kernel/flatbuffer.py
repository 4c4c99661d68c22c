"""FlatBuffers in compiled code, for vectors of many small tables (the index and the stats of an SST).

Reading is checked: `check_table` verifies that a table, its vtable and the vtable's entries lie in the
buffer; `slot` then finds a field. For damaged data, functions return a negative status (`OUTSIDE`,
`UNALIGNED`, `UNKNOWN_SLOT`) instead of a position.

Writing goes from the end of the buffer backwards, as the format requires. `used` is the number of bytes
written so far; every `put_…` returns the new number. The position of a written value is `used` right after
writing it. The caller provides a buffer that is large enough.

A buffer is an array of bytes. Positions and lengths are int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lithify.kernel.cache import inlined

Buffer = NDArray[np.uint8]
Numbers = NDArray[np.int64]

ABSENT = 0
OUTSIDE = -1
UNALIGNED = -2
UNKNOWN_SLOT = -3

REF_BYTES = 4
_U32_BITS = 32


@inlined
def load(data: Buffer, position: int, width: int) -> int:
    """Return the little-endian number of `width` bytes. Eight bytes are read as a signed number."""
    value = np.int64(0)
    for i in range(width - 1, -1, -1):
        value = (value << 8) | np.int64(data[position + i])
    return value  # type: ignore[return-value]  # one and the same type in compiled code


@inlined
def check_table(data: Buffer, table: int, known_slots: int) -> int:
    """Return 0 if the table at `table` can be used, otherwise a negative status."""
    size = len(data)
    if table < 0 or table + 4 > size:
        return OUTSIDE
    if table % 4 != 0:
        return UNALIGNED
    jump = load(data, table, 4)
    vtable = table - (jump - (1 << _U32_BITS) if jump >> (_U32_BITS - 1) else jump)
    if vtable < 0 or vtable + 4 > size:
        return OUTSIDE
    if vtable % 2 != 0:
        return UNALIGNED
    vtable_size = load(data, vtable, 2)
    table_size = load(data, vtable + 2, 2)
    if vtable_size < 4 or vtable_size % 2 != 0 or vtable + vtable_size > size:
        return OUTSIDE
    if table_size < 4 or table + table_size > size:
        return OUTSIDE
    for entry in range(vtable + 4 + 2 * known_slots, vtable + vtable_size, 2):
        if load(data, entry, 2) != 0:
            return UNKNOWN_SLOT
    return 0


@inlined
def slot(data: Buffer, table: int, number: int, width: int) -> int:
    """Return the position of field `number` of a checked table, `ABSENT`, or a negative status."""
    jump = load(data, table, 4)
    vtable = table - (jump - (1 << _U32_BITS) if jump >> (_U32_BITS - 1) else jump)
    if 4 + 2 * number + 2 > load(data, vtable, 2):
        return ABSENT
    offset = load(data, vtable + 4 + 2 * number, 2)
    if offset == 0:
        return ABSENT
    if offset < 4 or offset + width > load(data, vtable + 2, 2):
        return OUTSIDE
    if (table + offset) % width != 0:
        return UNALIGNED
    return table + offset


@inlined
def vector(data: Buffer, reference: int, item_size: int) -> int:
    """Return the position of the vector (count, then items) that the field at `reference` refers to, or a
    negative status."""
    size = len(data)
    start = reference + load(data, reference, 4)
    if start + 4 > size:
        return OUTSIDE
    if start % 4 != 0:
        return UNALIGNED
    if load(data, start, 4) * item_size > size - start - 4:
        return OUTSIDE
    return start


@inlined
def root(data: Buffer) -> int:
    """Return the position of the root table, or a negative status."""
    return load(data, 0, 4) if len(data) >= 4 else OUTSIDE


@inlined
def put(buffer: Buffer, used: int, value: int, width: int) -> int:
    """Write a little-endian number, aligned to its width."""
    used = pad(buffer, used, width, width)
    used += width
    start = len(buffer) - used
    for i in range(width):
        buffer[start + i] = (value >> (8 * i)) & 0xFF
    return used


@inlined
def put_reference(buffer: Buffer, used: int, target: int) -> int:
    """Write an offset to the value at position `target`."""
    used = pad(buffer, used, REF_BYTES, REF_BYTES)
    return put(buffer, used, used + REF_BYTES - target, REF_BYTES)


@inlined
def pad(buffer: Buffer, used: int, length: int, alignment: int) -> int:
    """Write zeros so that after `length` more bytes `used` is a multiple of `alignment`."""
    zeros = -(used + length) % alignment
    for i in range(zeros):
        buffer[len(buffer) - used - 1 - i] = 0
    return used + zeros


@inlined
def put_bytes(buffer: Buffer, used: int, source: Buffer, start: int, length: int) -> int:
    used = pad(buffer, used, length, 4)
    used += length
    target = len(buffer) - used
    for i in range(length):
        buffer[target + i] = source[start + i]
    return put(buffer, used, length, 4)


@inlined
def put_references(buffer: Buffer, used: int, targets: Numbers) -> int:
    used = pad(buffer, used, REF_BYTES * len(targets), REF_BYTES)
    for i in range(len(targets) - 1, -1, -1):
        used = put_reference(buffer, used, targets[i])
    return put(buffer, used, len(targets), 4)


@inlined
def put_vtable(buffer: Buffer, used: int, table: int, tail: int, fields: Numbers) -> int:
    """Write the vtable of the table at `table`, whose fields begin after `tail` and have the positions
    `fields` (0: absent). Absent fields at the end are left out."""
    count = len(fields)
    while count > 0 and fields[count - 1] == 0:
        count -= 1
    for i in range(count - 1, -1, -1):
        used = put(buffer, used, table - fields[i] if fields[i] != 0 else 0, 2)
    used = put(buffer, used, table - tail, 2)
    return put(buffer, used, 4 + 2 * count, 2)


@inlined
def link_vtable(buffer: Buffer, table: int, vtable: int) -> None:
    """Make the table at position `table` refer to the vtable at position `vtable`."""
    put(buffer, table - 4, vtable - table, 4)


@inlined
def finish(buffer: Buffer, used: int, table: int, alignment: int) -> int:
    """Write the reference to the root table. `alignment` is the widest in the buffer."""
    used = pad(buffer, used, REF_BYTES, alignment)
    return put_reference(buffer, used, table)

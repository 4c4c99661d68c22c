"""Finds parts of Avro records in a block (Avro: binary encoding), checking every length against the end of
the block.

A *program* describes one record: one row per step, with `OP`, `ARGUMENT` and `SLOT`. A step with a slot notes
two numbers for each record:

- `NUMBER`: 0 and the number;
- `TEXT` (bytes after their length): where they begin and end in the block;
- `BEGIN` and `END`: where the bytes between these steps begin and end;
- a step skipped because its `OPTION` is null: both are `NULL`.

A list is `LIST`, the steps of an element, and `NEXT`. If the element is `KEY` and a step with the list's
slot, only the value of that key is noted (the last of several), or `MISSING`. An element has at least one
byte and no list in it. So no list is longer than the rest of the block, and time is linear in the bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.datasets.iceberg.kernel.layout import (
    ARGUMENT,
    BEGIN,
    BYTES,
    KEY,
    LIST,
    MISSING,
    NEXT,
    NO_SLOT,
    NULL,
    NUMBER,
    OP,
    OPTION,
    SLOT,
    TEXT,
)
from lithify.kernel.cache import entry
from lithify.kernel.zigzag import INVALID, read_varlong

Numbers = npt.NDArray[np.int64]


@entry
def locate(base: int, start: int, length: int, program: Numbers, found: Numbers) -> int:
    """Decode consecutive records, one for each column of `found`, and write the numbers that `program`
    selects into that column. The records begin at offset `start` of a block of `length` bytes at the
    address `base`. Return the offset after the last record, or -1 - n if record n (from 0) does not fit
    into the block."""
    position, end = base + start, base + length
    for record in range(found.shape[1]):
        for slot in range(found.shape[0]):
            found[slot, record] = NULL
        step, left, is_noted = 0, 0, True
        while step < program.shape[0]:
            op, argument, slot = program[step, OP], program[step, ARGUMENT], program[step, SLOT]
            is_noted_here = slot != NO_SLOT and is_noted
            step += 1
            if op == BYTES:
                position = position + argument if argument <= end - position else INVALID
            elif op == NUMBER:
                number, position = read_varlong(position, end)
                if is_noted_here:
                    found[slot, record], found[slot + 1, record] = 0, number
            elif op == TEXT:
                size, position = read_varlong(position, end)
                if position != INVALID and 0 <= size <= end - position:
                    if is_noted_here:
                        found[slot, record], found[slot + 1, record] = position - base, position + size - base
                    position += size
                else:
                    position = INVALID
            elif op == OPTION:
                which, position = read_varlong(position, end)
                step = step if which > 0 else argument
            elif op == LIST:
                left, step = 0, argument
                if is_noted_here:
                    found[slot, record] = MISSING
            elif op == KEY:
                key, position = read_varlong(position, end)
                is_noted = key == argument
            elif op == NEXT:
                is_noted = True
                if left == 0:
                    left, position = read_varlong(position, end)
                    if left < 0:
                        left = -left
                        _, position = read_varlong(position, end)  # the size of the list's block in bytes
                    if left < 0 or left > end - position:
                        position = INVALID
                if left != 0:
                    left -= 1
                    step = argument
            elif op == BEGIN:
                found[slot, record] = position - base
            else:
                found[slot + 1, record] = position - base
            if position == INVALID:
                return -1 - record
    return position - base

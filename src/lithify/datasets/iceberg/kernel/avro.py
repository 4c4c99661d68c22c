"""Finding parts of Avro records in a block (Avro: binary encoding), every length checked against the end of
the block before it is used.

A *program* goes through one record: a row for each step, `OP`, `ARGUMENT` and `SLOT`. A step with a slot
notes two numbers for each record:

- `NUMBER` 0 and the number;
- `TEXT`, bytes behind their length, where these begin and end in the block;
- `BEGIN` and `END` where what is between them begins and ends;
- nothing where an `OPTION` that leads around it is null: then both are `NULL`.

A list is `LIST`, the steps of an element, and `NEXT`. Where these are `KEY` and a step with the slot of the
list, only the value of that key is noted, of several the last, or `MISSING`. An element takes a byte at least
and has no list in it, so no list is longer than what is left of the block, and time is linear in the bytes.
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
    """Note the parts of the next records, as many as `found` has columns, from `start` on in the `length`
    bytes at the address `base`. Where they end, or less than 0 where one does not fit: of the first one -1.
    """
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
                        _, position = read_varlong(position, end)  # its bytes
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

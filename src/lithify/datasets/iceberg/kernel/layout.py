"""Constants of the kernel's programs (`avro`). Importing them does not import the compiler."""

from __future__ import annotations

BYTES, NUMBER, TEXT, OPTION, LIST, KEY, NEXT, BEGIN, END = range(9)
"""Steps. Their arguments: the number of `BYTES`; the step after a null `OPTION`; the `NEXT` of a `LIST`; the
wanted `KEY`; the first step of the element for `NEXT`."""
OP, ARGUMENT, SLOT = range(3)
"""The columns of a step's row."""
NO_SLOT = -1
"""The step notes nothing."""
NULL, MISSING = -1, -2
"""The first noted number of a null field, or of a map without the key."""

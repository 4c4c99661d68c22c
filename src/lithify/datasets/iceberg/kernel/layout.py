"""How the kernel is told what to look for in records (`avro`). Quick to import: no compiler."""

from __future__ import annotations

BYTES, NUMBER, TEXT, OPTION, LIST, KEY, NEXT, BEGIN, END = range(9)
"""Steps. Their argument: of `BYTES` how many, of `OPTION` where to go on if it is null, of `LIST` where its
`NEXT` is, of `KEY` which one is wanted, of `NEXT` where the element begins."""
OP, ARGUMENT, SLOT = range(3)
"""What the row of a step consists of."""
NO_SLOT = -1
"""Nothing is noted."""
NULL, MISSING = -1, -2
"""Noted first where a field is null, or where a map does not have the key."""

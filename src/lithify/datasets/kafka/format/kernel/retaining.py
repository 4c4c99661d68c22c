"""Decides whether a record is kept, both for a table of records and while batches are rewritten.

A *verdict* has the facts about a whole batch, as bits that Python computes. A removal has the first reason
that applies: aborted, superseded, marker, without a key, tombstone. `retention.py` has the rules.

Offsets ascend, and so do those of dead and pinned records, so a cursor in each replaces searching. A
processor cannot predict which records are dead; so hot loops check only that for *usual* records, and do not
branch on the answer. Cursors are addresses: arrays passed per record would be reference-counted each time, at
a higher cost than reading the record.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from lithify.datasets.kafka.format.kernel.layout import Record, Records
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.memory import load_i64

Offsets = npt.NDArray[np.int64]
"""Ascending offsets."""
Verdicts = npt.NDArray[np.uint8]
Reasons = npt.NDArray[np.uint8]
Tally = npt.NDArray[np.int64]

ABORTED = 1
CONTROL_BATCH = 2
MARKER_GOES = 4
HORIZON_CAME = 8
RETAIN_EMPTY = 16
EMPTY_MARKER = 32
_OF_RECORDS = ABORTED | CONTROL_BATCH | MARKER_GOES | HORIZON_CAME


class RemovalReason(IntEnum):
    """Why a record is removed."""

    STAYS = 0
    ABORTED = 1
    SUPERSEDED = 2
    MARKER = 3
    WITHOUT_KEY = 4
    TOMBSTONE = 5


_NO_OFFSET = (1 << 63) - 1
_OFFSET_BYTES = 8

PASS = np.dtype(
    [
        ("keep_unkeyed", "i8"),
        ("bound", "i8"),
        ("tombstones_below", "i8"),
        ("new_horizon_ms", "i8"),
        ("dead", "i8"),  # cursor: address of an offset
        ("dead_end", "i8"),
        ("pinned", "i8"),
        ("pinned_end", "i8"),
        ("held", "i8"),  # the first tombstone that stays only because of `tombstones_below`
    ]
)
"""The rules and the cursors of a pass."""

NO_OFFSETS: Offsets = np.empty(0, np.int64)
NO_BOUND = (1 << 63) - 1


def pass_along(
    dead: Offsets,
    pinned: Offsets,
    *,
    first: int = 0,
    keep_unkeyed: bool = True,
    bound: int = NO_BOUND,
    tombstones_below: int = NO_BOUND,
    new_horizon_ms: int,
) -> Records:
    """Return a `PASS` from the offset `first` on. The arrays must outlive it."""
    found = np.zeros(1, PASS)
    found["keep_unkeyed"], found["bound"], found["tombstones_below"] = keep_unkeyed, bound, tombstones_below
    found["new_horizon_ms"] = new_horizon_ms
    found["held"] = NO_BOUND
    for name, offsets in (("dead", dead), ("pinned", pinned)):
        assert offsets.dtype == np.int64, name
        assert offsets.flags.c_contiguous, name
        start = offsets.ctypes.data
        found[name] = start + _OFFSET_BYTES * int(np.searchsorted(offsets, first))
        found[f"{name}_end"] = start + offsets.nbytes
    return found


_STAYS = int(RemovalReason.STAYS)
_ABORTED = int(RemovalReason.ABORTED)
_SUPERSEDED = int(RemovalReason.SUPERSEDED)
_MARKER = int(RemovalReason.MARKER)
_WITHOUT_KEY = int(RemovalReason.WITHOUT_KEY)
_TOMBSTONE = int(RemovalReason.TOMBSTONE)


@called
def _behind(cursor: int, end: int, offset: int) -> int:
    while cursor < end and load_i64(cursor) < offset:
        cursor += _OFFSET_BYTES
    return cursor


@inlined
def offset_at(cursor: int, end: int) -> int:
    """Return the offset at a cursor, or one that no record has."""
    return load_i64(cursor) if cursor < end else _NO_OFFSET


@inlined
def is_among(cursor: int, end: int, following: int, offset: int) -> tuple[int, int, int]:
    """Return whether the offset is in the array (1 or 0), the cursor after all offsets up to it, and the
    offset there; `following` is the one at `cursor`."""
    if following < offset:
        cursor = _behind(cursor, end, offset)
        following = offset_at(cursor, end)
    found = int(following == offset)
    cursor += _OFFSET_BYTES * found
    return found, cursor, offset_at(cursor, end)


@inlined
def is_usual(verdict: int, offset: int, key_len: int, value_len: int, way: Record) -> bool:
    """Return whether the record is kept unless it is dead."""
    return (verdict & _OF_RECORDS) == 0 and (key_len | value_len) >= 0 and offset < way.bound


@called
def reason_of(verdict: int, offset: int, key_len: int, value_len: int, is_dead: int, way: Record) -> int:
    if verdict & CONTROL_BATCH:
        return _MARKER if verdict & MARKER_GOES else _STAYS
    if offset >= way.bound:
        return _STAYS
    if verdict & ABORTED:
        return _ABORTED
    if is_dead:
        return _SUPERSEDED
    if key_len < 0 and not way.keep_unkeyed:
        return _WITHOUT_KEY
    if value_len < 0 and verdict & HORIZON_CAME:
        following = offset_at(way.pinned, way.pinned_end)
        is_pinned, way.pinned, _ = is_among(way.pinned, way.pinned_end, following, offset)
        if not is_pinned and offset < way.tombstones_below:
            return _WITHOUT_KEY if key_len < 0 else _TOMBSTONE
        if not is_pinned:
            way.held = min(way.held, offset)
    return _STAYS


@entry
def give_reasons(records: Records, verdicts: Verdicts, ways: Records, reasons: Reasons) -> None:
    way = ways[0]
    for number in range(len(records)):
        record = records[number]
        following = offset_at(way.dead, way.dead_end)
        is_dead, way.dead, _ = is_among(way.dead, way.dead_end, following, record.offset)
        verdict = int(verdicts[record.batch])
        reasons[number] = reason_of(verdict, record.offset, record.key_len, record.value_len, is_dead, way)

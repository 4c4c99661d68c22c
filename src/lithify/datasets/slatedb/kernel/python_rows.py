"""Rows as Python values for the user's functions, read from the kernel's memory and written back.

A fold (SlateDB format: merge operator) consumes a merge row and then older rows of its key while they have
the same expiry time:

1. Merge rows add operands. An exact duplicate, from another source, is skipped.
2. The first row that is not a merge row ends the fold as its base; a tombstone is a base without a value.
3. A different expiry time ends the fold without a base; that row is processed by itself afterwards.
4. Operands apply from oldest to newest. They are combined in groups of 100 first, so that a key with millions
   of operands needs little memory; the operator is associative.

The result is a value if there was a base, otherwise a merge row. It has the newest sequence number and the
latest creation time of all rows.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lithify.datasets.slatedb.hooks import MergeOperator, Row, RowKind
from lithify.datasets.slatedb.kernel.layout import HAS_CREATE, HAS_EXPIRE, MERGE, TOMBSTONE
from lithify.kernel.buffers import Bound, bytes_of

FOLD_GROUP_ROWS = 100

_FIXED = struct.Struct(">QB")
_TIMESTAMP = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row without its key."""

    seq: int
    flags: int
    value: bytes
    expire_ms: int | None
    create_ms: int | None


def decode_tail(tail: bytes, value_len: int) -> RawRow:
    """Decode a row from its value, sequence number, flags and timestamps, in this order."""
    seq, flags = _FIXED.unpack_from(tail, value_len)
    position = value_len + _FIXED.size
    times: list[int | None] = []
    for flag in (HAS_EXPIRE, HAS_CREATE):
        if flags & flag:
            times += _TIMESTAMP.unpack_from(tail, position)
            position += _TIMESTAMP.size
        else:
            times.append(None)
    return RawRow(seq, flags, tail[:value_len], times[0], times[1])


def encode_tail(row: RawRow) -> bytes:
    """Encode everything after a row's key. Timestamps determine their flags."""
    flags = row.flags & (TOMBSTONE | MERGE)
    flags |= HAS_EXPIRE if row.expire_ms is not None else 0
    flags |= HAS_CREATE if row.create_ms is not None else 0
    times = b"".join(_TIMESTAMP.pack(time) for time in (row.expire_ms, row.create_ms) if time is not None)
    return row.value + _FIXED.pack(row.seq, flags) + times


def read_row(record: Bound) -> RawRow:
    tail = ctypes.string_at(record["value"], record["tail_len"])
    return decode_tail(tail, record["value_len"])


def set_row(record: Bound, key: bytes, row: RawRow) -> None:
    """Make `row` the current row of a source's record."""
    tail = encode_tail(row)
    record.attach("key", bytes_of(key))
    record.attach("value", bytes_of(tail))
    record["key_len"] = len(key)
    record["value_len"] = len(row.value)
    record["tail_len"] = len(tail)
    record["flags"] = tail[len(row.value) + _FIXED.size - 1]
    record["seq"] = row.seq
    record["expire_ms"] = row.expire_ms or 0


def public_row(key: bytes, row: RawRow) -> Row:
    if row.flags & TOMBSTONE:
        return Row(key, row.seq, RowKind.TOMBSTONE, None, row.create_ms, row.expire_ms)
    kind = RowKind.MERGE if row.flags & MERGE else RowKind.VALUE
    return Row(key, row.seq, kind, row.value, row.create_ms, row.expire_ms)


def modified(row: RawRow, value: bytes | None) -> RawRow:
    """Return the row with another value; without a value, a tombstone that does not expire."""
    if value is None:
        return RawRow(row.seq, TOMBSTONE, b"", None, row.create_ms)
    return RawRow(row.seq, row.flags & MERGE, value, row.expire_ms, row.create_ms)


@dataclass(frozen=True, slots=True)
class Fold:
    row: RawRow
    rows: int
    """Number of folded rows, without duplicates."""
    duplicates: int


def fold(
    key: bytes, peek: Callable[[], RawRow | None], pop: Callable[[], None], merge: MergeOperator
) -> Fold:
    """Fold the rows of one key. `peek` returns the next row, or `None` after the last; `pop` moves past
    it."""

    def combine(existing: bytes | None, newest_first: Sequence[bytes]) -> bytes:
        for operand in reversed(newest_first):
            existing = merge(key, existing, operand)
        assert existing is not None
        return existing

    newest = peek()
    assert newest is not None
    create_ms, last_seq, rows, duplicates = newest.create_ms, -1, 0, 0
    base: RawRow | None = None
    operands: list[bytes] = []
    groups: list[bytes] = []
    while base is None and (row := peek()) is not None:
        if row.seq == last_seq:
            duplicates += 1
            pop()
            continue
        if row.expire_ms != newest.expire_ms:
            break
        pop()
        rows += 1
        last_seq = row.seq
        if row.create_ms is not None:
            create_ms = row.create_ms if create_ms is None else max(create_ms, row.create_ms)
        if row.flags & MERGE:
            operands.append(row.value)
        else:
            base = row
        if len(operands) == FOLD_GROUP_ROWS:
            groups.append(combine(None, operands))
            operands.clear()
    if operands:
        groups.append(combine(None, operands))
    existing = None if base is None or base.flags & TOMBSTONE else base.value
    value = combine(existing, groups)
    flags = MERGE if base is None else 0
    return Fold(RawRow(newest.seq, flags, value, newest.expire_ms, create_ms), rows, duplicates)

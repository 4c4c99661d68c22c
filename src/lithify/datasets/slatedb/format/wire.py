"""FlatBuffers tables that the manifest, the compactions file and the SST share.

Each `…Record` is a table in its wire layout; functions turn it into the value of
`lithify.datasets.slatedb.model` and back. Reading raises `CorruptObject` for data that no correct writer
produces and `Unsupported` for numbers a newer writer may have added; writing raises `ValueError` for values
no reader would accept.

A key range is a pair of bounds. The legal bounds are "unbounded, without a key" and "included or excluded,
with a key"; a start is never excluded, and a range is never empty. Clients crash on anything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypeVar

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.base.ids import Ulid, ulid_from_halves, ulid_to_halves
from lithify.datasets.slatedb.format.flatbuffer import (
    BYTES,
    I8,
    OPTIONAL_U16,
    U64,
    TableType,
    required,
    table,
)
from lithify.datasets.slatedb.model import Codec, FilterFormat, KeyRange, Sst, SstInfo, SstType

EnumT = TypeVar("EnumT", bound=IntEnum)

NEWEST_CLIENT = "0.17"
"""The newest SlateDB that this version of Lithify knows."""
SST_FORMAT_VERSIONS = (1, 2)
OLDEST_SST_FORMAT_VERSION = 1
"""The version of an SST without a format version."""

_HALF_BITS = 64
_HALF_MASK = (1 << _HALF_BITS) - 1


class Halves(NamedTuple):
    """128 bits: a ULID or a UUID."""

    high: int
    low: int


ULID = TableType("Ulid", Halves, (U64, U64))
UUID = TableType("Uuid", Halves, (U64, U64))


class BoundRecord(NamedTuple):
    key: bytes | None
    bound_type: int


class RangeRecord(NamedTuple):
    start_bound: BoundRecord
    end_bound: BoundRecord


class InfoRecord(NamedTuple):
    first_entry: bytes | None
    index_offset: int
    index_len: int
    filter_offset: int
    filter_len: int
    compression_format: int
    sst_type: int
    last_entry: bytes | None
    stats_offset: int
    stats_len: int
    filter_format: int


class SstRecord(NamedTuple):
    """`CompactedSsTable`: an SST in the compactions file and in a manifest of version 1."""

    id: Halves
    info: InfoRecord
    visible_range: RangeRecord | None
    format_version: int | None


BYTES_BOUND = TableType("BytesBound", BoundRecord, (BYTES, I8))
BYTES_RANGE = TableType("BytesRange", RangeRecord, (required(table(BYTES_BOUND)),) * 2)
INFO = TableType("SsTableInfo", InfoRecord, (BYTES, U64, U64, U64, U64, I8, I8, BYTES, U64, U64, I8))
COMPACTED_SST = TableType(
    "CompactedSsTable",
    SstRecord,
    (required(table(ULID)), required(table(INFO)), table(BYTES_RANGE), OPTIONAL_U16),
)


class _Bound(IntEnum):
    UNBOUNDED = 1
    INCLUDED = 2
    EXCLUDED = 3


def unknown_version(name: str, what: str, version: int, known: Iterable[int]) -> LithifyError:
    """Return the error for a file of an unknown format version."""
    numbers = sorted(known)
    if version < numbers[0]:
        return CorruptObject(name, f"no SlateDB has written a {what} format version {version}")
    return Unsupported(
        f"{name}: {what} format version {version} is not known: a SlateDB newer than {NEWEST_CLIENT} wrote "
        f"it; this version of Lithify knows {' and '.join(map(str, numbers))}; upgrade Lithify"
    )


def decode_ulid(record: Halves) -> Ulid:
    return ulid_from_halves(*record)


def encode_ulid(value: Ulid) -> Halves:
    return Halves(*ulid_to_halves(value))


def decode_uuid(record: Halves) -> uuid.UUID:
    return uuid.UUID(int=record.high << _HALF_BITS | record.low)


def encode_uuid(value: uuid.UUID) -> Halves:
    return Halves(value.int >> _HALF_BITS, value.int & _HALF_MASK)


def decode_range(record: RangeRecord, name: str) -> KeyRange:
    for bound in record:
        has_key = bound.key is not None
        if bound.bound_type > _Bound.EXCLUDED:
            raise Unsupported(
                f"{name}: a key range has a bound of type {bound.bound_type}: a SlateDB newer than "
                f"{NEWEST_CLIENT} wrote it; upgrade Lithify"
            )
        if bound.bound_type not in tuple(_Bound) or has_key == (bound.bound_type == _Bound.UNBOUNDED):
            raise CorruptObject(
                name,
                f"a key range has a bound of type {bound.bound_type} with{'' if has_key else 'out'} a key",
            )
    start, end = record
    if start.bound_type == _Bound.EXCLUDED:
        raise CorruptObject(name, f"a key range excludes its start {start.key!r}")
    value = KeyRange(start.key, end.key, end.bound_type == _Bound.INCLUDED)
    if value.is_empty:
        raise CorruptObject(name, f"a key range from {value.start!r} to {value.end!r} holds no key")
    return value


def encode_range(value: KeyRange) -> RangeRecord:
    if value.end is None and value.end_inclusive:
        raise ValueError("a key range without an end includes it")
    if value.is_empty:
        raise ValueError(f"a key range from {value.start!r} to {value.end!r} holds no key")
    start = _Bound.UNBOUNDED if value.start is None else _Bound.INCLUDED
    closed = _Bound.INCLUDED if value.end_inclusive else _Bound.EXCLUDED
    end = _Bound.UNBOUNDED if value.end is None else closed
    return RangeRecord(BoundRecord(value.start, start), BoundRecord(value.end, end))


def decode_info(record: InfoRecord, name: str) -> SstInfo:
    return SstInfo(
        first_entry=record.first_entry,
        last_entry=record.last_entry,
        index_offset=record.index_offset,
        index_len=record.index_len,
        filter_offset=record.filter_offset,
        filter_len=record.filter_len,
        stats_offset=record.stats_offset,
        stats_len=record.stats_len,
        compression=_known(Codec, record.compression_format, "compression format", name),
        sst_type=_known(SstType, record.sst_type, "SST type", name),
        filter_format=_known(FilterFormat, record.filter_format, "filter format", name),
    )


def encode_info(info: SstInfo) -> InfoRecord:
    return InfoRecord(
        first_entry=info.first_entry,
        index_offset=info.index_offset,
        index_len=info.index_len,
        filter_offset=info.filter_offset,
        filter_len=info.filter_len,
        compression_format=info.compression,
        sst_type=info.sst_type,
        last_entry=info.last_entry,
        stats_offset=info.stats_offset,
        stats_len=info.stats_len,
        filter_format=info.filter_format,
    )


def decode_sst(sst_id: Halves, info: InfoRecord, format_version: int | None, name: str) -> Sst:
    """Return a compacted SST, which must state where its keys start."""
    sst = Sst(
        id=decode_ulid(sst_id),
        info=decode_info(info, name),
        format_version=OLDEST_SST_FORMAT_VERSION if format_version is None else format_version,
    )
    if sst.format_version not in SST_FORMAT_VERSIONS:
        raise Unsupported(
            f"{name}: SST {sst.id} has format version {sst.format_version}; "
            f"this version of Lithify knows {SST_FORMAT_VERSIONS}; upgrade Lithify"
        )
    if problem := sst_problem(sst):
        raise CorruptObject(name, problem)
    return sst


def encode_sst(sst: Sst) -> SstRecord:
    """Return an output as in the compactions file."""
    if sst.format_version not in SST_FORMAT_VERSIONS:
        raise ValueError(f"SST {sst.id} has format version {sst.format_version}")
    if problem := sst_problem(sst):
        raise ValueError(problem)
    return SstRecord(encode_ulid(sst.id), encode_info(sst.info), None, sst.format_version)


def sst_problem(sst: Sst) -> str | None:
    """Return why a client could not use the SST, or `None`."""
    first, last = sst.info.first_entry, sst.info.last_entry
    if first is None:
        return f"SST {sst.id} has no first key"
    if last is not None and last < first:
        return f"SST {sst.id} has its last key {last!r} before its first {first!r}"
    return None


def _known(kind: type[EnumT], number: int, what: str, name: str) -> EnumT:
    try:
        return kind(number)
    except ValueError as error:
        raise Unsupported(
            f"{name}: {what} {number} is not known to this version of Lithify; upgrade it"
        ) from error

"""A slow, plain reader of SlateDB's SST files that checks everything it reads.

It shares no code with Lithify, so that it can judge what Lithify writes; and it looks at more than the
official client, which never reads the stats, the info inside the file or the footer's version.

1. The footer names the format version and where the info is; the info says where the rest is.
2. Every section's checksum is checked, every section is decompressed, and the sections must fill the
   file without gap or overlap.
3. Every block is decoded row by row (format 1 or 2) and its restart points or row offsets are checked.
4. Rows must ascend by key, then descend by sequence number. Index keys must separate the blocks, first
   and last entries must be the file's, statistics must be true, the filter must know every key.

Any violation is an `AssertionError` that names it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import cramjam
import lz4.block
import zstandard
from flatbuffers.table import Table

TOMBSTONE, HAS_EXPIRE, HAS_CREATE, MERGE = 1, 2, 4, 8
ALL_FLAGS = TOMBSTONE | HAS_EXPIRE | HAS_CREATE | MERGE
ROWS_PER_RESTART = 16
CRC_BYTES = 4
FOOTER_BYTES = 10


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One version of one key, as stored."""

    key: bytes
    seq: int
    kind: str
    """`put`, `delete` or `merge`."""
    value: bytes
    create_ts: int | None
    expire_ts: int | None


@dataclass(frozen=True, slots=True)
class Info:
    """The info section, with the field names of SlateDB's schema."""

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


@dataclass(frozen=True, slots=True)
class Block:
    """One data block."""

    index_key: bytes
    rows: tuple[Row, ...]
    stored_bytes: int
    raw: bytes = field(repr=False)
    """Uncompressed, without the checksum."""


@dataclass(frozen=True, slots=True)
class SstFile:
    """A whole SST file, decoded."""

    format_version: int
    info: Info
    blocks: tuple[Block, ...]
    filter: bytes
    """The uncompressed filter section; empty when there is none."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for block in self.blocks for row in block.rows)


def read_sst(data: bytes) -> SstFile:
    """Decode and check a whole SST file."""
    info_offset, version = struct.unpack(">QH", data[-FOOTER_BYTES:])
    assert version in (1, 2), f"format version {version}"
    info = _read_info(_checked(data, info_offset, len(data) - FOOTER_BYTES - info_offset, "info"))
    _check_layout(info, info_offset)

    def section(offset: int, length: int, name: str) -> bytes:
        return CODECS[info.compression_format](_checked(data, offset, length, name))

    index = _read_index(section(info.index_offset, info.index_len, "index"))
    ends = [offset for offset, _ in index[1:]] + [
        info.filter_offset if info.filter_len else info.index_offset
    ]
    blocks = []
    for number, ((offset, index_key), end) in enumerate(zip(index, ends, strict=True)):
        raw = section(offset, end - offset, f"block {number}")
        rows = _rows_v2(raw) if version == 2 else _rows_v1(raw)
        blocks.append(Block(index_key, tuple(rows), end - offset, raw))
    filter_raw = section(info.filter_offset, info.filter_len, "filter") if info.filter_len else b""
    sst = SstFile(version, info, tuple(blocks), filter_raw)
    _check_order(sst)
    _check_index(sst)
    if info.filter_len:
        _check_filter(filter_raw, info.filter_format, sst.rows)
    if info.stats_len:
        _check_stats(section(info.stats_offset, info.stats_len, "stats"), sst)
    return sst


# Sections


def _unzstd(data: bytes) -> bytes:
    return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(data))


CODECS: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    2: zlib.decompress,
    3: lz4.block.decompress,
    4: _unzstd,
}


def _checked(data: bytes, offset: int, length: int, name: str) -> bytes:
    """A stored section without its checksum."""
    stored = data[offset : offset + length]
    assert len(stored) == length, f"{name} ends outside the file"
    assert length > CRC_BYTES, f"{name} is empty"
    body, crc = stored[:-CRC_BYTES], int.from_bytes(stored[-CRC_BYTES:], "big")
    assert zlib.crc32(body) == crc, f"checksum of {name}"
    return body


def _check_layout(info: Info, info_offset: int) -> None:
    data_end = info.filter_offset if info.filter_len else info.index_offset
    assert not info.filter_len or info.filter_offset + info.filter_len == info.index_offset, "filter, index"
    after_index = info.index_offset + info.index_len
    if info.stats_len:
        assert info.stats_offset == after_index, "the stats follow the index"
        after_index += info.stats_len
    assert after_index == info_offset, "the info follows the stats"
    assert info.sst_type == 0, "an SST of the WAL"
    assert data_end > 0, "no data"


# FlatBuffers: slot n of a table lies at vtable entry 4 + 2n


class _Fields:
    """The fields of one FlatBuffers table, by slot."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        start = struct.unpack_from("<I", data)[0] if position is None else position
        self._table = Table(data, start)

    def _at(self, slot: int) -> int:
        offset: int = self._table.Offset(4 + 2 * slot)
        return offset and self._table.Pos + offset

    def number(self, slot: int, layout: str = "<Q") -> int:
        at = self._at(slot)
        return int(struct.unpack_from(layout, self._table.Bytes, at)[0]) if at else 0

    def text(self, slot: int) -> bytes | None:
        at = self._at(slot)
        return bytes(self._table.String(at)) if at else None

    def tables(self, slot: int) -> Iterator[_Fields]:
        offset = self._table.Offset(4 + 2 * slot)
        for number in range(self._table.VectorLen(offset) if offset else 0):
            yield _Fields(self._table.Bytes, self._table.Indirect(self._table.Vector(offset) + 4 * number))


def _read_info(data: bytes) -> Info:
    fields = _Fields(data)
    return Info(
        first_entry=fields.text(0),
        index_offset=fields.number(1),
        index_len=fields.number(2),
        filter_offset=fields.number(3),
        filter_len=fields.number(4),
        compression_format=fields.number(5, "<b"),
        sst_type=fields.number(6, "<b"),
        last_entry=fields.text(7),
        stats_offset=fields.number(8),
        stats_len=fields.number(9),
        filter_format=fields.number(10, "<b"),
    )


def _read_index(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and index key of every block."""
    index = []
    for block in _Fields(data).tables(0):
        key = block.text(1)
        assert key is not None, "an index entry without key"
        index.append((block.number(0), key))
    return index


# Rows


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7


def _timestamps(raw: bytes, at: int, flags: int) -> tuple[int | None, int | None, int]:
    """Expire and create time, and where the next field starts."""
    expire_ts = create_ts = None
    if flags & HAS_EXPIRE:
        expire_ts, at = struct.unpack_from(">q", raw, at)[0], at + 8
    if flags & HAS_CREATE:
        create_ts, at = struct.unpack_from(">q", raw, at)[0], at + 8
    return expire_ts, create_ts, at


def _kind(flags: int) -> str:
    assert not flags & ~ALL_FLAGS, f"flags {flags}"
    assert flags & (TOMBSTONE | MERGE) != TOMBSTONE | MERGE, "a tombstone that is a merge"
    return "delete" if flags & TOMBSTONE else "merge" if flags & MERGE else "put"


def _rows_v2(raw: bytes) -> Iterator[Row]:
    count = int.from_bytes(raw[-2:], "big")
    rows_end = len(raw) - 2 - 2 * count
    restarts = list(struct.unpack(f">{count}H", raw[rows_end:-2]))
    at, number, key, found = 0, 0, b"", []
    while at < rows_end:
        if number % ROWS_PER_RESTART == 0:
            found.append(at)
        shared, at = _varint(raw, at)
        unshared, at = _varint(raw, at)
        value_len, at = _varint(raw, at)
        assert shared == 0 if number % ROWS_PER_RESTART == 0 else shared <= len(key), "shared bytes of a key"
        previous, key = key, key[:shared] + raw[at : at + unshared]
        assert number % ROWS_PER_RESTART == 0 or not (
            unshared and shared < len(previous) and previous[shared] == raw[at]
        ), "a key shares less than it could"
        value = raw[at + unshared : at + unshared + value_len]
        at += unshared + value_len
        seq, flags = struct.unpack_from(">QB", raw, at)
        expire_ts, create_ts, at = _timestamps(raw, at + 9, flags)
        assert not flags & TOMBSTONE or not value_len, "a tombstone with a value"
        yield Row(key, seq, _kind(flags), value, create_ts, expire_ts)
        number += 1
    assert at == rows_end, "the last row ends outside the rows"
    assert found == restarts, "restart points"


def _rows_v1(raw: bytes) -> Iterator[Row]:
    count = int.from_bytes(raw[-2:], "big")
    rows_end = len(raw) - 2 - 2 * count
    offsets = struct.unpack(f">{count}H", raw[rows_end:-2])
    at, first = 0, b""
    for number, offset in enumerate(offsets):
        assert offset == at, "offset of a row"
        prefix_len, suffix_len = struct.unpack_from(">HH", raw, at)
        at += 4
        key = first[:prefix_len] + raw[at : at + suffix_len]
        assert prefix_len <= len(first), "prefix of a key"
        first = key if number == 0 else first
        at += suffix_len
        seq, flags = struct.unpack_from(">QB", raw, at)
        expire_ts, create_ts, at = _timestamps(raw, at + 9, flags)
        value = b""
        if flags & TOMBSTONE:
            expire_ts = None
        else:
            value_len = struct.unpack_from(">I", raw, at)[0]
            value, at = raw[at + 4 : at + 4 + value_len], at + 4 + value_len
        yield Row(key, seq, _kind(flags), value, create_ts, expire_ts)
    assert at == rows_end, "the last row ends outside the rows"


# Checks over the whole file


def _check_order(sst: SstFile) -> None:
    assert all(block.rows for block in sst.blocks), "an empty block"
    assert all(row.key for row in sst.rows), "an empty key"
    for before, after in pairwise(sst.rows):
        assert (before.key, -before.seq) < (after.key, -after.seq), f"order at key {after.key!r}"
    assert sst.info.first_entry == sst.rows[0].key, "first entry"
    if sst.format_version == 2:
        assert sst.info.last_entry == sst.rows[-1].key, "last entry"


def _check_index(sst: SstFile) -> None:
    assert sst.format_version == 1 or sst.blocks[0].index_key == b"", "index key of the first block"
    for before, after in pairwise(sst.blocks):
        last, first, key = before.rows[-1].key, after.rows[0].key, after.index_key
        assert key <= first, f"index key {key!r} is above its block"
        assert key > last or key == first, f"index key {key!r} is not above the block before"
        if sst.format_version == 2:
            common = next(
                (n for n, pair in enumerate(zip(last, first, strict=False)) if pair[0] != pair[1]), len(last)
            )
            assert key == first[: common + 1], f"index key {key!r} is not the shortest"


def _check_stats(data: bytes, sst: SstFile) -> None:
    def counts(rows: tuple[Row, ...]) -> list[int]:
        return [sum(row.kind == kind for row in rows) for kind in ("put", "delete", "merge")]

    stats = _Fields(data)
    assert [stats.number(slot) for slot in range(3)] == counts(sst.rows), "counts in the stats"
    assert stats.number(3) == sum(len(row.key) for row in sst.rows), "key bytes in the stats"
    assert stats.number(4) == sum(len(row.value) for row in sst.rows), "value bytes in the stats"
    per_block = [[block.number(slot, "<H") for slot in range(3)] for block in stats.tables(5)]
    assert per_block == [counts(block.rows) for block in sst.blocks], "counts per block in the stats"


# Filter


def _check_filter(data: bytes, filter_format: int, rows: tuple[Row, ...]) -> None:
    if filter_format == 0:
        _check_bloom(data, rows)
        return
    count, at = int.from_bytes(data[:2], "big"), 2
    for _ in range(count):
        name_len = int.from_bytes(data[at : at + 2], "big")
        name, at = data[at + 2 : at + 2 + name_len], at + 2 + name_len
        length = int.from_bytes(data[at : at + 8], "big")
        bloom, at = data[at + 8 : at + 8 + length], at + 8 + length
        if name == b"_bf":
            _check_bloom(bloom, rows)
    assert at == len(data), "the filters do not fill the filter section"


def _check_bloom(data: bytes, rows: tuple[Row, ...]) -> None:
    for key in {row.key for row in rows}:
        assert might_contain(data, key), f"key {key!r} is not in the filter"


def might_contain(bloom: bytes, key: bytes) -> bool:
    """Whether a bloom filter that is not empty allows that a key was added."""
    probes, bits = int.from_bytes(bloom[:2], "big"), bloom[2:]
    return all(bits[bit >> 3] >> (bit & 7) & 1 for bit in _bloom_bits(key, probes, 8 * len(bits)))


def _bloom_bits(key: bytes, probes: int, size: int) -> Iterator[int]:
    digest = siphash13(key)
    at, step = (digest & 0xFFFFFFFF) % size, (digest >> 32) % size
    for number in range(probes):
        step = (step + number) % size
        yield at
        at = (at + step) % size


def siphash13(data: bytes) -> int:
    """SipHash-1-3 with a zero key."""
    mask = (1 << 64) - 1

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & mask

    v0, v1, v2, v3 = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0, v2 = (v0 + v1) & mask, (v2 + v3) & mask
            v1, v3 = rotate(v1, 13) ^ v0, rotate(v3, 16) ^ v2
            v0 = rotate(v0, 32)
            v2, v0 = (v2 + v1) & mask, (v0 + v3) & mask
            v1, v3 = rotate(v1, 17) ^ v2, rotate(v3, 21) ^ v0
            v2 = rotate(v2, 32)

    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v3 ^= word
        rounds(1)
        v0 ^= word
    v2 ^= 0xFF
    rounds(3)
    return v0 ^ v1 ^ v2 ^ v3

"""SST files written as plainly as possible: what the kernel's output must be, and its input.

Shares no code with the kernel. What rows a compaction keeps is the business of `tests.judge.semantics`.

1. A row follows the one before it in its block, of which it leaves out the shared prefix; every 16th
   row shares nothing (format 2). In format 1 a row shares with the first row of its block.
2. Rows go to a block while they fit with their restart points; an empty block takes any row.
3. Blocks go to an SST until they exceed its size; the row that starts the next block still goes in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cramjam
import lz4.block
import numpy as np
import zstandard

from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.index import BlockIndex, encode_index
from lithify.datasets.slatedb.format.sst import encode_tail
from lithify.datasets.slatedb.model import Codec, FilterFormat, Sst, SstInfo
from tests.judge.sst import HAS_CREATE, HAS_EXPIRE, MERGE, ROWS_PER_RESTART, TOMBSTONE, Row

KINDS = {"put": 0, "delete": TOMBSTONE, "merge": MERGE}

COMPRESS: Mapping[Codec, Callable[[bytes], bytes]] = {
    Codec.NONE: bytes,
    Codec.SNAPPY: lambda raw: bytes(cramjam.snappy.compress_raw(raw)),
    Codec.ZLIB: lambda raw: zlib.compress(raw, 6),
    Codec.LZ4: lambda raw: bytes(lz4.block.compress(raw)),
    Codec.ZSTD: lambda raw: zstandard.ZstdCompressor(level=3).compress(raw),
}


def varint(value: int) -> bytes:
    """LEB128."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def shared_len(left: bytes, right: bytes) -> int:
    """Length of the common prefix."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def flags_of(row: Row) -> int:
    """The flags byte of a row."""
    expires = HAS_EXPIRE if row.expire_ts is not None else 0
    return KINDS[row.kind] | expires | (HAS_CREATE if row.create_ts is not None else 0)


def _fixed(row: Row) -> bytes:
    times = [struct.pack(">q", time) for time in (row.expire_ts, row.create_ts) if time is not None]
    return struct.pack(">QB", row.seq, flags_of(row)) + b"".join(times)


def encode_row(row: Row, shared: int) -> bytes:
    """A row of format 2 that leaves out `shared` bytes of its key."""
    lengths = varint(shared) + varint(len(row.key) - shared) + varint(len(row.value))
    return lengths + row.key[shared:] + row.value + _fixed(row)


def encode_row_v1(row: Row, shared: int) -> bytes:
    """A row of format 1."""
    encoded = struct.pack(">HH", shared, len(row.key) - shared) + row.key[shared:] + _fixed(row)
    return encoded if row.kind == "delete" else encoded + struct.pack(">I", len(row.value)) + row.value


@dataclass
class BlockBuilder:
    """One block of format 2."""

    size: int
    rows: list[Row]
    encoded: bytes = b""
    restarts: tuple[int, ...] = ()

    def add(self, row: Row) -> bool:
        """Add a row if it fits."""
        starts = len(self.rows) % ROWS_PER_RESTART == 0
        shared = 0 if starts else shared_len(self.rows[-1].key, row.key)
        encoded = encode_row(row, shared)
        needed = len(self.encoded) + 2 * len(self.restarts) + 2 + len(encoded) + 2 * starts
        if self.rows and needed > self.size:
            return False
        if starts:
            self.restarts += (len(self.encoded),)
        self.rows.append(row)
        self.encoded += encoded
        return True

    def raw(self) -> bytes:
        return self.encoded + struct.pack(f">{len(self.restarts) + 1}H", *self.restarts, len(self.restarts))


def encode_block_v1(rows: Sequence[Row]) -> bytes:
    """A block of format 1."""
    encoded, offsets = b"", []
    for row in rows:
        offsets.append(len(encoded))
        encoded += encode_row_v1(row, shared_len(rows[0].key, row.key) if encoded else 0)
    return encoded + struct.pack(f">{len(offsets) + 1}H", *offsets, len(offsets))


def cut_into_ssts(
    rows: Iterable[Row], block_size: int, max_sst_size: int, codec: Codec = Codec.NONE
) -> Iterator[list[bytes]]:
    """The raw blocks of each SST that these rows become."""
    blocks: list[bytes] = []
    stored = 0
    block = BlockBuilder(block_size, [])
    for row in rows:
        if block.add(row):
            continue
        blocks.append(block.raw())
        stored += len(COMPRESS[codec](blocks[-1])) + 4
        block = BlockBuilder(block_size, [])
        block.add(row)
        if stored > max_sst_size:
            yield [*blocks, block.raw()]
            blocks, stored, block = [], 0, BlockBuilder(block_size, [])
    if block.rows:
        yield [*blocks, block.raw()]


def cut_into_blocks(rows: Iterable[Row], block_size: int) -> list[list[Row]]:
    """The rows of each block of one SST."""
    blocks = [BlockBuilder(block_size, [])]
    for row in rows:
        if not blocks[-1].add(row):
            blocks.append(BlockBuilder(block_size, []))
            blocks[-1].add(row)
    return [block.rows for block in blocks]


def index_key(previous: bytes | None, first: bytes) -> bytes:
    """The key that separates a block from the one before."""
    return b"" if previous is None else first[: shared_len(previous, first) + 1]


def seal(raw: bytes, codec: Codec) -> bytes:
    """Compress and append the checksum."""
    stored = COMPRESS[codec](raw)
    return stored + struct.pack(">I", zlib.crc32(stored))


def build_sst(
    rows: Sequence[Row],
    sst_id: Ulid,
    *,
    block_size: int = 4096,
    codec: Codec = Codec.NONE,
    format_version: int = 2,
) -> tuple[bytes, Sst]:
    """An SST without filter and stats, and what a manifest says of it."""
    blocks = cut_into_blocks(rows, block_size)
    raws = []
    for block_rows in blocks:
        builder = BlockBuilder(1 << 40, [])
        for row in block_rows:
            builder.add(row)
        raws.append(builder.raw() if format_version == 2 else encode_block_v1(block_rows))
    firsts = [block[0].key for block in blocks]
    lasts = [None, *(block[-1].key for block in blocks[:-1])]
    keys = [index_key(last, first) for last, first in zip(lasts, firsts, strict=True)]
    return assemble([seal(raw, codec) for raw in raws], keys, rows, sst_id, codec, format_version)


def assemble(
    stored_blocks: Sequence[bytes],
    index_keys: Sequence[bytes],
    rows: Sequence[Row],
    sst_id: Ulid,
    codec: Codec = Codec.NONE,
    format_version: int = 2,
) -> tuple[bytes, Sst]:
    """An SST of stored blocks, whatever they hold."""
    offsets = np.cumsum([0, *map(len, stored_blocks)], dtype=np.int64)
    key_offsets = np.cumsum([0, *map(len, index_keys)], dtype=np.int64)
    keys = np.frombuffer(b"".join(index_keys), np.uint8)
    data = b"".join(stored_blocks)
    index = seal(encode_index(BlockIndex(offsets, keys, key_offsets)), codec)
    is_old = format_version == 1
    info = SstInfo(
        first_entry=rows[0].key,
        last_entry=None if is_old else rows[-1].key,
        index_offset=len(data),
        index_len=len(index),
        filter_offset=len(data),
        filter_len=0,
        stats_offset=0,
        stats_len=0,
        compression=codec,
        filter_format=FilterFormat.LEGACY if is_old else FilterFormat.COMPOSITE,
    )
    return data + index + encode_tail(info, len(data) + len(index)), Sst(sst_id, info, format_version)

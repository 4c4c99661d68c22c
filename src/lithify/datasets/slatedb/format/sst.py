"""The metadata blocks of an SST file and its tail (SlateDB format: SST files).

A file is: data blocks, filter (optional), index, stats (optional), info, offset of the info (`u64`), format
version (`u16`); the numbers are big-endian.

1. A data block, the filter, the index and the stats are *sealed*: compressed, then followed by the CRC-32 of
   the stored bytes. Lengths in the info include those four bytes.
2. The info is a FlatBuffer and its CRC-32, never compressed.
3. Clients take info and format version from the manifest; those in the file are for tools, and for Lithify
   when there is no manifest to read.

Invariants: no length or offset of the file is used unchecked, and unsealing takes no more memory than a block
of that kind can need (`unpacked_limit`), whatever size the stored bytes claim: a declared size is checked
first, and data without one is unpacked in small pieces.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam
import lz4.block
import zstandard

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format import wire
from lithify.datasets.slatedb.format.flatbuffer import read, write
from lithify.datasets.slatedb.model import MAX_METADATA_BYTES, Codec, SstInfo
from lithify.store.objects import ObjectStore

BytesLike = bytes | memoryview
Checksum = Callable[[memoryview], int]

WRITTEN_FORMAT_VERSION = 2
CHECKSUM_BYTES = 4
MAX_MULTI_ROW_BLOCK_BYTES = 64 << 10
"""A data block with several rows is no larger unpacked: its offsets have 16 bits."""
SMALL_METADATA_BYTES = 64 << 20
MAX_METADATA_RATIO = 16
"""The largest ratio of unpacked to stored size for metadata blocks larger than `SMALL_METADATA_BYTES`:
the offsets of blocks are all different."""
MAX_INFO_BYTES = 64 << 20
"""Mostly the first and the last key."""

_CHECKSUM = struct.Struct(">I")
_TAIL = struct.Struct(">QH")
_TAIL_READ_BYTES = 4096
_LZ4_SIZE = struct.Struct("<I")
_LZ4_MAX_RATIO = 255
_SNAPPY_MAX_RATIO = 64
_RATIO_ALLOWANCE_BYTES = 64
_ZLIB_LEVEL = 6
_ZSTD_LEVEL = 3
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
_ZSTD_PIECE_BYTES = 1 << 10
_ZLIB_PIECE_BYTES = 1 << 14
"""Bytes fed at a time, which unpack to tens of megabytes at most."""


# --------------------------------------------------------------------------------------- blocks


def seal(raw: bytes, codec: Codec) -> bytes:
    """Return `raw` as stored: compressed, with its checksum."""
    stored = _compress(raw, codec)
    return stored + _CHECKSUM.pack(zlib.crc32(stored))


def unpacked_limit(stored_bytes: int) -> int:
    """Return the most bytes that a metadata block of `stored_bytes` holds."""
    return min(MAX_METADATA_BYTES, max(SMALL_METADATA_BYTES, MAX_METADATA_RATIO * stored_bytes))


def unseal(
    stored: BytesLike,
    codec: Codec,
    name: str,
    crc32: Checksum = zlib.crc32,
    limit: int | None = None,
) -> BytesLike:
    """Return the raw bytes of a stored block; a view of `stored`, which may be large, if it is not
    compressed. `name` identifies block and object in errors. `limit` is the most bytes that it can hold, if
    the caller knows that better than `unpacked_limit`."""
    body = check_seal(stored, name, crc32)
    most = unpacked_limit(len(stored)) if limit is None else limit
    try:
        raw = _decompress(body, codec, most)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, lz4.block.LZ4BlockError) as error:
        raise CorruptObject(name, f"does not decompress as {codec.name.lower()}: {error}") from error
    if raw is None:
        raise CorruptObject(name, f"claims to unpack to more than is possible, or to more than {most} bytes")
    return raw


def check_seal(stored: BytesLike, name: str, crc32: Checksum = zlib.crc32) -> memoryview:
    """Return a view of the bytes before the checksum, which must match them."""
    if len(stored) < CHECKSUM_BYTES:
        raise CorruptObject(name, f"{len(stored)} bytes are too few for a checksum")
    body = memoryview(stored)[:-CHECKSUM_BYTES]
    (expected,) = _CHECKSUM.unpack_from(stored, len(body))
    actual = crc32(body)
    if actual != expected:
        raise CorruptObject(name, f"checksum mismatch: stored {expected:08x}, computed {actual:08x}")
    return body


def _compress(raw: bytes, codec: Codec) -> bytes:
    match codec:
        case Codec.NONE:
            return raw
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(raw))
        case Codec.ZLIB:
            return zlib.compress(raw, _ZLIB_LEVEL)
        case Codec.LZ4:
            return bytes(lz4.block.compress(raw))
        case Codec.ZSTD:
            return bytes(zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw))


def _decompress(body: memoryview, codec: Codec, limit: int) -> BytesLike | None:
    """Decompress `body`. Return `None` if the result would exceed `limit`."""
    match codec:
        case Codec.NONE:
            return body
        case Codec.SNAPPY:
            size = int(cramjam.snappy.decompress_raw_len(body))
            if not _plausible(size, body, _SNAPPY_MAX_RATIO, limit):
                return None
            return memoryview(cramjam.snappy.decompress_raw(body))
        case Codec.ZLIB:
            return _decompress_zlib(body, limit)
        case Codec.LZ4:
            if len(body) < _LZ4_SIZE.size:
                return None
            (size,) = _LZ4_SIZE.unpack_from(body)
            if not _plausible(size, body, _LZ4_MAX_RATIO, limit):
                return None
            return bytes(lz4.block.decompress(body))
        case Codec.ZSTD:
            return _decompress_zstd(body, limit)


def _plausible(size: int, body: memoryview, max_ratio: int, limit: int) -> bool:
    """Return whether `body` can hold that much. Checked before memory is allocated for it."""
    return size <= min(limit, len(body) * max_ratio + _RATIO_ALLOWANCE_BYTES)


def _decompress_zlib(body: memoryview, limit: int) -> memoryview | None:
    decompressor = zlib.decompressobj()
    raw = bytearray()
    for position in range(0, len(body), _ZLIB_PIECE_BYTES):
        raw += decompressor.decompress(body[position : position + _ZLIB_PIECE_BYTES])
        if len(raw) > limit:
            return None
        if decompressor.eof:
            return memoryview(raw)
    raise zlib.error("the stream is cut short")


def _decompress_zstd(body: memoryview, limit: int) -> memoryview | None:
    """Decompress small pieces into a growing result, because frames may lack their size or declare a wrong
    one."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    raw = bytearray()
    position = 0
    while position < len(body):
        frame = decompressor.decompressobj()
        while not frame.eof:
            piece = body[position : position + _ZSTD_PIECE_BYTES]
            if not piece:
                raise zstandard.ZstdError("the frame is cut short")
            raw += frame.decompress(piece)
            if len(raw) > limit:
                return None
            position += len(piece) - len(frame.unused_data)
    return memoryview(raw)


# ----------------------------------------------------------------------------------------- info


def encode_info(info: SstInfo) -> bytes:
    """Return the info as a FlatBuffer, without checksum."""
    return write(wire.INFO, wire.encode_info(info))


def decode_info(raw: bytes, name: str) -> SstInfo:
    """Return the info of a FlatBuffer without checksum."""
    return wire.decode_info(read(raw, wire.INFO, name), name)


def encode_tail(info: SstInfo, info_offset: int) -> bytes:
    """Return everything after the stats: the info at `info_offset`, that offset, and the format version."""
    raw = encode_info(info)
    return raw + _CHECKSUM.pack(zlib.crc32(raw)) + _TAIL.pack(info_offset, WRITTEN_FORMAT_VERSION)


def read_info(store: ObjectStore, key: str) -> tuple[SstInfo, int]:
    """Return the info and the format version in an SST file itself. Only the end of the file is read."""
    size = store.head(key).size
    if size < _TAIL.size:
        raise CorruptObject(key, f"{size} bytes are too few for an SST")
    start = max(0, size - _TAIL_READ_BYTES)
    tail = store.get_range(key, start, size - start)
    info_offset, version = _TAIL.unpack_from(tail, len(tail) - _TAIL.size)
    end = size - _TAIL.size
    if version not in wire.SST_FORMAT_VERSIONS:
        raise Unsupported(f"{key}: SST format version {version} is not known to this version of Lithify")
    if info_offset > end or end - info_offset > MAX_INFO_BYTES:
        raise CorruptObject(key, f"its info cannot start at {info_offset} of {size} bytes")
    if info_offset < start:
        tail = store.get_range(key, info_offset, start - info_offset) + tail
        start = info_offset
    stored = tail[info_offset - start : end - start]
    info = decode_info(bytes(check_seal(stored, f"{key} (info)")), f"{key} (info)")
    _check_blocks(info, info_offset, key)
    return info, version


def _check_blocks(info: SstInfo, info_offset: int, key: str) -> None:
    """Check that the blocks in the info lie before it."""
    for what, offset, length in (
        ("filter", info.filter_offset, info.filter_len),
        ("index", info.index_offset, info.index_len),
        ("stats", info.stats_offset, info.stats_len),
    ):
        if offset + length > info_offset:
            raise CorruptObject(
                key, f"its {what} at {offset}+{length} reaches beyond the blocks' end {info_offset}"
            )

"""Reading Avro files of a table safely even if they are damaged (Avro: object container files).

With a wrong length, PyIceberg's compiled decoder reads other memory or crashes the process. Its reader takes
a truncated file for a shorter one, and decompresses blocks of any size. Here

1. nothing is read beyond the end of the bytes, and a number has at most 64 bits;
2. a block has exactly the records that it announces, followed by the sync marker;
3. a block is decompressed to at most `MAX_BLOCK_BYTES`.

PyIceberg interprets the values. Damage raises an exception of any class, which
`lithify.datasets.iceberg.format.manifests` converts.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import cramjam
import zstandard
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader

MAX_BLOCK_BYTES = 256 * 1024 * 1024
"""The most bytes of a block when decompressed. Writers begin a new block after tens of kilobytes."""
_MAX_SHIFT = 63
_CHECKSUM_BYTES = 4
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


class BoundedDecoder(BinaryDecoder):
    """Reads primitive values from bytes. Raises `ValueError` if the bytes end inside a value."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def tell(self) -> int:
        return self._position

    def go_to(self, position: int) -> None:
        self._position = position

    def bytes_since(self, start: int) -> bytes:
        """Return the bytes from a position to the current one."""
        return self._data[start : self._position]

    def repeats(self, known: bytes, start: int) -> bool:
        """Return whether these bytes follow a position; if so, continue after them."""
        if not self._data.startswith(known, start):
            return False
        self._position = start + len(known)
        return True

    def read(self, n: int) -> bytes:
        start, end = self._position, self._position + n
        if n < 0 or end > len(self._data):
            raise ValueError(f"{n} bytes at {start} of {len(self._data)}")
        self._position = end
        return self._data[start:end]

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def skip(self, n: int) -> None:
        self.read(n)

    def read_int(self) -> int:
        data, position = self._data, self._position
        if position < len(data) and (byte := data[position]) < 0x80:  # most numbers
            self._position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        result = shift = 0
        try:
            while (byte := data[position]) & 0x80:
                result |= (byte & 0x7F) << shift
                position += 1
                shift += 7
                if shift > _MAX_SHIFT:
                    raise ValueError(f"a number at {self._position} has more than 64 bits")
        except IndexError:
            raise ValueError(f"a number at {self._position} has no end") from None
        if shift == _MAX_SHIFT and byte > 1:
            raise ValueError(f"a number at {self._position} has more than 64 bits")
        result |= byte << shift
        self._position = position + 1
        return (result >> 1) ^ -(result & 1)

    def read_ints(self, n: int) -> tuple[int, ...]:
        # Statistics take most of a manifest, and most of their numbers have one byte.
        data, position = self._data, self._position
        found = []
        for _ in range(n):
            if position < len(data) and (byte := data[position]) < 0x80:
                position += 1
                found.append((byte >> 1) ^ -(byte & 1))
            else:
                self._position = position
                found.append(self.read_int())
                position = self._position
        self._position = position
        return tuple(found)

    def skip_int(self) -> None:
        self.read_int()


class RecordReader(Protocol):
    def read(self, decoder: BoundedDecoder, /) -> Any: ...


@runtime_checkable
class BlockReader(Protocol):
    """Reads all records of a block."""

    def read_block(self, data: bytes, count: int, /) -> Iterator[Any]:
        """Yield the `count` records of a block; `ValueError` if they do not fill it exactly."""
        ...


class RememberingReader:
    """Reads records that begin with their name. A record with the same bytes as the last one of its name is
    not decoded again: both are the same object, which callers must not change."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._known: dict[bytes, tuple[bytes, Any]] = {}

    def read(self, decoder: BoundedDecoder) -> Any:
        start = decoder.tell()
        name = decoder.read_bytes()
        known = self._known.get(name)
        if known is not None and decoder.repeats(known[0], start):
            return known[1]
        decoder.go_to(start)
        value = self._reader.read(decoder)
        self._known[name] = decoder.bytes_since(start), value
        return value


def read_records(data: bytes, reader_of: Callable[[str], RecordReader | BlockReader]) -> Iterator[Any]:
    """Yield a file's records. `reader_of` returns the reader for an Avro schema."""
    decoder = BoundedDecoder(data)
    header = _HEADER.read(decoder)
    if header.magic != MAGIC:
        raise ValueError("it is not an Avro file")
    if _SCHEMA not in header.meta:
        raise ValueError("it has no Avro schema")
    reader = reader_of(header.meta[_SCHEMA])
    unpack = _UNPACK[header.meta.get(_CODEC, "null")]
    while not decoder.is_at_end:
        count = decoder.read_int()
        block = unpack(decoder.read(decoder.read_int()))
        if isinstance(reader, BlockReader):
            yield from reader.read_block(block, count)
        else:
            yield from _read_one_by_one(reader, block, count)
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("the sync marker after a block is wrong")


def _read_one_by_one(reader: RecordReader, data: bytes, count: int) -> Iterator[Any]:
    block = BoundedDecoder(data)
    for _ in range(count):
        if block.is_at_end:
            raise ValueError(f"a block ends before its {count} records")
        yield reader.read(block)
    if count < 0 or not block.is_at_end:
        raise ValueError(f"a block continues after its {count} records")


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    return _whole(inflater.decompress(data, MAX_BLOCK_BYTES), inflater.eof)


def _bunzipped(data: bytes) -> bytes:
    decompressor = bz2.BZ2Decompressor()
    try:
        unpacked = decompressor.decompress(data, MAX_BLOCK_BYTES)
    except OSError as error:  # would count as a failure of the store
        raise ValueError(str(error)) from error
    return _whole(unpacked, decompressor.eof)


def _from_zstandard(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        unpacked = reader.read(MAX_BLOCK_BYTES + 1)
    return _whole(unpacked, len(unpacked) <= MAX_BLOCK_BYTES)


def _from_snappy(data: bytes) -> bytes:
    """Decompress a block that ends with the CRC-32 of its content."""
    packed, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if cramjam.snappy.decompress_raw_len(packed) > MAX_BLOCK_BYTES:
        raise _too_large()
    unpacked = bytes(cramjam.snappy.decompress_raw(packed))
    if zlib.crc32(unpacked).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise ValueError("the checksum of a block does not match")
    return unpacked


def _whole(unpacked: bytes, is_whole: bool) -> bytes:
    if not is_whole:
        raise _too_large()
    return unpacked


def _too_large() -> ValueError:
    return ValueError(f"a block is cut off, or unpacks to more than {MAX_BLOCK_BYTES} bytes")


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflated,
    "bzip2": _bunzipped,
    "zstandard": _from_zstandard,
    "snappy": _from_snappy,
}

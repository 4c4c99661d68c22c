"""Compression of the records of a batch, as Kafka's clients write and read it.

| codec  | written                                                        | read                  |
|--------|----------------------------------------------------------------|-----------------------|
| gzip   | one member                                                     | any number of members |
| snappy | Java's framing (xerial): a header, blocks of 32 KiB and their lengths | that, or one raw block |
| lz4    | a frame of independent blocks of 64 KiB: Java refuses dependent ones | a frame of either kind |
| zstd   | a frame of level 3                                             | any number of frames  |

Unpacking is limited, so that a small batch cannot make a task allocate gigabytes: a declared length is
checked before the allocation, and every library gets the limit. Bytes after the end of the compressed data
are refused.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

MAX_UNPACKED_BYTES = 256 << 20
"""No batch may unpack to more. Brokers accept batches of 1 MiB by default."""

_ZSTD_LEVEL = 3
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_RUN = 1
"""A block that repeats one byte; its size is that of the content."""
_ZSTD_CUT_OFF = "the zstd frame is cut off"
_GZIP_WINDOW_BITS = 31
_PIECE_BYTES = 1 << 20
_MIN_PIECE_BYTES = 4 << 10
_LZ4_MAX_RATIO = 255
_LZ4_MARGIN_BYTES = 1024
_SNAPPY_MAX_RATIO = 22
_SNAPPY_MARGIN_BYTES = 64
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 << 10
_LIBRARY_ERRORS = (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, RuntimeError, EOFError)


class BatchCodec(IntEnum):
    """The lowest three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BadCompression(Exception):
    """The records of a batch do not unpack. The message gives the reason."""


class BatchCodecs:
    """The libraries' contexts, for one thread."""

    def __init__(self, max_unpacked_bytes: int = MAX_UNPACKED_BYTES) -> None:
        self._limit = max_unpacked_bytes
        self._zstd_decompressor = zstandard.ZstdDecompressor()
        self._zstd_compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)

    def unpack(self, codec: BatchCodec, data: memoryview) -> bytes:
        """Decompress the records of a batch; raise `BadCompression` if they are damaged or too large."""
        try:
            match codec:
                case BatchCodec.NONE:
                    return bytes(data)
                case BatchCodec.GZIP:
                    return self._gunzip(data)
                case BatchCodec.SNAPPY:
                    return self._unsnap(data)
                case BatchCodec.LZ4:
                    return self._unpack_lz4(data)
                case BatchCodec.ZSTD:
                    return self._unpack_zstd(data)
        except _LIBRARY_ERRORS as error:
            raise BadCompression(f"the records do not unpack as {codec.name.lower()} ({error})") from error

    def pack(self, codec: BatchCodec, data: memoryview) -> bytes:
        match codec:
            case BatchCodec.NONE:
                return bytes(data)
            case BatchCodec.GZIP:
                stream = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
                return stream.compress(data) + stream.flush()
            case BatchCodec.SNAPPY:
                return _snap(data)
            case BatchCodec.LZ4:
                packed: bytes = lz4.frame.compress(
                    data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
                )
                return packed
            case BatchCodec.ZSTD:
                return self._zstd_compressor.compress(data)

    def _too_large(self) -> BadCompression:
        return BadCompression(
            f"the records unpack to more than {self._limit >> 20} MiB, the limit of a batch"
        )

    def _gunzip(self, data: memoryview) -> bytes:
        pieces, size = [], 0
        rest: bytes | memoryview = data
        while rest:
            stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
            piece = stream.decompress(rest, self._limit + 1 - size)
            size += len(piece)
            if size > self._limit:
                raise self._too_large()
            if not stream.eof:
                raise BadCompression("the gzip stream is cut off")
            pieces.append(piece)
            rest = stream.unused_data
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _unsnap(self, data: memoryview) -> bytes:
        if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            return self._unsnap_block(data, self._limit)
        pieces, size = [], 0
        position = len(_XERIAL_HEADER)
        if position > len(data):
            raise BadCompression("the header of the snappy stream is cut off")
        while position < len(data):
            length = int.from_bytes(data[position : position + 4])
            position += 4
            if length > len(data) - position:
                raise BadCompression("a snappy block is longer than the rest of the stream")
            pieces.append(self._unsnap_block(data[position : position + length], self._limit - size))
            size += len(pieces[-1])
            position += length
        return b"".join(pieces)

    def _unsnap_block(self, data: memoryview, limit: int) -> bytes:
        declared = _declared_size(data)
        if declared > limit:
            raise self._too_large()
        if declared > _SNAPPY_MAX_RATIO * len(data) + _SNAPPY_MARGIN_BYTES:
            raise BadCompression("a snappy block claims more than it can hold")
        return bytes(cramjam.snappy.decompress_raw(data))

    def _unpack_lz4(self, data: memoryview) -> bytes:
        reach = min(self._limit, _LZ4_MAX_RATIO * len(data) + _LZ4_MARGIN_BYTES)
        frame = lz4.frame.LZ4FrameDecompressor()
        content: bytes = frame.decompress(data, max_length=reach + 1)
        if len(content) > self._limit:
            raise self._too_large()
        if not frame.eof:
            raise BadCompression("the lz4 frame is cut off")
        if frame.unused_data:
            raise BadCompression("bytes follow the lz4 frame")
        return content

    def _unpack_zstd(self, data: memoryview) -> bytes:
        declared = zstandard.frame_content_size(data)
        if declared > self._limit:
            raise self._too_large()
        _check_zstd_frames(data)
        wanted = declared + 1 if declared >= 0 else _PIECE_BYTES
        # Not less than some kilobytes, as a long frame may follow an empty one.
        piece_bytes = min(max(wanted, _MIN_PIECE_BYTES), _PIECE_BYTES)
        pieces, size = [], 0
        with self._zstd_decompressor.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(piece_bytes):
                size += len(piece)
                if size > self._limit:
                    raise self._too_large()
                pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_zstd_frames(data: memoryview) -> None:
    """Raise `BadCompression` unless the last frame is whole: the library takes the end of the data for its
    end."""
    position = 0
    while position < len(data):
        if int.from_bytes(data[position : position + 4], "little") & ~0xF == _ZSTD_SKIPPABLE_MAGIC:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        has_checksum = zstandard.get_frame_parameters(data[position:]).has_checksum
        position += zstandard.frame_header_size(data[position:])
        is_last = False
        while not is_last and position < len(data):
            block = int.from_bytes(data[position : position + 3], "little")
            is_last, is_run, size = bool(block & 1), block >> 1 & 3 == _ZSTD_RUN, block >> 3
            position += 3 + (1 if is_run else size)
        position += 4 if has_checksum else 0
        if not is_last:
            raise BadCompression(_ZSTD_CUT_OFF)
    if position > len(data):
        raise BadCompression(_ZSTD_CUT_OFF)


def _declared_size(data: memoryview) -> int:
    """Return the uncompressed length with which a raw snappy block begins."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise BadCompression("the length of a snappy block is cut off")


def _snap(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += [len(block).to_bytes(4), block]
    return b"".join(pieces)

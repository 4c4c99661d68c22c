"""Block compression inside the kernel.

`unpack_block` decompresses one input block into the source's own buffer:

1. Read the uncompressed size if the format declares one (snappy, LZ4 as SlateDB frames it, zstd frames).
   Refuse a size beyond the format's greatest compression ratio or beyond the source's `unpacked_limit`: a
   tiny block must not make the kernel allocate gigabytes (`inputs`).
2. If the buffer is too short, return with the size needed; the caller provides it and calls again.
3. If no size is declared (zlib, some zstd frames), try. If the library reports a too short buffer, ask for
   four times as much, up to the same limit.

`pack_block` compresses an output block into the scratch buffer. snappy is compiled code; zstd, zlib and LZ4's
compressor are library functions, called by address with the libraries' own signatures.
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel import lz4, snappy, zstd_frame
from lithify.datasets.slatedb.kernel.layout import KernelStatus, Record
from lithify.datasets.slatedb.model import Codec
from lithify.kernel.cache import called
from lithify.kernel.memory import (
    call_compressor,
    call_decompressor,
    call_lz4_compressor,
    load_u32,
    store_u32,
)

TARGET_TOO_SHORT = -70
"""The result of zstd, and of the zlib wrapper, if the output does not fit."""
LZ4_SIZE_BYTES = 4

_ZLIB_MAX_RATIO = 1032
_GROWTH = 4
_RATIO_MARGIN_BYTES = 64

_SNAPPY = int(Codec.SNAPPY)
_ZLIB = int(Codec.ZLIB)
_LZ4 = int(Codec.LZ4)
_OK = int(KernelStatus.OK)
_NEED_UNPACK_SPACE = int(KernelStatus.NEED_UNPACK_SPACE)
_BAD_COMPRESSION = int(KernelStatus.BAD_COMPRESSION)
_BAD_SIZE = int(KernelStatus.BAD_SIZE)
_FAILED = -1

snappy_compress = snappy.compress
snappy_decompress = snappy.decompress
snappy_declared_size = snappy.declared_size
lz4_decompress = lz4.decompress
zstd_declared_size = zstd_frame.declared_size
zstd_content_limit = zstd_frame.content_limit


@called
def _declared_size(codec: int, address: int, length: int) -> int:
    """Return the declared uncompressed size; negative if there is none."""
    if codec == _SNAPPY:
        return snappy_declared_size(address, length)
    if codec == _LZ4:
        return load_u32(address) if length >= LZ4_SIZE_BYTES else _FAILED
    if codec == _ZLIB:
        return _FAILED
    return zstd_declared_size(address, length)


@called
def _size_limit(codec: int, length: int) -> int:
    """Return the most that a block of `length` stored bytes can unpack to."""
    if codec == _SNAPPY:
        return length * snappy.MAX_RATIO + _RATIO_MARGIN_BYTES
    if codec == _LZ4:
        return length * lz4.MAX_RATIO + _RATIO_MARGIN_BYTES
    if codec == _ZLIB:
        return length * _ZLIB_MAX_RATIO + _RATIO_MARGIN_BYTES
    return zstd_content_limit(length)


@called
def _decompress(
    codec: int, codecs: Record, address: int, length: int, target: int, capacity: int, declared: int
) -> int:
    if codec == _SNAPPY:
        return snappy_decompress(address, length, target, capacity)
    if codec == _LZ4:
        return lz4_decompress(address + LZ4_SIZE_BYTES, length - LZ4_SIZE_BYTES, target, declared)
    if codec == _ZLIB:
        return call_decompressor(codecs.zlib_decompress, 0, target, capacity, address, length)
    context = codecs.zstd_decompress_context
    return call_decompressor(codecs.zstd_decompress, context, target, capacity, address, length)


@called
def unpack_block(source: Record, codecs: Record, address: int, length: int) -> tuple[int, int, int]:
    """Decompress a block. Return status, address and length of the result."""
    codec = source.codec
    limit = min(_size_limit(codec, length), source.unpacked_limit)
    declared = _declared_size(codec, address, length)
    if declared > limit or (declared < 0 and codec in (_SNAPPY, _LZ4)):
        return _BAD_SIZE, 0, 0
    capacity = source.unpacked_capacity
    if declared > capacity or capacity == 0:
        source.needed = max(declared, 1)
        return _NEED_UNPACK_SPACE, 0, 0
    size = _decompress(codec, codecs, address, length, source.unpacked, capacity, declared)
    if size == TARGET_TOO_SHORT and capacity >= limit:
        return _BAD_SIZE, 0, 0
    if size == TARGET_TOO_SHORT:
        source.needed = min(limit, _GROWTH * max(capacity, 1))
        return _NEED_UNPACK_SPACE, 0, 0
    if size < 0 or size > capacity or (declared >= 0 and size != declared):
        return _BAD_COMPRESSION, 0, 0
    return _OK, source.unpacked, size


@called
def pack_block(codec: int, codecs: Record, address: int, length: int) -> int:
    """Compress a block into the scratch buffer. Return the compressed length; at most 0 on failure."""
    packed, capacity = codecs.packed, codecs.packed_capacity
    if codec == _SNAPPY:
        return snappy_compress(address, length, packed, codecs.snappy_table)
    if codec == _LZ4:
        store_u32(packed, length)
        room = capacity - LZ4_SIZE_BYTES
        size = call_lz4_compressor(codecs.compress, address, packed + LZ4_SIZE_BYTES, length, room)
        return size + LZ4_SIZE_BYTES if size > 0 else _FAILED
    context, level = codecs.compress_context, codecs.level
    return call_compressor(codecs.compress, context, packed, capacity, address, length, level)

"""The header of a zstd frame, read to learn the content's size before decompression.

Layout: magic number, one descriptor byte, then optionally window size, dictionary id and content size, with
the widths that the descriptor gives.
"""

from __future__ import annotations

from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import load_i64, load_u8, load_u16, load_u32

UNKNOWN = -1
"""The frame declares no size, or is invalid; decompression will show which."""

_MAGIC = 0xFD2FB528
_MAGIC_BYTES = 4
_MAX_HEADER_BYTES = 18
_MAX_BLOCK_BYTES = 128 * 1024
_MIN_BLOCK_BYTES = 4


@inlined
def content_limit(length: int) -> int:
    """Return the most that a frame of `length` bytes can contain: each block takes at least four bytes and
    has at most 128 KiB."""
    return (length // _MIN_BLOCK_BYTES + 1) * _MAX_BLOCK_BYTES


@called
def declared_size(source: int, length: int) -> int:
    """Return the content size in the header, or `UNKNOWN`."""
    if length < _MAX_HEADER_BYTES or load_u32(source) != _MAGIC:
        return UNKNOWN
    descriptor = load_u8(source + _MAGIC_BYTES)
    single_segment = (descriptor >> 5) & 1
    dictionary = descriptor & 3
    position = source + _MAGIC_BYTES + 1 + (1 - single_segment) + (4 if dictionary == 3 else dictionary)
    width_code = descriptor >> 6
    if width_code == 0:
        return load_u8(position) if single_segment else UNKNOWN
    if width_code == 1:
        return load_u16(position) + 256
    if width_code == 2:
        return load_u32(position)
    return load_i64(position)

"""The end of the newest segment, as a copy of a running broker has it.

A broker appends to the newest segment, and may reserve space for it. So a snapshot of its disk may end with
a part of a batch, with zeros, or with both. Such an end is left out, as a starting broker truncates it.
Anything else that is no batch is damage, also in the newest segment:

1. The bytes that are not zeros must be the beginning of one batch, which claims more bytes than these.
2. No sound batch may begin within them: then a length is damaged, and whole batches follow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lithify.datasets.kafka.format.chunked_decode import bites
from lithify.datasets.kafka.format.kernel.headers import scan
from lithify.datasets.kafka.format.kernel.layout import (
    BATCH,
    HEADER_BYTES,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    UNCOUNTED_BYTES,
    KernelStatus,
)
from lithify.datasets.kafka.format.legacy import message_bytes

_MAX_TORN_BYTES = 128 << 20
_LEAST_MISSING_BYTES = 8
"""A batch may end with a few zeros of its own."""
_BITE_BYTES = 4 << 20
_MAX_OWN_ZEROS = 8 << 20
Read = Callable[[int, int], bytes]
"""Returns bytes from a position on, so many."""


def sound_bytes(data: bytes | memoryview) -> int:
    """Return how many bytes at the start are sound batches or messages; their offsets are not compared."""
    end = 0
    for _, bite in bites([("", data)], _BITE_BYTES):
        size = _sound(bite)
        end += size
        if size < len(bite):
            break
    return end


def is_torn(read: Read, position: int, end: int) -> bool:
    """Return whether the bytes from `position` to `end` are what a copy of a running broker may end with."""
    content = _without_zeros(read, position, end)
    if content is None:
        return False
    if len(content) <= MAGIC_AT:
        return True
    claimed = UNCOUNTED_BYTES + int.from_bytes(content[LENGTH_AT : LENGTH_AT + 4], signed=True)
    missing, is_cut = claimed - len(content), position + claimed > end
    if content[MAGIC_AT] > MAGIC or missing <= 0:
        return False
    zeros = min(end - position - len(content), _MAX_OWN_ZEROS)
    if _has_batch(content + bytes(zeros)):
        return False
    return is_cut or (missing >= _LEAST_MISSING_BYTES and position + claimed < end)


def without_torn_end(data: bytes) -> memoryview:
    """Return a newest segment without such an end."""
    end = sound_bytes(data)
    is_end = end < len(data) and is_torn(lambda start, size: data[start : start + size], end, len(data))
    return memoryview(data)[: end if is_end else len(data)]


def _sound(data: memoryview) -> int:
    source = np.frombuffer(data, np.uint8)
    batches = np.empty(len(source) // HEADER_BYTES + 1, BATCH)
    position = 0
    while position < len(source):
        address = source.ctypes.data + position
        status, _, size = scan(address, len(source) - position, -(1 << 62), True, batches)
        position += size
        if status == KernelStatus.OK:
            break
        if status == KernelStatus.BAD_ORDER or not (legacy := message_bytes(data[position:])):
            break
        position += legacy
    return position


def _without_zeros(read: Read, position: int, end: int) -> bytes | None:
    """Return these bytes without the zeros at their end; `None` if they are too many for one batch."""
    content = bytearray()
    zeros = 0
    while position < end:
        piece = read(position, min(_BITE_BYTES, end - position))
        position += len(piece)
        left = piece.rstrip(b"\0")
        if left:
            content += bytes(zeros) + left
            zeros = 0
        zeros += len(piece) - len(left)
        if len(content) + (zeros if left else 0) > _MAX_TORN_BYTES:
            return None
    return bytes(content)


def _has_batch(content: bytes) -> bool:
    """Return whether a sound batch begins after the first byte."""
    source = np.frombuffer(content, np.uint8)
    places = np.flatnonzero(source[1 + MAGIC_AT : len(source) - (HEADER_BYTES - MAGIC_AT - 1)] == MAGIC) + 1
    lengths = np.zeros(len(places), np.int64)
    for byte in range(4):
        lengths = lengths << 8 | source[places + LENGTH_AT + byte]
    places = places[
        (lengths >= HEADER_BYTES - UNCOUNTED_BYTES) & (lengths + UNCOUNTED_BYTES + places <= len(source))
    ]
    return any(_sound(memoryview(content)[place:]) for place in places.tolist())

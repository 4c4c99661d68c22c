"""Reads batches from segments of any layout. Messages of older formats are converted to batches."""

from __future__ import annotations

from collections.abc import Iterator

from lithify.datasets.kafka.format.legacy import upgraded
from lithify.datasets.kafka.layouts import segments
from lithify.datasets.kafka.layouts.contract import ObjectChunk, Segment
from lithify.datasets.kafka.layouts.objects import chunk_pieces
from lithify.datasets.kafka.layouts.tails import is_torn, sound_bytes
from lithify.store.objects import ObjectStore, is_local

LOCAL_PIECE_BYTES = 4 << 20
"""Small enough for a processor's cache."""


def pieces(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield several whole batches at a time, with a name for errors. A piece is valid until the next but one
    is requested."""
    return _pieces(store, segment, segments.PIECE_BYTES)


def streamed(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """Like `pieces`, if their size does not matter: smaller in a local store, where requests are cheap."""
    return _pieces(store, segment, LOCAL_PIECE_BYTES if is_local(store) else segments.PIECE_BYTES)


def _pieces(
    store: ObjectStore, segment: Segment, piece_bytes: int
) -> Iterator[tuple[str, bytes | memoryview]]:
    if not isinstance(segment, ObjectChunk):
        for name, data in segments.pieces(store, segment, piece_bytes=piece_bytes):
            yield name, upgraded(name, data)
    elif segments.is_segment(segment.key):
        for one in segment.objects:
            yield from _pieces(store, one, piece_bytes)
    else:
        yield from chunk_pieces(store, segment)


def whole_bytes(store: ObjectStore, segment: Segment) -> int:
    """Return the size of the newest segment without the end that a copy of a running broker may have
    (`tails.py`); the size of the segment if it has no such end."""
    position = 0
    for _, data in segments.pieces(store, segment):
        size = sound_bytes(data)
        position += size
        if size < len(data):
            read = lambda start, count: store.get_range(segment.key, start, count)  # noqa: E731
            return position if is_torn(read, position, segment.size_bytes) else segment.size_bytes
    return segment.size_bytes

"""Reads batches from segments of any layout."""

from __future__ import annotations

from collections.abc import Iterator

from lithify.datasets.kafka.layouts import segments
from lithify.datasets.kafka.layouts.contract import ObjectChunk, Segment
from lithify.datasets.kafka.layouts.objects import chunk_pieces
from lithify.store.objects import ObjectStore, is_local

LOCAL_PIECE_BYTES = 4 << 20
"""Small enough for a processor's cache."""


def pieces(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield several whole batches at a time, with a name for errors. A piece is valid until the next but one
    is requested."""
    return (
        chunk_pieces(store, segment) if isinstance(segment, ObjectChunk) else segments.pieces(store, segment)
    )


def streamed(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """Like `pieces`, if their size does not matter: smaller in a local store, where requests are cheap."""
    if isinstance(segment, ObjectChunk) or not is_local(store):
        return pieces(store, segment)
    return segments.pieces(store, segment, piece_bytes=LOCAL_PIECE_BYTES)

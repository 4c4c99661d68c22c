"""What a task reads, of whatever layout: batches, some whole ones at a time."""

from __future__ import annotations

from collections.abc import Iterator

from lithify.datasets.kafka.layouts import segments
from lithify.datasets.kafka.layouts.contract import ObjectChunk, Segment
from lithify.datasets.kafka.layouts.objects import chunk_pieces
from lithify.store.objects import ObjectStore, is_local

LOCAL_PIECE_BYTES = 4 << 20
"""Small enough for a processor's cache."""


def pieces(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """Batches behind each other, each time with a name for errors. A piece stays as it is until the next but
    one is asked for."""
    return (
        chunk_pieces(store, segment) if isinstance(segment, ObjectChunk) else segments.pieces(store, segment)
    )


def streamed(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes | memoryview]]:
    """The same where it does not matter how they are cut: smaller, unless each is a request that waits."""
    if isinstance(segment, ObjectChunk) or not is_local(store):
        return pieces(store, segment)
    return segments.pieces(store, segment, piece_bytes=LOCAL_PIECE_BYTES)

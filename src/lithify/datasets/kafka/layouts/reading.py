"""What a task reads, of whatever layout: batches, some whole ones at a time."""

from __future__ import annotations

from collections.abc import Iterator

from lithify.datasets.kafka.layouts import segments
from lithify.datasets.kafka.layouts.contract import Chunk, Segment
from lithify.datasets.kafka.layouts.objects import chunk_pieces
from lithify.store.objects import ObjectStore


def pieces(store: ObjectStore, segment: Segment) -> Iterator[tuple[str, bytes]]:
    """Batches behind each other, each time with a name for errors."""
    return chunk_pieces(store, segment) if isinstance(segment, Chunk) else segments.pieces(store, segment)

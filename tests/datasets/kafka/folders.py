"""A partition in a folder of segments, grown by hand, and a plain reader of it in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import aiokafka.record.memory_records

from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from tests.datasets.kafka.logs import Batch, encode_all

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


def put_segments(store: ObjectStore, folder: str, segments: Iterable[Sequence[Batch]]) -> None:
    """Each of these as a segment, named by the first offset in it."""
    for batches in segments:
        store.put(join(folder, f"{batches[0].first:020d}.log"), encode_all(batches))


def read_rows(store: ObjectStore, folder: str) -> list[Row]:
    """What a client reads of all segments; markers are no rows. Aborted rows are among them."""
    found: list[Row] = []
    for meta in sorted(store.list(folder), key=lambda meta: meta.key):
        if not meta.key.endswith(".log"):
            continue
        batches = aiokafka.record.memory_records.MemoryRecords(store.get(meta.key))
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            if not batch.is_control_batch:
                found += [(row.offset, row.timestamp, row.key, row.value) for row in batch]
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    return found


def latest(rows: Iterable[Row]) -> dict[bytes, Row]:
    """The newest row of each key, deleted ones not."""
    newest = {row[2]: row for row in rows if row[2] is not None}
    return {key: row for key, row in newest.items() if row[3] is not None}

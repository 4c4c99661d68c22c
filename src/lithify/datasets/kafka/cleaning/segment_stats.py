"""What the index of a segment says of it besides its keys, and headers of what is in transactions.

    <key of the index>.facts          a CRC-32 in hexadecimal, a line feed, then JSON; written last
    <key of the index>.transactions   headers of the segment's transactional and control batches
    <key of the index>-0.run          the runs (`index.py`), counted from 0

Facts name the key they were written under and have the checksum of the headers, and so has a run of its parts
(`fenced.py`). So an index that is cut off, damaged or another's is told from a whole one.

Segments are indexed apart from each other, so what goes over their bounds is put together here, in the order
of offsets: transactions that began in one and ended in another, and the last that is known of a producer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE
from lithify.datasets.kafka.cleaning.retention import LastRecord
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.format.kernel.layout import BATCH, NO_TIMESTAMP, Records
from lithify.store.objects import ObjectStore

FENCES = 1024
"""Parts of a run at most: the finest slices of the hash space."""
PART_BYTES = 16 << 10
"""Of a part at least, if a run has several."""
FACTS_SUFFIX = ".facts"
HEADERS_SUFFIX = ".transactions"
RUN_SUFFIX = ".run"
_BODY_AT = len("01234567\n")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Where a run (`index.Run`) lies: a fenced array whose parts are equal shares of the hash space."""

    key: str
    entries: int

    @property
    def parts(self) -> int:
        """A power of two: as many as keep the table of its parts small beside the parts."""
        most = self.entries * ENTRY.itemsize // PART_BYTES
        return min(FENCES, 1 << max(0, most.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What is known of a segment that was read."""

    base_offset: int
    end_offset: int
    """Behind its last batch; its base if it has none."""
    size_bytes: int
    max_timestamp_ms: int
    records: int
    tombstones: int
    runs: tuple[StoredRun, ...]
    producers: Mapping[int, LastRecord]
    transactions_crc: int = 0
    """Checksum of the headers beside."""


def run_key(key: str, number: int) -> str:
    """The key of a run of the index with this key."""
    return f"{key}-{number}{RUN_SUFFIX}"


def put_facts(store: ObjectStore, key: str, facts: SegmentFacts, transactional: Records) -> int:
    """Write them, after the runs; how many bytes that are. `key` has no suffix."""
    headers = transactional.tobytes()
    store.put(key + HEADERS_SUFFIX, headers)
    document: dict[str, Any] = {
        name: getattr(facts, name) for name in SegmentFacts.__slots__ if name not in ("producers", "runs")
    }
    document["key"] = key
    document["runs"] = [run.entries for run in facts.runs]
    document["transactions_crc"] = zlib.crc32(headers)
    document["producers"] = [
        [who, last.epoch, last.data_offset, last.timestamp_ms] for who, last in facts.producers.items()
    ]
    body = json.dumps(document).encode()
    data = b"%08x\n" % zlib.crc32(body) + body
    store.put(key + FACTS_SUFFIX, data)
    return len(data) + len(headers)


def get_facts(store: ObjectStore, key: str) -> SegmentFacts:
    """What `put_facts` wrote.

    Raises `CorruptObject`.
    """
    try:
        data = store.get(key + FACTS_SUFFIX)
        if data[:_BODY_AT] != b"%08x\n" % zlib.crc32(data[_BODY_AT:]):
            raise CorruptObject(key + FACTS_SUFFIX, "the checksum does not match")
        found = json.loads(data[_BODY_AT:])
        if (of := found.pop("key")) != key:
            raise CorruptObject(key + FACTS_SUFFIX, f"was written as {of}")
        producers = {
            int(who): LastRecord(int(epoch), None if offset is None else int(offset), int(timestamp_ms))
            for who, epoch, offset, timestamp_ms in found.pop("producers")
        }
        counts = map(int, found.pop("runs"))
        runs = tuple(StoredRun(run_key(key, number), entries) for number, entries in enumerate(counts))
        return SegmentFacts(runs=runs, producers=producers, **{name: int(found[name]) for name in found})
    except ObjectNotFound as error:
        raise CorruptObject(key + FACTS_SUFFIX, "is gone; run again") from error
    except UNDECODABLE as error:
        raise CorruptObject(key + FACTS_SUFFIX, f"does not decode: {error}") from error


def get_transactional(store: ObjectStore, key: str, facts: SegmentFacts) -> Records:
    """The headers of the segment's transactional and control batches (`BATCH`).

    Raises `CorruptObject`.
    """
    try:
        data = store.get(key + HEADERS_SUFFIX)
    except ObjectNotFound as error:
        raise CorruptObject(key + HEADERS_SUFFIX, "is gone; run again") from error
    if zlib.crc32(data) != facts.transactions_crc or len(data) % BATCH.itemsize:
        raise CorruptObject(key + HEADERS_SUFFIX, "the checksum does not match")
    return np.frombuffer(data, BATCH)


def last_of(facts: Iterable[SegmentFacts]) -> dict[int, LastRecord]:
    """The last of each producer after these segments, which follow each other."""
    known: dict[int, LastRecord] = {}
    for segment in facts:
        for who, last in segment.producers.items():
            before = known.get(who)
            if last.data_offset is None and before is not None and before.epoch == last.epoch:
                last = replace(last, data_offset=before.data_offset)
            known[who] = last
    return known


def no_facts(base_offset: int) -> SegmentFacts:
    """Of a segment of which nothing was read yet."""
    return SegmentFacts(base_offset, base_offset, 0, NO_TIMESTAMP, 0, 0, (), {})

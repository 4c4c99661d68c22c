"""The parts of a segment's index besides its keys: facts, and headers of transactional batches.

    <key of the index>.facts          a CRC-32 in hexadecimal, a line feed, then JSON; written last
    <key of the index>.transactions   headers of the segment's transactional and control batches
    <key of the index>-0.run          the runs (`index.py`), counted from 0

Facts contain their key and the headers' checksum; runs have checksums (`partitioned_arrays.py`). So an index
that is truncated, damaged or another object's is detected.

Segments are indexed separately. `last_of` combines the last states of producers across segments.
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
"""The most parts of a run: the finest slices of the hash space."""
PART_BYTES = 16 << 10
"""The least average size of a part, if a run has several."""
FACTS_SUFFIX = ".facts"
HEADERS_SUFFIX = ".transactions"
RUN_SUFFIX = ".run"
_BODY_AT = len("01234567\n")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run (`index.Run`) in the store: a partitioned array with equal shares of the hash space as parts."""

    key: str
    entries: int

    @property
    def parts(self) -> int:
        """A power of two, limited so that the table stays small compared to the parts."""
        most = self.entries * ENTRY.itemsize // PART_BYTES
        return min(FENCES, 1 << max(0, most.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    base_offset: int
    end_offset: int
    """The offset after its last batch; its base if it has no batch."""
    size_bytes: int
    """Size of the segment, without the torn end that the newest one may have (`layouts/tails.py`)."""
    max_timestamp_ms: int
    records: int
    tombstones: int
    runs: tuple[StoredRun, ...]
    producers: Mapping[int, LastRecord]
    transactions_crc: int = 0
    """Checksum of the headers object."""
    unkeyed: int = 0
    """The number of records without a key."""


def run_key(key: str, number: int) -> str:
    return f"{key}-{number}{RUN_SUFFIX}"


def put_facts(store: ObjectStore, key: str, facts: SegmentFacts, transactional: Records) -> int:
    """Write headers and facts, after the runs, and return their size in bytes. `key` has no suffix."""
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
    """Return the facts written by `put_facts`.

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
    """Return the headers written by `put_facts` (`BATCH`).

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
    """Return each producer's last state after these consecutive segments."""
    known: dict[int, LastRecord] = {}
    for segment in facts:
        for who, last in segment.producers.items():
            before = known.get(who)
            if last.data_offset is None and before is not None and before.epoch == last.epoch:
                last = replace(last, data_offset=before.data_offset)
            known[who] = last
    return known


def no_facts(base_offset: int) -> SegmentFacts:
    """Return the facts of a segment before it is read."""
    return SegmentFacts(base_offset, base_offset, 0, NO_TIMESTAMP, 0, 0, (), {})

"""Index files of a segment, as a broker rebuilds them.

| file         | entry, all numbers big-endian                                                              |
|--------------|--------------------------------------------------------------------------------------------|
| `.index`     | offset i32, counted from the segment's base · position of its batch i32                    |
| `.timeindex` | timestamp i64 · offset i32, counted from the base: no batch up to it has a later timestamp |
| `.txnindex`  | version i16 · producer id i64 · first offset i64 · last offset i64 · last stable offset i64 |

`IndexBuilder` processes the headers of a segment as a broker's recovery does:

1. A batch gets an offset entry, with its last offset, if more than `INTERVAL_BYTES` lie between it and the
   batch of the last entry.
2. Each offset entry comes with a time entry: the greatest timestamp so far, and the last offset of the first
   batch that has it. It is omitted unless that timestamp is above the last entry's.
3. A last time entry follows at the end, if a greater timestamp was found since.

The segment with the marker of an aborted transaction has its index entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from lithify.base.errors import Refused
from lithify.datasets.kafka.format.kernel.layout import CONTROL, MAX_OFFSET_DELTA, NO_TIMESTAMP, Records
from lithify.datasets.kafka.format.transactions import AbortedTransaction

INTERVAL_BYTES = 4096
"""The default of a broker's `index.interval.bytes`."""
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_ABORTED_VERSION = 0


class IndexBuilder:
    """Builds the index files of a segment while it is written."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        """Size of the segment so far."""
        self._offsets, self._times, self._aborted = bytearray(), bytearray(), bytearray()
        self._indexed_position = 0
        self._written_ms = NO_TIMESTAMP
        self._greatest_ms, self._greatest_offset = NO_TIMESTAMP, base_offset

    def add(self, batches: Records) -> None:
        """Add the appended batches; their positions count from the first of them.

        Raises `Refused` if the segment gets too long for its index files.
        """
        if not len(batches):
            return
        positions = batches["position"] + self.size_bytes
        end = int(positions[-1] + batches["size"][-1])
        last_offset = int(batches["last_offset"][-1])
        if end > MAX_OFFSET_DELTA or last_offset - self.base_offset > MAX_OFFSET_DELTA:
            raise Refused(
                f"a segment from {self.base_offset} to {last_offset} of {end} bytes is too large for its "
                "index; set a smaller kafka.segment_bytes"
            )
        greatest = np.maximum.accumulate(np.maximum(batches["max_timestamp"], self._greatest_ms))
        at = self._next(positions, 0)
        while at < len(batches):
            self._see(batches, greatest, at)
            relative = int(batches["last_offset"][at]) - self.base_offset
            self._offsets += _OFFSET_ENTRY.pack(relative, int(positions[at]))
            self._write_time()
            self._indexed_position = int(positions[at])
            at = self._next(positions, at + 1)
        self._see(batches, greatest, len(batches) - 1)
        self.size_bytes = end

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions whose markers are in the segment, in the order of their markers."""
        for found in transactions:
            self._aborted += _ABORTED_ENTRY.pack(
                _ABORTED_VERSION,
                found.producer_id,
                found.first_offset,
                found.last_offset,
                found.stable_offset,
            )

    def files(self) -> dict[str, bytes]:
        """Return the index files by suffix once the segment is complete; no `.txnindex` without aborted
        transactions."""
        self._write_time()
        found = {".index": bytes(self._offsets), ".timeindex": bytes(self._times)}
        return found | ({".txnindex": bytes(self._aborted)} if self._aborted else {})

    def _next(self, positions: Records, start: int) -> int:
        """Return the first batch from `start` on that gets an entry."""
        found = np.searchsorted(positions, self._indexed_position + INTERVAL_BYTES, side="right")
        return max(start, int(found))

    def _see(self, batches: Records, greatest: Records, at: int) -> None:
        """Record the greatest timestamp up to this batch."""
        if greatest[at] > self._greatest_ms:
            self._greatest_ms = int(greatest[at])
            first = int(np.searchsorted(greatest, greatest[at]))
            self._greatest_offset = int(batches["last_offset"][first])

    def _write_time(self) -> None:
        if self._greatest_ms > self._written_ms:
            self._times += _TIME_ENTRY.pack(self._greatest_ms, self._greatest_offset - self.base_offset)
            self._written_ms = self._greatest_ms


def markers_of(batches: Records, aborted: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
    """Return the transactions whose markers are among these batches."""
    at = set(batches["last_offset"][batches["attributes"] & CONTROL != 0].tolist())
    return [transaction for transaction in aborted if transaction.last_offset in at]

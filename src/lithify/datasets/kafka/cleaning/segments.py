"""A pass over segments that removes records chunk by chunk.

For each chunk of whole batches (`chunked_decode.py`):

1. Check headers, and unpack compressed batches (`record_batches.opened`).
2. Read the markers, and find the transactions' outcome for each batch (`transactions.fates`).
3. Read, check and filter all records, and write the kept ones (`rewriting.py`).

Step 3 verifies the checksums of uncompressed batches, while they are in the processor's cache, so steps 1 and
2 may see garbage before. A damaged chunk raises the first error of `record_batches.decode`, before any of its
bytes are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.kafka.cleaning.retention import (
    FirstKept,
    LastRecord,
    Rules,
    empty_to_retain,
    kept_marker,
    verdicts,
)
from lithify.datasets.kafka.cleaning.rewriting import BadRecords, Rewriter
from lithify.datasets.kafka.format.chunked_decode import bites
from lithify.datasets.kafka.format.kernel.layout import CONTROL, RECORD, KernelStatus, Records
from lithify.datasets.kafka.format.kernel.records import parse
from lithify.datasets.kafka.format.kernel.retaining import Offsets, Tally
from lithify.datasets.kafka.format.record_batches import decode, opened
from lithify.datasets.kafka.format.transactions import AbortedTransaction, Passed, fates
from lithify.kernel.buffers import Bytes

PASS_BYTES = 4 << 20
"""Size of a chunk. Its records are not materialized, so it may be larger than a decoded chunk."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    kept: memoryview
    """Valid until the second next result is requested."""
    size: int
    """Bytes of the chunk."""
    tally: Tally
    """Number of records by `RemovalReason`, kept ones included."""


class Cleaner:
    def __init__(
        self,
        rules: Rules,
        dead: Offsets,
        pinned: Offsets,
        *,
        aborted: tuple[AbortedTransaction, ...] = (),
        passed: Passed | None = None,
        producers: Mapping[int, LastRecord] | None = None,
        after: int = -1,
    ) -> None:
        """`dead` and `pinned` are offsets in any part of the log. The last batches of `producers` keep their
        header. `after` is the last offset before the first batch."""
        self._rules, self._dead, self._pinned = rules, dead, pinned
        self._aborted, self._passed, self._producers = aborted, passed, producers or {}
        self._after = after
        self._rewriter = Rewriter()
        self.kept = FirstKept()
        """The first records that stay in the chunks so far only because of the thresholds."""

    def cleaned(
        self, pieces: Iterable[tuple[str, bytes | memoryview]], *, bite_bytes: int = PASS_BYTES
    ) -> Iterator[Cleaned]:
        """Yield the kept part of each chunk of these pieces, which consist of whole batches.

        Raises `CorruptObject` and `Unsupported`.
        """
        for name, data in bites(pieces, bite_bytes):
            try:
                found, after = self._one(data, name)
            except (BadRecords, CorruptObject, Unsupported):
                decode(data, name, after=self._after)
                raise AssertionError(f"{name}: is refused, and decodes") from None
            yield found
            self._after = after

    def _one(self, data: memoryview, name: str) -> tuple[Cleaned, int]:
        rules, dead, pinned = self._rules, self._dead, self._pinned
        memory, batches = opened(data, name, after=self._after)
        _read_markers(memory, batches)
        what, self._passed = fates(batches, self._aborted, self._passed)
        verdict = verdicts(batches, what, rules, empty_to_retain(batches, self._producers, rules.bound))
        way = rules.way(batches, dead, pinned)
        found = self._rewriter.write(memory, batches, verdict, way)
        self.kept = self.kept.least(FirstKept(int(way["held"][0]), kept_marker(batches, what, rules)))
        return Cleaned(found.kept, len(data), found.tally), int(batches["last_offset"][-1])


def _read_markers(memory: Bytes, batches: Records) -> None:
    control = np.flatnonzero(batches["attributes"] & CONTROL)
    if not len(control):
        return
    found = batches[control]
    status, at = parse(memory.ctypes.data, found, np.empty(int(found["count"].sum()), RECORD))
    if status != KernelStatus.OK:
        raise BadRecords(KernelStatus(status), int(control[at]))
    batches["marker"][control] = found["marker"]

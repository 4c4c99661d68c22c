"""A pass over segments: what stays of them, a bite at a time.

For each bite of whole batches (`bites.py`):

1. Check headers, and unpack what is compressed (`record_batches.opened`).
2. Read the markers among them, and tell what transactions mean for each batch (`transactions.fates`).
3. Read, check and decide on all records, and write those that stay (`rewriting.py`).

Checksums are made in the third step too, while the processor has the batch near, so what the first two do may
be nonsense until then. Whatever is damaged is refused with the words of `record_batches.decode`, of several
things the first, before anything of the bite is handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.kafka.cleaning.retention import LastRecord, Rules, empty_to_retain, verdicts
from lithify.datasets.kafka.cleaning.rewriting import BadRecords, Rewriter
from lithify.datasets.kafka.format.chunked_decode import bites
from lithify.datasets.kafka.format.kernel.layout import CONTROL, RECORD, KernelStatus, Records
from lithify.datasets.kafka.format.kernel.records import parse
from lithify.datasets.kafka.format.kernel.retaining import Offsets, Tally
from lithify.datasets.kafka.format.record_batches import decode, opened
from lithify.datasets.kafka.format.transactions import AbortedTransaction, Passed, fates
from lithify.kernel.buffers import Bytes

PASS_BYTES = 4 << 20
"""Of a bite. Nothing is made for its records, so it may be larger than one that is decoded."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What stays of a bite."""

    kept: memoryview
    """Its bytes; they stay as they are until the next but one is asked for."""
    size: int
    """Bytes of the bite."""
    tally: Tally
    """How many records go, by `Reason`."""


class Cleaner:
    """A pass over batches that follow each other."""

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
        """`dead` and `pinned` are offsets of records of any part of the log; `producers` are those whose last
        batch keeps its header; `after` is the last offset before the first batch."""
        self._rules, self._dead, self._pinned = rules, dead, pinned
        self._aborted, self._passed, self._producers = aborted, passed, producers or {}
        self._after = after
        self._rewriter = Rewriter()

    def cleaned(
        self, pieces: Iterable[tuple[str, bytes | memoryview]], *, bite_bytes: int = PASS_BYTES
    ) -> Iterator[Cleaned]:
        """What stays of these pieces, which have whole batches.

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
        """What stays of a bite, and its last offset."""
        rules, dead, pinned = self._rules, self._dead, self._pinned
        memory, batches = opened(data, name, after=self._after)
        _read_markers(memory, batches)
        what, self._passed = fates(batches, self._aborted, self._passed)
        verdict = verdicts(batches, what, rules, empty_to_retain(batches, self._producers, rules.bound))
        found = self._rewriter.write(memory, batches, verdict, rules.way(batches, dead, pinned))
        return Cleaned(found.kept, len(data), found.tally), int(batches["last_offset"][-1])


def _read_markers(memory: Bytes, batches: Records) -> None:
    """What control batches mark."""
    control = np.flatnonzero(batches["attributes"] & CONTROL)
    if not len(control):
        return
    found = batches[control]
    status, at = parse(memory.ctypes.data, found, np.empty(int(found["count"].sum()), RECORD))
    if status != KernelStatus.OK:
        raise BadRecords(KernelStatus(status), int(control[at]))
    batches["marker"][control] = found["marker"]

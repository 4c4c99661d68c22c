"""A pass over segments: what stays of them, a bite at a time.

For each bite of whole batches (`bites.py`):

1. Check headers and checksums, and unpack what is compressed (`record_batches.opened`).
2. Read the markers among them, and tell what transactions mean for each batch (`transactions.fates`).
3. Read, check and decide on all records, and write those that stay (`rewriting.py`).

Damage is refused with the words of `record_batches.decode`, before what stays of the bite is handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from lithify.datasets.kafka.bites import BITE_BYTES, Bite, bites
from lithify.datasets.kafka.kernel.layout import CONTROL, RECORD, Records, Status
from lithify.datasets.kafka.kernel.records import parse
from lithify.datasets.kafka.kernel.retaining import Offsets, Tally
from lithify.datasets.kafka.record_batches import decode, opened
from lithify.datasets.kafka.retention import LastRecord, Rules, empty_to_retain, verdicts
from lithify.datasets.kafka.rewriting import BadRecords, Rewriter
from lithify.datasets.kafka.transactions import AbortedTransaction, Passed, fates
from lithify.kernel.buffers import Bytes


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
        self, pieces: Iterable[tuple[str, bytes | memoryview]], *, bite_bytes: int = BITE_BYTES
    ) -> Iterator[Cleaned]:
        """What stays of these pieces, which have whole batches.

        Raises `CorruptObject` and `Unsupported`.
        """
        rules, dead, pinned = self._rules, self._dead, self._pinned
        for bite in bites(pieces, bite_bytes):
            memory, batches = opened(bite.data, bite.name, after=self._after, has_slack=bite.has_slack)
            if not _read_markers(memory, batches):
                self._refuse(bite)
            what, self._passed = fates(batches, self._aborted, self._passed)
            verdict = verdicts(batches, what, rules, empty_to_retain(batches, self._producers, rules.bound))
            way = rules.way(batches, dead, pinned)
            try:
                found = self._rewriter.write(memory, batches, verdict, way)
            except BadRecords:
                self._refuse(bite)
            yield Cleaned(found.kept, len(bite.data), found.tally)
            self._after = int(batches["last_offset"][-1])

    def _refuse(self, bite: Bite) -> NoReturn:
        """Say what is wrong, and where: of several things the first."""
        decode(bite.data, bite.name, after=self._after)
        raise AssertionError(f"{bite.name}: is refused, and decodes")


def _read_markers(memory: Bytes, batches: Records) -> bool:
    """What control batches mark; whether they are sound."""
    control = np.flatnonzero(batches["attributes"] & CONTROL)
    if not len(control):
        return True
    found = batches[control]
    status, _ = parse(memory.ctypes.data, found, np.empty(int(found["count"].sum()), RECORD))
    batches["marker"][control] = found["marker"]
    return status == Status.OK

"""What transactions came to, from the headers of batches alone.

A producer has one transaction open at a time: its transactional data batches up to the next marker with its
id. The marker says whether they count (`COMMIT`) or never did (`ABORT`).

`follow` reads batches in order and tells which transactions aborted, and which are still open: nothing at
or behind the first offset of an open one is decided (the *last stable offset*). Only batches that are
transactional or markers matter, so it takes a moment for any log, and objects can be read one after
another: what it returns is where it goes on.

`fates` walks over the same batches while they are cleaned, with the aborted transactions known:

1. A data batch of an aborted transaction goes, all of it.
2. A marker is *empty* when nothing of its transaction was met since the one before: an abort marker once
   its data batches are gone, a commit marker once they are all superseded and gone. A control batch
   without records is empty too. Only an empty marker may go, and only behind its delete horizon.
3. Control batches of other types always stay.

So a marker never goes in the pass that removes the last of its transaction's data, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lithify.datasets.kafka.format.kernel.layout import (
    ABORT,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    Records,
)
from lithify.datasets.kafka.format.kernel.rewrite import Flags


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that aborted."""

    producer_id: int
    first_offset: int
    """Of its first data batch."""
    last_offset: int
    """Of its marker."""
    stable_offset: int
    """The last stable offset once it was decided."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """What is known after some batches."""

    aborted: tuple[AbortedTransaction, ...] = ()
    """In the order of their markers."""
    open: Mapping[int, int] = field(default_factory=dict)
    """First offset of the open transaction of each producer that has one."""

    def stable_offset(self, end: int) -> int:
        """The first offset that is not decided: `end`, behind the log, if no transaction is open."""
        return min(self.open.values(), default=end)


@dataclass(frozen=True, slots=True)
class Passed:
    """The transactions in whose midst a pass over a log is."""

    committed: frozenset[int] = frozenset()
    """Producers of which a data batch was met that is not aborted."""
    aborted: Mapping[int, bool] = field(default_factory=dict)
    """Producers in an aborted transaction, and whether a data batch of it was met."""
    last_offset: int = -1
    """Of the batches passed."""


@dataclass(frozen=True, slots=True)
class Fates:
    """What transactions mean for each of some batches."""

    aborted: Flags
    """Data that never counted."""
    empty_marker: Flags
    """The marker of a transaction of which nothing is left."""


def follow(batches: Records, before: Transactions | None = None) -> Transactions:
    """Read on over these batches (`BATCH`)."""
    before = before or Transactions()
    aborted, started = list(before.aborted), dict(before.open)
    for batch in _concerned(batches):
        producer_id = int(batch["producer_id"])
        if not batch["attributes"] & CONTROL:
            started.setdefault(producer_id, int(batch["base_offset"]))
        elif batch["marker"] in (ABORT, COMMIT):
            first_offset = started.pop(producer_id, None)
            if batch["marker"] == ABORT and first_offset is not None:
                last_offset = int(batch["last_offset"])
                stable_offset = min(started.values(), default=last_offset + 1)
                aborted.append(AbortedTransaction(producer_id, first_offset, last_offset, stable_offset))
    return Transactions(tuple(aborted), started)


def fates(
    batches: Records, aborted: Iterable[AbortedTransaction], before: Passed | None = None
) -> tuple[Fates, Passed]:
    """What becomes of these batches; `before` is where the pass was at the end of the batches before them."""
    before = before or Passed()
    committed, met = set(before.committed), dict(before.aborted)
    goes, empty = np.zeros(len(batches), np.bool_), np.zeros(len(batches), np.bool_)
    if not len(batches):
        return Fates(goes, empty), before
    first, last = int(batches[0]["base_offset"]), int(batches[-1]["last_offset"])
    waiting = sorted(
        (t for t in aborted if t.last_offset >= first and t.first_offset > before.last_offset),
        key=lambda transaction: transaction.first_offset,
        reverse=True,
    )
    for at in np.flatnonzero(batches["attributes"] & (TRANSACTIONAL | CONTROL)):
        batch = batches[at]
        producer_id = int(batch["producer_id"])
        while waiting and waiting[-1].first_offset <= batch["last_offset"]:
            met.setdefault(waiting.pop().producer_id, False)
        if not batch["attributes"] & CONTROL:
            goes[at] = producer_id in met
            if goes[at]:
                met[producer_id] = True
            else:
                committed.add(producer_id)
        elif batch["count"] == 0:
            empty[at] = True
        elif batch["marker"] == ABORT:
            empty[at] = not met.pop(producer_id, False)
        elif batch["marker"] == COMMIT:
            empty[at] = producer_id not in committed
            committed.discard(producer_id)
    return Fates(goes, empty), Passed(frozenset(committed), met, last)


def _concerned(batches: Records) -> Records:
    return batches[(batches["attributes"] & (TRANSACTIONAL | CONTROL)) != 0]

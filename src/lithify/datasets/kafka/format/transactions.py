"""Outcomes of transactions, from the headers of batches alone.

A producer has at most one open transaction: its transactional data batches up to the next marker with its id,
which commits (`COMMIT`) or aborts (`ABORT`) them.

`follow` reads batches in order and returns the aborted and the open transactions. Nothing at or after the
first offset of an open one is decided (the *last stable offset*). It reads only transactional batches and
markers, so it is fast for any log, and continues from an earlier result.

`fates` decides about the same batches while they are cleaned, with the aborted transactions known:

1. A data batch of an aborted transaction is removed.
2. A marker is *empty* if the pass met no data of its transaction: an abort marker once its data batches are
   removed, a commit marker once they are all superseded and removed. A control batch without records is empty
   too. Only empty markers may be removed, and only after their delete horizon.
3. Control batches of other types are always kept.

So a marker is never removed in the pass that removes the last data of its transaction, as in Kafka.
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
    producer_id: int
    first_offset: int
    """First offset of its first data batch."""
    last_offset: int
    """Last offset of its marker."""
    stable_offset: int
    """The last stable offset once the transaction was decided."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions known after some batches."""

    aborted: tuple[AbortedTransaction, ...] = ()
    """In the order of their markers."""
    open: Mapping[int, int] = field(default_factory=dict)
    """First offset of each producer's open transaction."""

    def stable_offset(self, end: int) -> int:
        """Return the first undecided offset: `end`, the end of the log, if no transaction is open."""
        return min(self.open.values(), default=end)


@dataclass(frozen=True, slots=True)
class Passed:
    """The transactions that a pass over a log is in."""

    committed: frozenset[int] = frozenset()
    """Producers with a data batch that is not aborted and whose marker has not been met."""
    aborted: Mapping[int, bool] = field(default_factory=dict)
    """Producers in an aborted transaction, and whether the pass met one of its data batches."""
    last_offset: int = -1
    """The last offset passed."""


@dataclass(frozen=True, slots=True)
class Fates:
    """The outcome of transactions for each of some batches."""

    aborted: Flags
    """Data of aborted transactions."""
    empty_marker: Flags
    """Markers of transactions without remaining data."""


def follow(batches: Records, before: Transactions | None = None) -> Transactions:
    """Return the transactions after these batches (`BATCH`), which continue `before`."""
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
    """Return the outcome for these batches; `before` is the state of the pass after the previous batches."""
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

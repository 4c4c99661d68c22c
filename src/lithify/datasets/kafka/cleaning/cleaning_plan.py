"""Combines the facts of all segments into values for the tasks of a round. Only reading facts has I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lithify.datasets.kafka.cleaning.kept_indexes import index_key, index_of
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, active
from lithify.datasets.kafka.cleaning.segment_stats import FENCES, SegmentFacts, last_of
from lithify.datasets.kafka.cleaning.tasks import GroupPlan, IndexedSegment
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.format.kernel.layout import ABORT, COMMIT, CONTROL, Records
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.datasets.kafka.format.transactions import Passed, Transactions, fates, follow
from lithify.datasets.kafka.layouts.contract import PartitionFolder, Segment
from lithify.datasets.kafka.planner import LogObject, LogPolicy, Partition, SettledPart, groups, settle
from lithify.datasets.kafka.state import OpenTransaction
from lithify.store.objects import ObjectStore

HANGING_MS = 3_600_000
"""Brokers end transactions after `transaction.max.timeout.ms`, 15 minutes by default."""
SLICE_BYTES = 64 << 20
"""Size of the entries of a slice. The task that compares them needs several times as much memory."""


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    first: int
    """Index of the first segment."""
    count: int
    is_settled: bool


class Indexed:
    """A partition whose segments are indexed."""

    def __init__(
        self, source: ObjectStore, own: ObjectStore, folder: str, partition: PartitionFolder
    ) -> None:
        """`folder` has the indexes. An index that was lost meanwhile is rebuilt.

        Raises `CorruptObject` and `Refused`.
        """
        self.partition = partition
        self._keys = [index_key(folder, part) for part in partition.parts]
        newest = partition.parts[-1]
        indexes = [
            index_of(source, own, part, key, is_newest=part is newest)
            for part, key in zip(partition.parts, self._keys, strict=True)
        ]
        self.facts: list[SegmentFacts] = [found.facts for found in indexes]
        self._passed: list[Passed] = []
        self._spans: list[Records] = []
        self._walk([found.transactional for found in indexes])

    @property
    def segments(self) -> tuple[IndexedSegment, ...]:
        return tuple(
            IndexedSegment(segment, key, tuple(run.entries for run in facts.runs))
            for segment, key, facts in zip(self.partition.parts, self._keys, self.facts, strict=True)
        )

    @property
    def records(self) -> int:
        return sum(facts.records for facts in self.facts)

    @property
    def slices(self) -> int:
        """The number of slices of the hash space: a power of two."""
        needed = -(-self.records * ENTRY.itemsize // SLICE_BYTES)
        return min(FENCES, 1 << max(0, needed - 1).bit_length())

    @property
    def fences(self) -> tuple[int, ...]:
        """The end offset of each segment: the base of the next one; `NO_BOUND` for the last."""
        bases = [part.base_offset for part in self.partition.parts]
        return (*bases[1:], NO_BOUND)

    @property
    def is_first_aborted(self) -> bool:
        """Whether the transaction of the partition's first batch aborted."""
        return bool((self.spans[:, 0] == self.partition.parts[0].base_offset).any())

    @property
    def spans(self) -> Records:
        """First and last offsets of the batches whose transaction aborted."""
        return np.concatenate([np.empty((0, 2), np.int64), *self._spans])

    def settled(self, policy: LogPolicy, now_ms: int) -> SettledPart:
        stable_offset = min(self.transactions.stable_offset(self.end_offset), self.partition.bound)
        known = Partition("", self._objects(), 0, stable_offset, self.partition.committed)
        return settle(known, policy, now_ms)

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return max(facts.end_offset for facts in self.facts)

    @property
    def torn_bytes(self) -> int:
        """The size of the newest segment's torn end."""
        return self.partition.parts[-1].size_bytes - self.facts[-1].size_bytes

    @property
    def open_transaction(self) -> OpenTransaction | None:
        """The first open transaction, if it is so old that it hangs."""
        if not self.transactions.open:
            return None
        first_offset, producer_id = min(
            (first, producer) for producer, first in self.transactions.open.items()
        )
        last = last_of(self.facts)[producer_id]
        idle_ms = max(facts.max_timestamp_ms for facts in self.facts) - last.timestamp_ms
        if idle_ms < HANGING_MS:
            return None
        return OpenTransaction(producer_id, last.epoch, first_offset, min(idle_ms, NO_BOUND))

    def whole_segments(self, group: SegmentGroup) -> tuple[Segment, ...]:
        """Return the segments of a group, without a torn end."""
        parts = self.partition.parts[group.first : group.first + group.count]
        facts = self.facts[group.first : group.first + group.count]
        return tuple(replace(part, size_bytes=one.size_bytes) for part, one in zip(parts, facts, strict=True))

    @property
    def committed_end(self) -> int:
        """The offset after the last committed batch."""
        return min(self.end_offset, self.partition.committed.end)

    def groups(self, settled: int, target_bytes: int) -> list[SegmentGroup]:
        """Group the first `settled` segments up to the target size; each later one is alone."""
        found, first = [], 0
        for group in groups(self._objects()[:settled], target_bytes):
            found.append(SegmentGroup(first, len(group), is_settled=True))
            first += len(group)
        return found + [
            SegmentGroup(number, 1, is_settled=False) for number in range(settled, len(self.facts))
        ]

    def group_plan(self, group: SegmentGroup, now_ms: int, expiration_ms: int) -> GroupPlan:
        """Return the facts about the rest of the log that rewriting a group needs."""
        start = self.facts[group.first].base_offset
        end = self.fences[group.first + group.count - 1]
        known = self.transactions if group.is_settled else self._all_transactions
        aborted = tuple(one for one in known.aborted if one.last_offset >= start and one.first_offset < end)
        committed = (facts for facts in self.facts if facts.end_offset <= self.partition.committed.end)
        producers = {
            who: last
            for who, last in active(last_of(committed), now_ms, expiration_ms).items()
            if last.data_offset is None or start <= last.data_offset < end
        }
        return GroupPlan(aborted, self._passed[group.first], producers)

    def _objects(self) -> list[LogObject]:
        return [
            LogObject(
                facts.base_offset, max(end, facts.base_offset + 1), facts.size_bytes, facts.max_timestamp_ms
            )
            for facts, end in zip(self.facts, self._ends(), strict=True)
        ]

    def _ends(self) -> list[int]:
        return [*(facts.base_offset for facts in self.facts[1:]), self.facts[-1].end_offset]

    def _walk(self, found: Sequence[Records]) -> None:
        """Find the outcomes of transactions, then the batches concerned. An uncommitted marker decides
        nothing, but the index files of a segment that is copied unchanged include it."""
        self._all_transactions = _followed(found)
        end = self.partition.committed.end
        found = [headers[headers["last_offset"] < end] for headers in found]
        self.transactions = _followed(found)
        passed = Passed()
        self.first_in_transaction: int | None = None
        """The first offset of a batch with records that belong to a transaction."""
        self.first_unresolved = min(self.transactions.open.values(), default=None)
        """The first offset of a transaction whose marker is missing, or of a record that was aborted."""
        self.markers_end = _markers_end(found)
        """The offset after the last marker; 0 if there is none."""
        self.first_marker = _deciding(found, self.partition.parts[0].base_offset)
        """The last offset of the marker that decides the partition's first batch; `None` if there is none."""
        for headers in found:
            in_transaction = headers[(headers["attributes"] & CONTROL == 0) & (headers["count"] > 0)]
            if self.first_in_transaction is None and len(in_transaction):
                self.first_in_transaction = int(in_transaction["base_offset"][0])
            self._passed.append(passed)
            what, passed = fates(headers, self.transactions.aborted, passed)
            goes = headers[what.aborted & (headers["attributes"] & CONTROL == 0)]
            rows = goes["base_offset"][goes["count"] > 0]
            if len(rows) and (self.first_unresolved is None or rows[0] < self.first_unresolved):
                self.first_unresolved = int(rows[0])
            self._spans.append(np.stack([goes["base_offset"], goes["last_offset"]], axis=1))


def _followed(found: Sequence[Records]) -> Transactions:
    transactions = Transactions()
    for headers in found:
        transactions = follow(headers, transactions)
    return transactions


def _markers_end(found: Sequence[Records]) -> int:
    ends = (headers["last_offset"][_decides(headers)].max(initial=-1) for headers in found)
    return int(max(ends, default=-1)) + 1


def _decides(headers: Records) -> Flags:
    is_control = headers["attributes"] & CONTROL != 0
    return np.asarray(np.isin(headers["marker"], (ABORT, COMMIT)) & is_control, np.bool_)


def _deciding(found: Sequence[Records], base_offset: int) -> int | None:
    headers = np.concatenate(found)
    is_control = headers["attributes"] & CONTROL != 0
    mine = headers[(headers["base_offset"] == base_offset) & ~is_control]
    if not len(mine):
        return None
    markers = headers[_decides(headers) & (headers["producer_id"] == mine["producer_id"][0])]
    return int(markers["last_offset"][0]) if len(markers) else None

"""A topic in a broker's bucket that is copied to a new topic (`copies.py`), as a dataset.

A round has the same steps as one in place, but the last step publishes into the new topic; the source is
never changed. The differences:

1. Producers may keep writing. So a round covers the objects present at its planning (`ObjectRange`), except
   young ones, since earlier offsets may still arrive. A service begins a partition's next round after a
   minute (`PAUSE_MS`) or later; a command copies each partition once.
2. A partition is compacted when it is first copied. Later rounds only index and publish: they append new
   objects unchanged. Nothing is copied from the first open transaction on, which the index step finds: the
   broker would show it to read-committed readers.
3. When all partitions are copied, the new topic is announced to the broker before the state says so. A crash
   in between repeats the announcement. Partitions that the source gains later are treated the same.
4. A partition without objects has no round. Its committed offsets are carried over, and it is announced, when
   another partition is published. If no other is due, an unchanged partition is published again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.ids import Ids, Ulid, ulid_ms
from lithify.config.durations import to_milliseconds
from lithify.datasets.kafka.buckets.carried_offsets import CarriedOver, carry_offsets, listed_offsets
from lithify.datasets.kafka.buckets.copies import OffsetLocation, marks_of, rest_of, why_moved, why_not
from lithify.datasets.kafka.buckets.copying import (
    COPY_REPORTS,
    CopyReport,
    CopyTask,
    announce,
    claim_name,
    copy_partition,
    find_topic,
)
from lithify.datasets.kafka.buckets.cut_topic import CutSnapshot, CutTopic, IsPast
from lithify.datasets.kafka.buckets.merging import MANIFEST_SUFFIX
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.layouts.contract import PartitionFolder
from lithify.datasets.kafka.layouts.objects import ObjectRange
from lithify.datasets.kafka.layouts.segments import number_of
from lithify.datasets.kafka.model import LogCompaction, LogLedger, LogSnapshot, LogSpec
from lithify.datasets.kafka.planner import LogPolicy
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import Copied, LogState, PartitionRound, Step
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Proposal
from lithify.protocol.work import RangeWork
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

PAUSE_MS = 60_000
"""Minimum time between the beginnings of a partition's rounds in a service. Each round reads the partition's
newest chunk again, so it should cover many new objects."""
_PRIORITY = 0.5


@dataclass(frozen=True, slots=True)
class CopySnapshot(CutSnapshot):
    """All partitions as listed, and how far each is copied."""

    topic: str = ""
    """Name of the source topic."""
    name: str = ""
    """Name of the new topic."""
    offsets: Mapping[int, list[OffsetLocation]] = field(default_factory=dict)
    """Offsets committed by groups, by partition number."""
    count: int = 0
    """The source's partitions, by the broker's metadata."""

    def round(self, partition: str) -> PartitionRound | None:
        found, folder = self.state.rounds.get(partition), self.partitions.get(partition)
        return found if found is not None and folder is not None and _is_of(found, folder) else None

    def part(self, partition: str, cut: ObjectRange) -> PartitionFolder | None:
        folder = self.partitions.get(partition)
        return None if folder is None else cut.within(folder)

    def copied(self, partition: str) -> Copied | None:
        """Return the copied part of a partition; `None` if its first copy, with compaction, is due."""
        found = self.state.copied.get(partition)
        if found is None and number_of(partition) < self.state.announced and partition in self.partitions:
            return Copied(self.partitions[partition].topic_id, 0, 0, "")  # empty when announced
        return found

    def left(self, partition: str) -> int:
        """Count the objects of a partition that the copy does not have."""
        return len(rest_of(self.partitions[partition].segments, self.copied(partition)))

    def has_moved_offsets(self, partition: str) -> bool:
        """Return whether groups have committed in a partition since its offsets were carried over."""
        found = self.state.copied.get(partition)
        if found is None and partition in self.partitions:
            return False  # carried over when the partition is copied
        return ("" if found is None else found.marks) != marks_of(self.offsets.get(number_of(partition), ()))

    @property
    def moved_offsets(self) -> list[str]:
        """Partitions in which groups have committed since."""
        return [name for name in (*self.partitions, *self.without_objects) if self.has_moved_offsets(name)]

    @property
    def without_objects(self) -> list[str]:
        """Partitions that have committed offsets but no objects."""
        names = (f"{self.topic}-{number}" for number in sorted(self.offsets) if number < self.count)
        return [name for name in names if name not in self.partitions]

    def to_be_carried(self, count: int) -> list[str]:
        """Return the partitions without objects, of the first `count`, whose offsets must be carried over."""
        names = [name for name in self.without_objects if number_of(name) < count]
        return [name for name in names if self.has_moved_offsets(name)]

    @property
    def partitions_left(self) -> int:
        """How many partitions are not announced to the broker yet."""
        return max(0, self.count - self.state.announced)

    def missing(self, state: LogState) -> list[str]:
        """Return the partitions that must be copied before the next announcement."""
        return [
            name
            for name, folder in self.partitions.items()
            if state.announced <= number_of(name) < self.count
            and name not in state.copied
            and self.cuts[name].within(folder) is not None
        ]


class TopicCopy(CutTopic):
    """A topic that is copied to a new topic."""

    def __init__(
        self,
        url: str,
        source: tuple[ObjectStore, str],
        output: tuple[ObjectStore, str],
        clock: Clock,
        ids: Ids,
        settings: KafkaSettings,
        source_options: Mapping[str, str] | None = None,
        output_options: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the arguments of `LogDataset`; `settings.copy_to` is the new topic's name."""
        assert settings.copy_to is not None
        if settings.group is not None:
            raise Refused(
                f"{url}: belongs to a group of copies, and {settings.copy_to} would be another copy in it; "
                "unset kafka.group, and let the new topic join the group"
            )
        super().__init__(url, source, output, clock, ids, settings, source_options, output_options)
        self._name = settings.copy_to
        self._target = join(self._root.rpartition("/")[0], self._name)
        self._quiet_ms = to_milliseconds(settings.quiet_period)

    def _say_source(self) -> None:
        if not self.state().is_copy_visible:  # also if an older version, without claims, has begun
            claim_name(self._source, self._root, self._target)
        super()._say_source()

    def _claimed(self, state: LogState) -> LogState:
        return replace(super()._claimed(state), copy_id=str(self._ids.uuid()))

    # Reading

    def _read_snapshot(self) -> CopySnapshot:
        partitions, state = self.partitions(), self.state()
        # Read after the objects, so that it includes their partitions.
        found = find_topic(self._source, self._root, self._target)
        topic = self._root.rpartition("/")[2]
        reasons = [why_not(topic, self._name, found, state)]
        reasons += [
            why_moved(name, partitions.get(name), found.source_id, copied)
            for name, copied in state.copied.items()
        ]
        for reason in filter(None, reasons):
            raise Refused(f"{self.url}: {reason}")
        # Ages are by the store's clock. Reading it needs a write, so a plan before the first write does not.
        now_ms = self.dated_ms() if state.source else self._now_ms()
        cuts = {
            name: self._cut(folder, state.copied.get(name), now_ms) for name, folder in partitions.items()
        }
        offsets = listed_offsets(self._source, self._root, self._name)
        return CopySnapshot(partitions, state, None, cuts, topic, self._name, offsets, found.of_source)

    def _cut(self, folder: PartitionFolder, copied: Copied | None, now_ms: int) -> ObjectRange:
        """Return the cut of a round that begins now."""
        young_ms = now_ms - self._quiet_ms if self._quiet_ms else NO_BOUND
        old = [one.modified_ms for one in folder.segments if one.modified_ms <= young_ms]
        until_ms = max(old, default=0)
        return ObjectRange(until_ms if copied is None else max(until_ms, copied.until_ms), folder.bound + 1)

    # Planning

    def propose(
        self,
        snapshot: LogSnapshot,
        ledger: LogLedger,
        held: Held = NOTHING_HELD,
        full: bool = False,
    ) -> Plan[LogSpec]:
        """Propose the next step of each unfinished round, and the first step where there is more to copy."""
        before_ms = self._now_ms() - PAUSE_MS
        return self.propose_after(snapshot, ledger, held, lambda id: ulid_ms(id) < before_ms, full=full)

    def propose_after(
        self, snapshot: LogSnapshot, ledger: LogLedger, held: Held, is_past: IsPast, *, full: bool
    ) -> Plan[LogSpec]:
        assert isinstance(snapshot, CopySnapshot)
        busy = {compaction.spec.partition for compaction in ledger.active()}
        proposals: list[Proposal[LogSpec]] = []
        notes = []
        for name in snapshot.partitions:
            if name in held:
                notes.append(f"{name}: {held[name]}")
            elif name in busy:
                notes.append(f"{name}: is being copied")
            elif isinstance(found := self._next(snapshot, name, is_past), str):
                notes.append(f"{name}: {found}")
            else:
                proposals.append(found)
        if not proposals and not busy:
            proposals += self._of_others(snapshot, held, is_past)
        if self.refusal is not None:
            notes.append(f"{self.url}: {self.refusal}")
        return Plan(tuple(sorted(proposals, key=lambda proposal: -proposal.priority)), tuple(notes))

    def _next(self, snapshot: CopySnapshot, name: str, is_past: IsPast) -> Proposal[LogSpec] | str:
        """Return the next step for a partition, or why there is none."""
        folder, copied, known = snapshot.partitions[name], snapshot.copied(name), snapshot.round(name)
        if known is not None and known.next_step is not None:
            step = f"step {len(known.done) + 1} of {len(known.steps)} ({known.next_step})"
            return self._proposal(snapshot, name, folder, known, f"{name}: {step}")
        meant = snapshot.cuts[name].within(folder)
        if meant is None:
            return "all its objects are younger than quiet_period; run again"
        if known is None or (known.fingerprint != meant.fingerprint and is_past(known.done[0])):
            spec = LogSpec(name, meant.fingerprint, (), self.terms(folder), snapshot.cuts[name])
            size_bytes, count = meant.size_bytes, len(rest_of(meant.segments, copied))
            how = "compacted" if copied is None else "unchanged"
            reason = f"{name}: copy {count:,} objects to {self._name}, {how}"
            return Proposal(spec, _PRIORITY, max(1, size_bytes), reason)
        if snapshot.has_moved_offsets(name) and is_past(known.done[-1]):
            return self._again(snapshot, name, known, "consumer groups have committed other offsets since")
        left = snapshot.left(name)
        rest = (
            f"; {left:,} of its objects are young, in an open transaction, or newer than the copy"
            if left
            else ""
        )
        return f"is copied to {self._name} up to offset {known.end:,}{rest}"

    def _of_others(self, snapshot: CopySnapshot, held: Held, is_past: IsPast) -> list[Proposal[LogSpec]]:
        """Propose to publish a partition again, on behalf of partitions without objects."""
        state = snapshot.state
        if snapshot.partitions_left and not snapshot.missing(state):
            reason = f"the broker knows {state.announced} of {snapshot.count} partitions of {self._name}"
        elif snapshot.to_be_carried(state.announced):
            reason = "consumer groups have committed other offsets in partitions without objects"
        else:
            return []
        whole = (
            self._again(snapshot, name, found, reason)
            for name in snapshot.partitions
            if name not in held
            and (found := snapshot.round(name)) is not None
            and found.is_whole
            and is_past(found.done[-1])
        )
        return list(islice(whole, 1))

    def _again(
        self, snapshot: CopySnapshot, name: str, known: PartitionRound, reason: str
    ) -> Proposal[LogSpec]:
        begun = replace(known, done=known.done[:-1])
        return self._proposal(snapshot, name, snapshot.partitions[name], begun, f"{name}: {reason}")

    def _proposal(
        self, snapshot: CopySnapshot, name: str, folder: PartitionFolder, known: PartitionRound, reason: str
    ) -> Proposal[LogSpec]:
        spec = LogSpec(name, known.fingerprint, known.done, self.terms(folder), _cut_of(known))
        return Proposal(spec, _PRIORITY, self.cost_bytes(spec, snapshot), reason)

    def validate(self, compaction: LogCompaction, snapshot: LogSnapshot, ledger: LogLedger) -> str | None:
        assert isinstance(snapshot, CopySnapshot)
        spec = compaction.spec
        if spec.step is Step.INDEX:
            folder = snapshot.as_of(spec).partitions.get(spec.partition)
            is_there = folder is not None and folder.fingerprint == spec.fingerprint
            known = snapshot.round(spec.partition)
            if is_there and (known is None or known.is_whole):
                return None
        elif (known := snapshot.round(spec.partition)) is not None and known.fingerprint == spec.fingerprint:
            if known.done == spec.done or (known.is_whole and known.done[:-1] == spec.done):
                return None
            return f"{spec.partition}: another compaction has done the step ({spec.step}) meanwhile"
        return f"{spec.partition}: the copied part has changed since it was planned"

    # Executing

    def _to_publish(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        assert isinstance(snapshot, CopySnapshot)
        found, spec = self._round(snapshot, compaction.spec), compaction.spec
        manifests: tuple[str, ...] = ()
        if found.settled:
            names = sorted(meta.key for meta in self.store.list(self._staged(found.done[2])))
            manifests = tuple(key for key in names if key.endswith(MANIFEST_SUFFIX))
        parts = folder.parts
        merged_below = parts[found.settled].base_offset if found.settled < len(parts) else found.end
        assert spec.cut is not None
        task = CopyTask(
            self._work(compaction, 0, self._report_key(compaction.id)),
            self._root,
            self._target,
            found.topic_id,
            snapshot.state.copy_id,
            number_of(spec.partition),
            spec.cut,
            found.fingerprint,
            found.end,
            merged_below,
            manifests,
            snapshot.copied(spec.partition),
            self._carried_key(spec.partition),
        )
        return [RangeWork(0, copy_partition, task, max(1, folder.size_bytes))]

    # Publishing

    def _changed(self, compaction: LogCompaction) -> str:
        if compaction.spec.step is not Step.PUBLISH:
            return ""
        return self._copy_report(compaction.id).refused

    def _copy_report(self, compaction_id: Ulid) -> CopyReport:
        key = self._report_key(compaction_id)
        return COPY_REPORTS.decode(self.store.get(key), key)

    def _after(self, compaction: LogCompaction, snapshot: LogSnapshot) -> PartitionRound:
        assert isinstance(snapshot, CopySnapshot)
        spec = compaction.spec
        meant = snapshot.as_of(spec)
        if spec.step is Step.PUBLISH:
            report = self._copy_report(compaction.id)
            found = self._round(meant, spec)
            done = (*spec.done, compaction.id)
            return replace(found, done=done, new_segments=report.objects, new_bytes=report.size_bytes)
        if spec.step is not Step.INDEX:
            return super()._after(compaction, meant)
        return self._begun(compaction, meant.partitions[spec.partition], snapshot.copied(spec.partition))

    def _begun(
        self, compaction: LogCompaction, folder: PartitionFolder, copied: Copied | None
    ) -> PartitionRound:
        """Return the round of a partition after its index step."""
        spec = compaction.spec
        indexed = self._indexed(spec, folder)
        stable = indexed.transactions.stable_offset(indexed.end_offset)
        below = [one.base_offset for one in folder.segments if one.base_offset < stable]
        settled, bound = 0, 0
        if copied is None and below:
            # The last copied object is not merged (`copying.py`, step 3).
            indexed.partition = replace(folder, bound=below[-1])
            policy = LogPolicy(min_compaction_lag_ms=spec.terms.min_compaction_lag_ms)
            judged = indexed.settled(policy, ulid_ms(compaction.id))
            settled, bound = len(judged.objects), judged.bound
        assert spec.cut is not None
        end = min(stable, indexed.end_offset) if below else 0
        return PartitionRound(
            spec.fingerprint,
            (compaction.id,) * (1 if settled else 3),  # nothing to match or rewrite
            bound,
            settled,
            len(folder.segments),
            folder.size_bytes,
            indexed.records,
            topic_id=folder.topic_id,
            activity=folder.activity,
            until_ms=spec.cut.until_ms,
            below=spec.cut.below,
            end=end if copied is None else max(end, copied.end),
        )

    def _with_standing(self, state: LogState, compaction: LogCompaction, snapshot: LogSnapshot) -> LogState:
        """Return the state with the copied part. The new topic or its new partitions are announced before the
        state has the last partition."""
        assert isinstance(snapshot, CopySnapshot)
        spec = compaction.spec
        if spec.step is not Step.PUBLISH:
            return state
        report = self._copy_report(compaction.id)
        found = state.rounds[spec.partition]
        said = report.fingerprint, report.marks, report.groups, report.gone_on
        copied = Copied(found.topic_id, found.until_ms, found.end, *said)
        state = replace(state, copied={**state.copied, spec.partition: copied})
        is_due = state.announced < snapshot.count and not snapshot.missing(state)
        others = {
            name: Copied(found.topic_id, 0, 0, "", *self._carried(snapshot, name))
            for name in snapshot.to_be_carried(snapshot.count if is_due else state.announced)
        }
        state = replace(state, copied={**state.copied, **others})
        if is_due:
            place = self._source, self._root, self._target
            announce(*place, found.topic_id, state.copy_id, snapshot.count)
            state = replace(state, announced=snapshot.count)
        return state

    def _carried(self, snapshot: CopySnapshot, name: str) -> CarriedOver:
        offsets = snapshot.offsets[number_of(name)]
        return carry_offsets(self._source, self.store, offsets, self._carried_key(name), lambda: None)

    def _carried_key(self, name: str) -> str:
        return join(self.own_folder, "carried", f"{name}.json")


def _cut_of(found: PartitionRound) -> ObjectRange:
    return ObjectRange(found.until_ms, found.below)


def _is_of(found: PartitionRound, folder: PartitionFolder) -> bool:
    """Return whether a round's objects are still the same in this folder."""
    meant = _cut_of(found).within(folder) if found.topic_id == folder.topic_id else None
    return meant is not None and meant.fingerprint == found.fingerprint

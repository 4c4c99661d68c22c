"""A topic in a broker's bucket, compacted in place while the broker runs. Experimental.

A round has the same steps as with the broker stopped. The differences:

1. Producers keep writing. So a round covers the objects present at its planning, except the newest
   `LIVE_TAIL` (`layouts.objects.live_cut`). The last covered object is not rewritten either.
2. The first object is never rewritten, since the broker finds the beginning of the log by its write time. So
   the tombstones of its keys stay, and so does the marker that decides it. If its transaction was aborted,
   all tombstones stay: the broker shows its records even to read-committed readers.
3. Publication does not wait until the broker is idle. The deletes of each put follow it directly. At the end
   the newest object is written again, until the broker finds the end of the log by objects of producers.
4. A publication begun with the broker stopped is finished so. One begun live can be finished either way.

The effects on readers are logged before the first write (`WARNINGS`). Broker builds before `LEAST_BUILD` skip
records of merged objects. The bucket does not show the build, so the operator has to name it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lithify.base.errors import Refused
from lithify.datasets.kafka.buckets.cut_topic import CutSnapshot, CutTopic, IsPast
from lithify.datasets.kafka.buckets.merging import ObjectMergeTask
from lithify.datasets.kafka.buckets.publishing import PublishTask
from lithify.datasets.kafka.cleaning.cleaning_params import Terms
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.layouts.contract import PartitionFolder
from lithify.datasets.kafka.layouts.objects import LIVE_TAIL, ObjectRange, live_cut, live_part
from lithify.datasets.kafka.model import LogCompaction, LogLedger, LogSnapshot, LogSpec
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import LogState, PartitionRound, Step
from lithify.protocol.lease import Permit
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan
from lithify.protocol.work import RangeWork
from lithify.watermarks.groups import Marks

LEAST_BUILD = "0.7.0-pre.1"
WARNINGS = (
    "until the run has ended, the broker reports too low an end of the log: a consumer that starts at the "
    "latest offset reads some records again, and one that reads up to the end stops early",
    "a consumer may receive records again, including older ones after newer ones, and may be disconnected",
    "the first object is kept unchanged, and so are the tombstones of its keys",
)
"""The limits of live compaction, as plans and logs show them."""
_BUILD = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-pre\.(\d+))?")
_log = logging.getLogger("lithify")


def build_order(version: str) -> tuple[int, ...]:
    """Return a sort key of a broker's version. Raise `Refused` if it is not a version."""
    found = _BUILD.fullmatch(version.strip())
    if found is None:
        raise Refused(f"{version!r} is not a version of the broker, such as {LEAST_BUILD}")
    *numbers, before = found.groups()
    return (*map(int, numbers), *((1, 0) if before is None else (0, int(before))))


def check_live(url: str, settings: KafkaSettings) -> None:
    """Raise `Refused` if the settings do not allow live compaction."""
    if settings.group is not None:
        raise Refused(
            f"{url}: belongs to a group of copies, and live compaction cannot report to a group; compact it "
            "while the broker is stopped"
        )
    if settings.broker_build is None:
        raise Refused(
            f"{url}: live compaction needs --broker-build, the build of its broker; it must be "
            f"{LEAST_BUILD} or later, because older ones skip records of merged objects"
        )
    if build_order(settings.broker_build) < build_order(LEAST_BUILD):
        raise Refused(
            f"{url}: a broker of build {settings.broker_build} skips records of merged objects; upgrade it "
            f"to {LEAST_BUILD} or later, or stop it and run without --live"
        )


@dataclass(frozen=True, slots=True)
class LiveSnapshot(CutSnapshot):
    """All partitions, each restricted to its round's objects, and their progress."""

    whole: Mapping[str, PartitionFolder] = field(default_factory=dict)
    """Partitions as listed; those with too few objects have no cut."""

    def round(self, partition: str) -> PartitionRound | None:
        found = super(LiveSnapshot, self).round(partition)
        return None if found is None or not found.below else found

    def part(self, partition: str, cut: ObjectRange) -> PartitionFolder | None:
        folder = self.whole.get(partition)
        return None if folder is None else live_part(folder, cut)


class LiveTopic(CutTopic):
    """A topic that is compacted while its broker runs."""

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        """Log `WARNINGS`, then take the epoch."""
        for warning in WARNINGS:
            _log.warning("%s: live compaction is experimental: %s", self.url, warning)
        return super().take_epoch(permit)

    # Reading

    def _read_snapshot(self) -> LiveSnapshot:
        found = super()._read_snapshot()
        if any(not folder.topic for folder in found.partitions.values()):
            raise Refused(
                f"{self.url}: is not a topic in a broker's bucket; only such a topic can be compacted live"
            )
        partitions, cuts = dict(found.partitions), {}
        for name, folder in found.partitions.items():
            if (cut := _cut(folder, found.state, name)) is None:
                continue
            meant = live_part(folder, cut)
            if meant is not None:
                partitions[name], cuts[name] = meant, cut
        return LiveSnapshot(partitions, found.state, None, cuts, found.partitions, refusal=found.refusal)

    # Planning

    def terms(self, folder: PartitionFolder | None = None, marks: Marks | None = None) -> Terms:
        return replace(super().terms(folder, marks), quiet_ms=0)

    def propose_after(
        self, snapshot: LogSnapshot, ledger: LogLedger, held: Held, is_past: IsPast, *, full: bool
    ) -> Plan[LogSpec]:
        rounds = snapshot.state.rounds
        over = [name for name, found in rounds.items() if found.is_whole and not is_past(found.done[-1])]
        reason = "was compacted in this run; newer records wait for the next one"
        return self.propose(snapshot, ledger, {**dict.fromkeys(over, reason), **held}, full)

    def propose(
        self,
        snapshot: LogSnapshot,
        ledger: LogLedger,
        held: Held = NOTHING_HELD,
        full: bool = False,
    ) -> Plan[LogSpec]:
        assert isinstance(snapshot, LiveSnapshot)
        reasons = {name: _why_not(snapshot, name) for name in snapshot.partitions}
        held = {**{name: reason for name, reason in reasons.items() if reason}, **held}
        plan = super().propose(snapshot, ledger, held, full)
        proposals = [
            replace(one, spec=replace(one.spec, cut=snapshot.cuts[one.spec.partition]))
            for one in plan.proposals
        ]
        notes = (
            (*plan.notes, *(f"live compaction: {warning}" for warning in WARNINGS))
            if proposals
            else plan.notes
        )
        return replace(plan, proposals=tuple(proposals), notes=notes)

    def validate(self, compaction: LogCompaction, snapshot: LogSnapshot, ledger: LogLedger) -> str | None:
        assert isinstance(snapshot, LiveSnapshot)
        return super().validate(compaction, snapshot.as_of(compaction.spec), ledger)

    # Executing

    def _to_merge(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        indexed = self._indexed(compaction.spec, folder)
        changes: dict[str, Any] = {"kept_marker": indexed.first_marker}
        works = []
        for work in super()._to_merge(compaction, snapshot, folder):
            task = work.argument
            assert isinstance(task, ObjectMergeTask), task
            if indexed.is_first_aborted:
                rules = replace(task.rewrite.rules, tombstones_below=0)
                changes["rewrite"] = replace(task.rewrite, rules=rules)
            works.append(replace(work, argument=replace(task, stays=work.range == 0, **changes)))
        return works

    def _to_publish(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        assert compaction.spec.cut is not None
        (work,) = super()._to_publish(compaction, snapshot, folder)
        assert isinstance(work.argument, PublishTask), work.argument
        return [replace(work, argument=replace(work.argument, live_from=compaction.spec.cut.below))]

    # Publishing

    def _after(self, compaction: LogCompaction, snapshot: LogSnapshot) -> PartitionRound:
        assert isinstance(snapshot, LiveSnapshot)
        assert compaction.spec.cut is not None
        found = super()._after(compaction, snapshot.as_of(compaction.spec))
        return replace(found, below=compaction.spec.cut.below)


def _cut(folder: PartitionFolder, state: LogState, name: str) -> ObjectRange | None:
    """Return the cut of a partition's unfinished round, or of the next; `None` with too few objects."""
    found = state.rounds.get(name)
    if found is not None and found.below and not found.is_whole and found.topic_id == folder.topic_id:
        known = ObjectRange(NO_BOUND, found.below)
        meant = live_part(folder, known)
        if found.next_step is Step.PUBLISH or (meant is not None and meant.fingerprint == found.fingerprint):
            return known
    return live_cut(folder)


def _why_not(snapshot: LiveSnapshot, name: str) -> str:
    """Return why a partition cannot be compacted while its broker runs; empty if it can."""
    found = snapshot.state.rounds.get(name)
    of_this_topic = found is not None and found.topic_id == snapshot.partitions[name].topic_id
    if found is not None and of_this_topic and found.next_step is Step.PUBLISH and not found.below:
        return (
            "a compaction that was begun with the broker stopped must be finished with the broker stopped; "
            "run without --live"
        )
    if name not in snapshot.cuts:
        return f"has too few objects: the first one, and the last {LIVE_TAIL + 1}, are not changed"
    return ""

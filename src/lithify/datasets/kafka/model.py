"""Specs and snapshots of logs, and their form in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from lithify.base.ids import Ulid, parse_ulid
from lithify.base.jsonvalues import text, whole_number
from lithify.coordination.ledger_documents import LedgerFormat, Values
from lithify.datasets.kafka.cleaning.cleaning_params import Terms
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.cleaning.tasks import Output
from lithify.datasets.kafka.layouts.contract import PartitionFolder
from lithify.datasets.kafka.layouts.objects import ObjectRange
from lithify.datasets.kafka.state import STEPS, LogState, PartitionRound, Step
from lithify.protocol.model import Compaction, Ledger
from lithify.watermarks.groups import GroupState

_MAX_RANGES = 1 << 31


@dataclass(frozen=True, slots=True)
class LogSpec:
    partition: str
    fingerprint: str
    """The fingerprint of the folder when the step was planned."""
    done: tuple[Ulid, ...]
    """The published steps before this one."""
    terms: Terms
    cut: ObjectRange | None = None
    """The objects that a copy or live compaction of a topic covers."""

    @property
    def step(self) -> Step:
        return STEPS[len(self.done)]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """All partitions as listed, and Lithify's progress with each."""

    partitions: Mapping[str, PartitionFolder]
    state: LogState
    group: GroupState | None = None
    """`None` if the log belongs to none."""
    refusal: str | None = field(default=None, kw_only=True)
    """Why the log can be planned and shown, but not compacted; `None` if it can."""

    def done(self, partition: str) -> tuple[Ulid, ...]:
        """Return the published steps for the partition as it is now."""
        found = self.round(partition)
        return () if found is None else found.done

    def round(self, partition: str) -> PartitionRound | None:
        """Return the round of the partition as it is now."""
        found, folder = self.state.rounds.get(partition), self.partitions.get(partition)
        if found is None or folder is None or found.topic_id != folder.topic_id:
            return None
        if found.fingerprint != folder.fingerprint and found.next_step is not Step.PUBLISH:
            return None
        return found

    def with_part(self, partition: str, meant: PartitionFolder | None) -> Self:
        """Return the snapshot with `meant` as the partition, or without the partition."""
        partitions = {name: one for name, one in self.partitions.items() if name != partition or meant}
        if meant is not None:
            partitions[partition] = meant
        return replace(self, partitions=partitions)


def _read_spec(found: Mapping[str, object]) -> LogSpec:
    done = found["done"]
    if not isinstance(done, list) or len(done) >= len(STEPS):
        raise ValueError(f"{done!r} are not steps")
    terms = found["terms"]
    if not isinstance(terms, dict):
        raise ValueError(f"{terms!r} are not terms")
    steps = tuple(map(parse_ulid, done))
    cut = ObjectRange.of(found.get("cut"))
    return LogSpec(text(found["partition"]), text(found["fingerprint"]), steps, Terms.of(terms), cut)


def _spec_fields(spec: LogSpec) -> dict[str, object]:
    return {
        "partition": spec.partition,
        "fingerprint": spec.fingerprint,
        "done": spec.done,
        "terms": spec.terms.fields(),
        **({} if spec.cut is None else {"cut": [spec.cut.until_ms, spec.cut.below]}),
    }


LEDGERS: LedgerFormat[LogSpec, int, Output] = LedgerFormat(
    Values(_spec_fields, _read_spec),
    Values(lambda number: number, lambda found: whole_number(found, most=_MAX_RANGES)),
    Values(
        lambda output: [output.key, output.size_bytes],
        lambda found: Output(text(found[0]), whole_number(found[1], most=NO_BOUND)),
    ),
)
LogCompaction = Compaction[LogSpec, int, Output]
LogLedger = Ledger[LogSpec, int, Output]

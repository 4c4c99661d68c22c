"""What the service asks of a dataset kind, and what a kind gives back.

Coordinator, worker and one-shot run are written once, against `Dataset`. Snapshots, specs, ranges
and outputs are the kind's own values; the service passes them on without looking inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lithify.compaction.journal import Journal
from lithify.compaction.protocol import AnyCompaction, AnyLedger
from lithify.ids import Ulid


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something worth compacting, and why."""

    spec: Any
    priority: float
    """0 (may wait) to 1 (urgent)."""
    cost_bytes: int
    """Bytes that would be read."""
    reason: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be compacted now, most urgent first, and what should not, and why."""

    proposals: tuple[Proposal, ...] = ()
    notes: tuple[str, ...] = ()
    """Why the rest is left alone, one sentence for each unit."""


@dataclass(frozen=True, slots=True)
class RangeWork:
    """One range of a compaction as the engine runs it."""

    range: Any
    function: Callable[[Any], Any]
    """An importable function; runs inside a Spark task."""
    argument: Any
    """Small and picklable."""
    cost_bytes: int
    """Estimate of the bytes this range reads."""


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What the service needs to know of a finished range."""

    outputs: tuple[Any, ...]
    """All outputs of the range, in order, those of earlier attempts included."""
    bytes_read: int
    bytes_written: int
    rows: Mapping[str, int]
    """Rows in, out and dropped by reason."""
    cpu_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """A compaction made ready to run: all its ranges, in key order."""

    works: tuple[RangeWork, ...]
    retention_min_seq: int | None = None


class Dataset(Protocol):
    """One dataset. Methods that read give the latest committed state; `snapshot` and `ledger`
    values are immutable."""

    @property
    def url(self) -> str: ...

    def ledger(self) -> AnyLedger | None:
        """The latest ledger; `None` when no coordinator ever ran."""
        ...

    def snapshot(self) -> Any:
        """The latest committed state. Whoever needs both reads the ledger first."""
        ...

    def update_ledger(self, change: Callable[[AnyLedger], AnyLedger]) -> AnyLedger:
        """Apply `change` to the latest ledger and publish the result as the next version, again
        on each conflict. Publishes nothing when `change` returns its argument."""
        ...

    def take_epoch(self) -> int:
        """Fence every older coordinator; returns the new epoch. Creates the ledger if absent."""
        ...

    @property
    def journal(self) -> Journal:
        """What the service keeps beside the ledger (`lithify.datasets.journal.ObjectJournal`)."""
        ...

    def unit(self, spec: Any) -> str:
        """The name of the unit a spec compacts (pure)."""
        ...

    def newest_ms(self, snapshot: Any) -> int:
        """The newest time in the snapshot, by the clock of who writes the dataset; wall-clock
        milliseconds, 0 when there is none. Ids of new compactions are not newer than that, so that a
        coordinator whose clock runs ahead does no harm (pure)."""
        ...

    def sources(self, spec: Any) -> frozenset[str]:
        """Names of what a spec reads, as fine as is useful (pure). What shares one with a compaction
        that has just failed for good is left alone for a while."""
        ...

    def encode_spec(self, spec: Any) -> str:
        """A spec as text, for the journal (pure)."""
        ...

    def decode_spec(self, text: str) -> Any:
        """The spec of such a text; `CorruptObject` when it is none (pure)."""
        ...

    def output_name(self, output: Any) -> str:
        """A name that no other output of any compaction has (pure)."""
        ...

    def propose(self, snapshot: Any, ledger: AnyLedger) -> Plan:
        """What should be compacted (pure)."""
        ...

    def validate(self, compaction: AnyCompaction, snapshot: Any, ledger: AnyLedger) -> str | None:
        """Why the compaction must not be scheduled or committed as things are; `None` if it may (pure)."""
        ...

    def needs_worker(self, compaction: AnyCompaction, snapshot: Any) -> bool:
        """Whether rows must be read; otherwise the coordinator commits it by itself."""
        ...

    def prepare(self, compaction: AnyCompaction, snapshot: Any) -> Job:
        """Cut the compaction into ranges, or take up the ranges its progress records. `compaction` is
        as it was claimed: `compaction.worker` is the claim its tasks report their movements for."""
        ...

    def outcome(self, result: Any) -> RangeOutcome:
        """Read what a range's function returned."""
        ...

    def commit(self, compactions: Sequence[AnyCompaction], epoch: int) -> Mapping[Ulid, str | None]:
        """Publish the outputs atomically. For each compaction: `None` when committed, else why it
        was refused. `Fenced` when `epoch` is no longer the newest."""
        ...

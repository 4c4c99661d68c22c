"""What the service asks of a dataset kind, and what a kind gives back.

Coordinator, worker and one-shot run are written once, against `Dataset`. Snapshots, specs, ranges
and outputs are the kind's own values; the service passes them on without looking inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lithify.compaction.attempts import Journal
from lithify.compaction.history import History
from lithify.compaction.lease import Lease, LeaseFile, Permit, Taking
from lithify.compaction.presence import CoordinatorStatus
from lithify.compaction.transitions import AnyCompaction, AnyLedger
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
class Total:
    """So many units and files with so many bytes and rows."""

    units: int
    files: int
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be compacted now, most urgent first, and what should not, and why."""

    proposals: tuple[Proposal, ...] = ()
    notes: tuple[str, ...] = ()
    """Why the rest is left alone, one sentence for each unit."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    """By what is to become of it, how much the dataset has; every file counts once. Empty where the
    planner does not look at everything."""
    memory: Any = field(default=None, compare=False, repr=False)
    """What the kind found out meanwhile and wants to keep, for `Dataset.remember`."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """How close a writer that waits for compaction is to a stall: the backlog of one LSM tree."""

    unit: str
    l0_ssts: int
    l0_bytes: int
    """What waits to be compacted for the first time."""
    runs: int
    size_bytes: int
    l0_max_ssts: int
    flushes_per_s: float | None
    """Recent rate; unknown without two flushes to tell it from."""
    stall_ms: int | None
    """Until the writer stalls if nothing is compacted meanwhile: 0 when it does, `None` when it does
    not write or that is unknown."""


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

    # Leadership; `lithify.coordination.leadership` puts these together.

    @property
    def lease(self) -> LeaseFile:
        """The lease of Lithify's coordinator."""
        ...

    def epoch(self) -> int:
        """The newest coordinator's epoch, 0 when none ever ran. `Refused` and `CorruptObject` where no
        coordinator may start."""
        ...

    def why_held(self, epoch: int, lease: Lease | None) -> str | None:
        """Why somebody who is not Lithify may hold `epoch`, and what to do; `None` when nobody can."""
        ...

    def take_epoch(self, permit: Permit, confirm: Callable[[int], None]) -> int:
        """Fence every older coordinator; returns the new epoch. Creates the ledger if absent. `permit` is
        asked before each try, and refused is what `epoch` refuses before it is asked. A try that landed
        though its answer was lost is found out and not made again. `confirm` is told of the epoch once it
        is taken, before anything else is done."""
        ...

    def has_taken(self, taking: Taking) -> bool:
        """Whether the version that was announced is there with its mark: its author took the epoch. False
        too when it has been collected since."""
        ...

    @property
    def journal(self) -> Journal:
        """What the service keeps beside the ledger (`lithify.coordination.sidecar.ObjectJournal`)."""
        ...

    def history(self) -> History:
        """What is still known of the ledger's past."""
        ...

    def coordinator(self, now_ms: int) -> CoordinatorStatus:
        """Which coordinator the dataset has, and whether it is alive."""
        ...

    def pressure(self, snapshot: Any, now_ms: int) -> tuple[Pressure, ...]:
        """The backlog of each unit whose writer stalls when too much piles up; nothing where none
        does (pure)."""
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
        """Names of what a spec reads, as fine as is useful, each its own in the whole dataset (pure).
        What shares one with a compaction that has just failed for good is left alone for a while."""
        ...

    def encode_spec(self, spec: Any) -> str:
        """A spec as text, for the journal (pure)."""
        ...

    def decode_spec(self, text: str) -> Any:
        """The spec of such a text; `CorruptObject` when it is none (pure)."""
        ...

    def cost_bytes(self, spec: Any, snapshot: Any) -> int:
        """Bytes of what a spec reads that is still in the snapshot (pure)."""
        ...

    def output_name(self, output: Any) -> str:
        """A name that no other output of any compaction has (pure)."""
        ...

    def output_bytes(self, output: Any) -> int:
        """The size of an output (pure)."""
        ...

    def propose(self, snapshot: Any, ledger: AnyLedger) -> Plan:
        """What should be compacted (pure)."""
        ...

    def remember(self, plan: Plan) -> None:
        """A coordinator has acted on the plan: keep what it found out, if anything. A memory only: nothing
        is lost when this is never called."""
        ...

    def validate(self, compaction: AnyCompaction, snapshot: Any, ledger: AnyLedger) -> str | None:
        """Why the compaction must not be scheduled (when it is Submitted), carried out (Scheduled) or
        committed (Compacted) as things are; `None` if it may (pure)."""
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

    def commit(
        self,
        compactions: Sequence[AnyCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None],
    ) -> Mapping[Ulid, str | None]:
        """Publish the outputs atomically. For each compaction: `None` when committed, else why it was
        refused. `tell_dropped` is told of those committed without a part that did not hold any more: what,
        and why. `Fenced` when `epoch` is no longer the newest."""
        ...

    def was_committed(self, compaction: AnyCompaction) -> bool:
        """Whether the dataset, as far as its past is known, has or had the compaction's outputs."""
        ...

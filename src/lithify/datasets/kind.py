"""What the service asks of a dataset kind, and what a kind gives back.

Coordinator, worker and one-shot run are written once, against `Dataset`. Snapshots, specs, ranges
and outputs are the kind's own values; the service passes them on without looking inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lithify.compaction.attempts import Journal
from lithify.compaction.backlog import Pressure
from lithify.compaction.history import History
from lithify.compaction.presence import CoordinatorStatus
from lithify.compaction.proposal import NOTHING_HELD, Held, Plan
from lithify.compaction.transitions import AnyCompaction, AnyLedger
from lithify.compaction.work import Job, RangeOutcome
from lithify.coordination.leadership import Led
from lithify.ids import Ulid


class Dataset(Led, Protocol):
    """One dataset. Methods that read give the latest committed state; `snapshot` and `ledger`
    values are immutable."""

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

    def priority(self, spec: Any, snapshot: Any) -> float:
        """How urgent a compaction is as things are now, 0 (may wait) to 1 (urgent), whenever it was
        planned; 0 when the snapshot does not show what it reads any more (pure)."""
        ...

    def output_name(self, output: Any) -> str:
        """A name that no other output of any compaction has (pure)."""
        ...

    def output_bytes(self, output: Any) -> int:
        """The size of an output (pure)."""
        ...

    def propose(self, snapshot: Any, ledger: AnyLedger, held: Held = NOTHING_HELD) -> Plan:
        """What should be compacted (pure). What is held takes no place of anything else: the plan is the one
        for the rest, and where it would be another without `held`, a note has that sentence."""
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

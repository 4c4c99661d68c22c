"""How a database and its compactions stand: what runs, what waits and why, and how close the writer is to
a stall. Reads only.

1. Ledger first, then the manifest, the coordinator's lease, and the journal.
2. For each active compaction: since when it is where it is, from the ledger's history; how far its ranges
   are, from the ledger and from what running tasks report.
3. What the planner would add, so that nobody wonders why nothing is submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lithify.compaction.contract import Plan
from lithify.compaction.journal import Attempt, Failure
from lithify.compaction.model import Ledger, State
from lithify.compaction.status import CompactionStatus, Known, RangeState, Stay, describe
from lithify.datasets.slatedb.dataset import SlateDataset, source_views
from lithify.datasets.slatedb.history import Arrival, LedgerHistory
from lithify.datasets.slatedb.ledger import SlateCompaction, SlateLedger
from lithify.datasets.slatedb.model import Manifest, Spec, TieredSpec
from lithify.datasets.slatedb.presence import CoordinatorStatus, coordinator_status
from lithify.datasets.slatedb.pressure import Pressure, pressure
from lithify.ids import Ulid


@dataclass(frozen=True, slots=True)
class Status:
    """How a database stands."""

    url: str
    at_ms: int
    coordinator: CoordinatorStatus
    compactions: tuple[CompactionStatus, ...]
    """Those that are not over, oldest first."""
    plan: Plan
    """What the planner would add now."""
    pressure: tuple[Pressure, ...]
    failures: tuple[Failure, ...]
    """Compactions that were given up, oldest first."""

    @property
    def stall_ms(self) -> int | None:
        """Until the first tree's writer stalls."""
        return min((p.stall_ms for p in self.pressure if p.stall_ms is not None), default=None)


def status(dataset: SlateDataset, now_ms: int, heartbeat_timeout_ms: int, l0_max_ssts: int) -> Status:
    """How `dataset` stands. `Refused` when there is no database."""
    ledger = dataset.ledger()
    manifest = dataset.snapshot()
    coordinator = coordinator_status(dataset, manifest.compactor_epoch, now_ms)
    active = ledger.active() if ledger is not None else ()
    history = LedgerHistory(dataset.store, dataset.paths) if active else None
    attempts = dataset.journal.attempts() if active else {}
    compactions = tuple(
        describe(
            compaction,
            dataset.unit(compaction.spec),
            _known(dataset, compaction, manifest, history, attempts),
            now_ms,
            heartbeat_timeout_ms,
            coordinator.is_alive,
        )
        for compaction in active
    )
    return Status(
        url=dataset.url,
        at_ms=now_ms,
        coordinator=coordinator,
        compactions=compactions,
        plan=dataset.propose(manifest, ledger if ledger is not None else _empty()),
        pressure=pressure(manifest, now_ms, l0_max_ssts),
        failures=dataset.journal.failures(),
    )


def _empty() -> SlateLedger:
    return Ledger()


def _known(
    dataset: SlateDataset,
    compaction: SlateCompaction,
    manifest: Manifest,
    history: LedgerHistory | None,
    attempts: Mapping[Ulid, tuple[Attempt, ...]],
) -> Known:
    is_started = compaction.state is State.RUNNING or compaction.progress is not None
    finished = dataset.journal.finished(compaction.id) if is_started else frozenset()
    movements = dataset.journal.movements(compaction.id) if compaction.state is State.RUNNING else {}
    owner = compaction.worker.id if compaction.worker is not None else None
    arrival = history.arrival(compaction) if history is not None else None
    is_recorded = compaction.state is State.RUNNING and compaction.progress is not None
    first = history.first_progress(compaction) if history is not None and is_recorded else None
    return Known(
        cost_bytes=cost_bytes(compaction.spec, manifest),
        ranges=_ranges(compaction, finished),
        stay=_stay(arrival, finished),
        first_progress=_stay(first, finished),
        movements={name: m for name, m in movements.items() if m.worker == owner},
        attempts=attempts.get(compaction.id, ()),
    )


def _stay(arrival: Arrival | None, finished: frozenset[str]) -> Stay | None:
    return Stay(arrival.at_ms, _ranges(arrival.compaction, finished)) if arrival is not None else None


def cost_bytes(spec: Spec, manifest: Manifest) -> int:
    """Bytes of the inputs of `spec` that are still in the manifest."""
    tree = manifest.tree(spec.segment)
    if tree is None or not isinstance(spec, TieredSpec):
        return 0
    groups = source_views(tree, spec) or ()
    return sum(view.sst.size_bytes for group in groups for view in group)


def _ranges(compaction: SlateCompaction, finished: frozenset[str]) -> tuple[RangeState, ...]:
    if compaction.progress is None:
        return ()
    return tuple(
        RangeState(bool(r.outputs) and r.outputs[-1].id in finished, sum(sst.size_bytes for sst in r.outputs))
        for r in compaction.progress.ranges
    )

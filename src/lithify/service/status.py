"""The status of a dataset and its compactions: running work, waiting work with reasons, and how close a
writer is to a stall. Reads only.

1. Reads the ledger first, then the snapshot, the coordinator's lease, and the journal.
2. Finds for each active compaction how long it has been in its state, from the ledger's history, and the
   progress of its ranges, from the ledger and the reports of running tasks.
3. Plans what would be added, to explain why nothing is submitted.
4. Finds how much history the dataset keeps, and which readers and holds need it, as far as a few small
   requests show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lithify.base.clock import Clock
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort, DatasetState
from lithify.protocol.attempts import Attempt
from lithify.protocol.history import Arrival, History
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.presence import CoordinatorStatus
from lithify.protocol.status import CompactionDetails, CompactionStatus, RangeState, Status, Stay, describe
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service.failures import given_up


def status(
    dataset: DatasetPort, clock: Clock, heartbeat_timeout_ms: int, state: DatasetState | None = None
) -> Status:
    """Return the status of `dataset`: of `state`, or of what the dataset reads. Raise `Refused` when there is
    none."""
    if state is None:
        state = dataset
    ledger: AnyLedger = state.ledger() or Ledger()
    snapshot = state.snapshot()
    coordinator = state.coordinator()
    has_times = bool(ledger.active()) or coordinator.lease_ends_ms is not None
    store_ms = state.store_ms() if has_times else None
    compactions = _describe(dataset, state, ledger, snapshot, coordinator, store_ms, heartbeat_timeout_ms)
    now_ms = clock.now_ms() if store_ms is None else store_ms
    return Status(
        url=dataset.url,
        at_ms=now_ms,
        snapshot=snapshot,
        coordinator=coordinator,
        compactions=compactions,
        plan=dataset.propose(snapshot, ledger),
        backlog=dataset.backlog(snapshot, now_ms),
        failures=given_up(state.journal.failures(), ledger),
        retained=state.retained(snapshot, ledger),
        store_ms=store_ms,
    )


def under_way(dataset: DatasetPort, heartbeat_timeout_ms: int) -> tuple[CompactionStatus, ...]:
    """Return the status of active compactions, oldest first: the part of `status` that needs no planning."""
    ledger: AnyLedger = dataset.ledger() or Ledger()
    snapshot = dataset.snapshot()
    coordinator = dataset.coordinator()
    store_ms = dataset.store_ms() if ledger.active() else None
    return _describe(dataset, dataset, ledger, snapshot, coordinator, store_ms, heartbeat_timeout_ms)


def _describe(
    dataset: DatasetPort,
    state: DatasetState,
    ledger: AnyLedger,
    snapshot: Any,
    coordinator: CoordinatorStatus,
    store_ms: int | None,
    heartbeat_timeout_ms: int,
) -> tuple[CompactionStatus, ...]:
    active = ledger.active()
    history = state.history() if active else None
    attempts = state.journal.attempts() if active else {}
    # One listing shows which compactions have entries, however many there are.
    noted = state.journal.compactions() if active else frozenset()
    return tuple(
        describe(
            compaction,
            dataset.identify(compaction.spec).unit,
            _known(dataset, state, compaction, snapshot, history, attempts, compaction.id in noted),
            store_ms,
            heartbeat_timeout_ms,
            coordinator.is_alive,
        )
        for compaction in active
    )


def _known(
    dataset: DatasetPort,
    state: DatasetState,
    compaction: AnyCompaction,
    snapshot: Any,
    history: History | None,
    attempts: Mapping[Ulid, tuple[Attempt, ...]],
    is_noted: bool,
) -> CompactionDetails:
    is_started = is_noted and (compaction.state is CompactionState.RUNNING or compaction.progress is not None)
    finished = state.journal.finished(compaction.id) if is_started else frozenset()
    is_running = is_noted and compaction.state is CompactionState.RUNNING
    movements = state.journal.movements(compaction.id) if is_running else {}
    owner = compaction.worker.id if compaction.worker is not None else None
    arrival = history.arrival(compaction) if history is not None else None
    is_recorded = compaction.state is CompactionState.RUNNING and compaction.progress is not None
    first = history.first_progress(compaction) if history is not None and is_recorded else None
    is_owned = compaction.state is CompactionState.RUNNING and owner is not None
    heard = history.heard(compaction) if history is not None and is_owned else None
    return CompactionDetails(
        cost_bytes=dataset.cost_bytes(compaction.spec, snapshot),
        ranges=_ranges(dataset, compaction, finished),
        stay=_stay(dataset, arrival, finished),
        first_progress=_stay(dataset, first, finished),
        heard_ms=None if heard is None else heard.at_ms,
        movements={name: m for name, m in movements.items() if m.worker == owner},
        attempts=attempts.get(compaction.id, ()),
    )


def _stay(dataset: DatasetPort, arrival: Arrival | None, finished: frozenset[str]) -> Stay | None:
    return (
        Stay(arrival.at_ms, _ranges(dataset, arrival.compaction, finished)) if arrival is not None else None
    )


def _ranges(
    dataset: DatasetPort, compaction: AnyCompaction, finished: frozenset[str]
) -> tuple[RangeState, ...]:
    if compaction.progress is None:
        return ()
    return tuple(
        RangeState(
            bool(r.outputs) and dataset.output_name(r.outputs[-1]) in finished,
            sum(map(dataset.output_bytes, r.outputs)),
        )
        for r in compaction.progress.ranges
    )

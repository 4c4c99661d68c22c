"""Compact a dataset once, in this process: a coordinator and a worker run until nothing is left.

1. Read the ledger, the snapshot and the lease concurrently. If nothing is active or proposed, the run ends
   here, without writing anything or starting an engine. If the dataset cannot be compacted at all, raise
   `Refused` here, unless it still has active compactions from before it changed; these are processed first.
2. Acquire the leadership; raise an error if another coordinator may be alive, unless `take_over` is set.
   Meanwhile, read what preparing the first proposal needs.
3. Reclaim, in the first tick, the compactions that a dead run still owns.
4. Alternate coordinator and worker ticks until nothing is active or proposed. Wait for compactions owned by
   another process's worker until they finish, or the worker falls silent and they are reclaimed.
5. If ranges of a compaction fail for good, retry it up to `max_attempts` times (not at all if its input is
   corrupt or refused), then mark it Failed and back off from its sources for the rest of the run, so that the
   planner proposes other work. Do the same for a unit whose proposals are repeatedly refused at once, because
   of something odd in the ledger.
6. An unreachable master is noticed before step 2. When an engine goes down, its compactions are released
   without counting an attempt, and run again once the engine is back. An engine that has failed for good ends
   the run.
7. On any other error or an interrupt, cancel running tasks and release their compactions, so that the next
   run resumes them.
8. Resign while the last version of the ledger is being proved valid. If it proves invalid, write it again,
   unless another coordinator has taken over meanwhile; otherwise nothing more is written. The snapshot is
   correct in either case.

A crash at any point loses nothing: outputs count only once committed, and the next run resumes from the
progress that the ledger records.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.defects import contained
from lithify.base.errors import CorruptObject, LithifyError, Refused
from lithify.base.events import Observer
from lithify.base.ids import Ids, Ulid
from lithify.coordination.leadership import Leadership
from lithify.datasets.kind import DatasetPort
from lithify.engine.ports import Engine
from lithify.protocol.model import Ledger
from lithify.protocol.proposal import NOTHING_HELD, Planner
from lithify.protocol.run_summary import FailedCompaction, RunSummary
from lithify.protocol.transitions import AnyCompaction
from lithify.service.coordinator import Coordinator
from lithify.service.failures import without
from lithify.service.managed_dataset import CoordinationPolicy, ManagedDataset
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.service.worker import Worker

__all__ = ["Planner", "run"]

WAIT_S = 1.0
MAX_REFUSALS = 3


def run(
    dataset: DatasetPort,
    engine: Engine,
    clock: Clock,
    ids: Ids,
    leadership: Leadership,
    *,
    planner: Planner | None = None,
    take_over: bool = False,
    options: WorkerOptions | None = None,
    coordinator_options: CoordinatorOptions | None = None,
    observer: Observer = events.ignore,
) -> RunSummary:
    """Compact `dataset` until nothing is left to do; see the module's steps.

    Raise `Refused` when the dataset cannot be compacted, `CoordinatorAlive` (before anything is written
    except a question to the other coordinator), `Fenced` when another coordinator takes over meanwhile, and
    `StoreError` when the store is unreachable."""
    plan_now = planner if planner is not None else dataset.propose
    (ledger, snapshot), _ = both(dataset.glance, leadership.look_ahead)
    plan = plan_now(snapshot, ledger if ledger is not None else Ledger(), NOTHING_HELD)
    if not plan.proposals and not (ledger is not None and ledger.active()):
        if plan.refusal:
            raise Refused(plan.refusal)
        return RunSummary(started=False, plan=plan, before=snapshot, after=snapshot)

    engine.check()
    for proposal in plan.proposals[:1]:
        # Preparing the compaction raises any error again.
        with suppress(LithifyError), contained(f"predicting a compaction of {dataset.url}"):
            dataset.prefetch(proposal.spec, snapshot)
    # The run ends only when everything is committed, so a time limit gains nothing.
    coordinator_options = replace(coordinator_options or CoordinatorOptions(), max_commit_wait_ms=None)
    shunned = _FailedInputs(dataset)
    # There are no other workers to leave compactions to.
    alone = replace(options or WorkerOptions(), spare_claim_delay_ms=0)
    worker = Worker(dataset, engine, clock, leadership.holder, options=alone, observer=observer)
    coordinator = Coordinator(
        dataset,
        clock,
        ids,
        plan=lambda snapshot, latest: without(
            plan_now(snapshot, latest, shunned.held), shunned.held, dataset
        ),
        options=coordinator_options,
        companion=worker,
        observer=observer,
    )
    policy = CoordinationPolicy(
        WAIT_S, WAIT_S, clock.sleep_s, take_over=take_over, retries=False, until_idle=True
    )
    managed = ManagedDataset(coordinator, leadership, policy, worker=worker, is_known=True)
    with managed:
        managed.lead()
        summary = _compact(dataset, managed, worker, shunned)
    coordinator.settle()
    if summary.plan.refusal:
        raise Refused(summary.plan.refusal)  # active compactions have ended by now
    return replace(summary, before=snapshot)


def _compact(
    dataset: DatasetPort, managed: ManagedDataset, worker: Worker, shunned: _FailedInputs
) -> RunSummary:
    coordinator = managed.coordinator
    committed: list[Ulid] = []
    dropped: list[FailedCompaction] = []
    refused: list[FailedCompaction] = []
    failures: list[FailedCompaction] = []
    attempts: Counter[Ulid] = Counter()
    refusals: Counter[str] = Counter()  # by unit
    while True:
        tick = managed.round()
        assert tick is not None, "its policy raises errors"
        committed.extend(tick.committed)
        dropped.extend(FailedCompaction(compaction_id, reason) for compaction_id, reason in tick.dropped)
        for compaction, reason in tick.refused:
            refused.append(FailedCompaction(compaction.id, reason))
            unit = dataset.identify(compaction.spec).unit
            refusals[unit] += any(proposal.spec == compaction.spec for proposal in tick.plan.proposals)
            if refusals[unit] >= MAX_REFUSALS:
                refusals[unit] = 0
                shunned.add(compaction)
                failures.append(FailedCompaction(compaction.id, f"refused {MAX_REFUSALS} times: {reason}"))
        for compaction, reason in tick.failed:
            shunned.add(compaction)
            failures.append(FailedCompaction(compaction.id, reason))
        for compaction_id, error in worker.take_failures():
            attempts[compaction_id] += 1
            if attempts[compaction_id] >= coordinator.options.max_attempts or _is_final(error):
                shunned.add(tick.ledger.get(compaction_id))
                coordinator.fail(compaction_id, str(error))
                failures.append(FailedCompaction(compaction_id, str(error)))
        if tick.is_idle and not worker.is_busy:
            ended = tuple(dropped), tuple(refused), tuple(failures)
            return RunSummary(True, tick.plan, tuple(committed), *ended, after=tick.seen.snapshot)
        managed.rest()


def _is_final(error: Exception) -> bool:
    """Return whether a retry cannot help."""
    return isinstance(error, CorruptObject | Refused)


class _FailedInputs:
    """Sources of compactions that failed in this run; not planned again until the next run."""

    def __init__(self, dataset: DatasetPort) -> None:
        self._dataset = dataset
        self.held: dict[str, str] = {}

    def add(self, compaction: AnyCompaction | None) -> None:
        if compaction is not None:
            task = self._dataset.identify(compaction.spec)
            reason = f"{task.unit} is not planned again in this run: compaction {compaction.id} failed"
            self.held |= dict.fromkeys(task.inputs, reason)

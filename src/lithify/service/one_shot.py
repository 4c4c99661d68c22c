"""Compact a dataset once, in this process: a coordinator and a worker, until nothing is left.

1. Read the ledger and the snapshot, and the lease at the same time. With nothing active and nothing to
   propose the run ends here: nothing is written and no engine is started. A dataset that cannot be compacted
   at all is refused here, unless something is active of it from before it was changed: that is seen to first.
2. Acquire the leadership, which refuses when another coordinator may be alive, unless told to take over. What
   preparing the first proposal takes is read meanwhile.
3. Take back what a dead run still held, in the first tick.
4. Turn coordinator and worker ticks until nothing is active and nothing is proposed. Work that
   another process's worker holds is waited for, until it finishes or falls silent and is reclaimed.
5. A compaction whose ranges fail for good is tried again as often as the options say (not at all when
   its input is corrupt or refused), then marked Failed, and what it reads is left alone for the rest of the
   run: the planner proposes something else. The same goes for a unit whose proposals are refused as soon as
   they are made, because of something odd in the ledger.
6. A master that does not answer is noticed before step 2. What runs on an engine that goes down is given
   back without counting as tried, and runs again once the engine is back; one that has failed for good ends
   the run.
7. On any other error or an interrupt, running tasks are cancelled and their compactions given back,
   so the next run goes on where this one stopped.
8. Resign while the last version of the ledger is proved to count. Nothing is written after that, unless it
   does not: then it is written anew, if nobody has taken over meanwhile. The snapshot says it in any case.

A crash at any point loses nothing: outputs count only once committed, and what is recorded in the
ledger is taken up by the next run.
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

    Raises `Refused` when the dataset cannot be compacted, `CoordinatorAlive` before anything but a question
    is written, `Fenced` when another coordinator takes over meanwhile, and `StoreError` when the store cannot
    be reached.
    """
    plan_now = planner if planner is not None else dataset.propose
    (ledger, snapshot), _ = both(dataset.glance, leadership.look_ahead)
    plan = plan_now(snapshot, ledger if ledger is not None else Ledger(), NOTHING_HELD)
    if not plan.proposals and not (ledger is not None and ledger.active()):
        if plan.refusal:
            raise Refused(plan.refusal)
        return RunSummary(started=False, plan=plan, before=snapshot, after=snapshot)

    engine.check()
    for proposal in plan.proposals[:1]:
        # Whatever goes wrong is the compaction's, when it is prepared.
        with suppress(LithifyError), contained(f"foreseeing a compaction of {dataset.url}"):
            dataset.foresee(proposal.spec, snapshot)
    # It ends when all is committed, so nothing is gained by a time in between.
    coordinator_options = replace(coordinator_options or CoordinatorOptions(), max_commit_wait_ms=None)
    shunned = _Shunned(dataset)
    # Nobody else is there to leave work to.
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
    with leadership.acquire(take_over=take_over) as term:
        try:
            coordinator.start(term)
            summary = _turn(dataset, coordinator, worker, clock, leadership, shunned)
        except BaseException as error:
            _release(worker, error)
            raise
    coordinator.settle()
    if summary.plan.refusal:
        raise Refused(summary.plan.refusal)  # what was under way has ended, in whatever way
    return replace(summary, before=snapshot)


def _release(worker: Worker, cause: BaseException) -> None:
    """Give back what is unfinished. What cannot be is taken back by the next run."""
    try:
        with contained("giving back what is unfinished"):
            worker.release()
    except LithifyError as error:
        cause.add_note(f"and what is unfinished could not be given back: {error}")


def _turn(
    dataset: DatasetPort,
    coordinator: Coordinator,
    worker: Worker,
    clock: Clock,
    leadership: Leadership,
    shunned: _Shunned,
) -> RunSummary:
    committed: list[Ulid] = []
    dropped: list[FailedCompaction] = []
    refused: list[FailedCompaction] = []
    failures: list[FailedCompaction] = []
    attempts: Counter[Ulid] = Counter()
    refusals: Counter[str] = Counter()  # by unit
    is_known = True  # by the start of the coordinator
    while True:
        tick = coordinator.tick(is_known=is_known)
        committed.extend(tick.committed)
        dropped.extend(FailedCompaction(compaction_id, reason) for compaction_id, reason in tick.dropped)
        for compaction, reason in tick.refused:
            refused.append(FailedCompaction(compaction.id, reason))
            unit = dataset.unit(compaction.spec)
            refusals[unit] += any(proposal.spec == compaction.spec for proposal in tick.plan.proposals)
            if refusals[unit] >= MAX_REFUSALS:
                refusals[unit] = 0
                shunned.add(compaction)
                failures.append(FailedCompaction(compaction.id, f"refused {MAX_REFUSALS} times: {reason}"))
        for compaction, reason in tick.failed:
            shunned.add(compaction)
            failures.append(FailedCompaction(compaction.id, reason))
        changed = is_known = worker.tick(tick.seen)
        worker.room.check_engine()
        for compaction_id, error in worker.take_failures():
            attempts[compaction_id] += 1
            if attempts[compaction_id] >= coordinator.options.max_attempts or _is_final(error):
                shunned.add(tick.ledger.get(compaction_id))
                coordinator.fail(compaction_id, str(error))
                failures.append(FailedCompaction(compaction_id, str(error)))
        leadership.renew()
        if worker.is_busy:
            worker.wait(WAIT_S)
            # What has ended is published next, and that shows whether anything is new.
            is_known = all(future.done() for future in worker.pending)
        elif tick.is_idle:
            ended = tuple(dropped), tuple(refused), tuple(failures)
            return RunSummary(True, tick.plan, tuple(committed), *ended, after=tick.seen.snapshot)
        elif not (changed or tick.committed or tick.refused):
            clock.sleep_s(WAIT_S)


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    return isinstance(error, CorruptObject | Refused)


class _Shunned:
    """Sources of what failed in this run; they are left alone until the next."""

    def __init__(self, dataset: DatasetPort) -> None:
        self._dataset = dataset
        self.held: dict[str, str] = {}

    def add(self, compaction: AnyCompaction | None) -> None:
        if compaction is not None:
            reason = f"{self._dataset.unit(compaction.spec)} is left alone: compaction {compaction.id} failed"
            self.held |= dict.fromkeys(self._dataset.sources(compaction.spec), reason)

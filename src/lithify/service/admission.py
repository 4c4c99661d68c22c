"""Admission of one dataset's planned compactions: the coordinator's queue (`lithify.planning.admission`),
kept in step with plan and ledger.

Each `look`:

1. Removes queued work that is no longer planned. Work that runs according to the queue but not according to
   the ledger has ended. After a conflict (`conflicted`), backs off for a while, unless something has joined
   the scope since: that must not wait for a writer that keeps changing the rest.
2. Counts as running what the ledger has and the queue does not know, because an earlier process submitted it.
   Compacted work takes no capacity any more, but work that depends on it still waits for its commit.
3. Offers all planned work. If it exceeds the queue, the least urgent is shed: the dataset may defer it.
4. Starts what the dataset's capacity allows.

`look` changes nothing: it returns the admission to use once its decisions have been carried out. If the
process dies, the next `look` rebuilds the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lithify.base.clock import Clock, monotonic_ms
from lithify.datasets.kind import DatasetPort, DatasetState
from lithify.planning.admission import Budget, Capacity, DropReason, PlannedWork, WorkKey
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.proposal import Plan, Planner, Proposal
from lithify.protocol.transitions import AnyLedger


@dataclass(frozen=True, slots=True)
class Choice:
    """The decisions of one `look`."""

    admission: Admission
    """The admission to continue with."""
    plan: Plan
    """The plan with only those proposals that start now, most urgent first."""
    waiting: int
    """Number of planned compactions that do not start now."""
    shed: tuple[Any, ...]
    """Specs of those that did not fit into the queue."""
    waiting_bytes: int = 0
    """Total input bytes of those that do not start now."""

    @property
    def is_queue_empty(self) -> bool:
        """Return whether nothing is queued."""
        return self.admission.is_empty


def starting(
    dataset: DatasetPort, clock: Clock, planner: Planner, state: DatasetState | None = None
) -> tuple[Any, AnyLedger, Choice]:
    """Return the snapshot, the ledger, and what a coordinator with this planner would decide now: given
    `state`, or what `dataset` reads. Changes nothing."""
    found, snapshot = (dataset if state is None else state).glance()
    ledger = found or Ledger()
    return snapshot, ledger, Admission(dataset, clock).look(planner(snapshot, ledger), ledger, snapshot)


class Admission:
    """The queue of one dataset."""

    def __init__(
        self,
        dataset: DatasetPort,
        clock: Clock,
        budget: Budget | None = None,
        conflicts: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._budget = budget if budget is not None else Budget(Capacity())
        self._conflicts = dict(conflicts)
        """The scope of each conflicted compaction, by name."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is queued."""
        return not self._budget.queued

    def conflicted(self, spec: Any) -> None:
        """Note that a compaction failed because another writer changed its inputs."""
        task = self._dataset.identify(spec)
        self._budget.failed(self._key(task.key), monotonic_ms(self._clock))
        self._conflicts[task.key] = task.conflict_scope

    def look(self, plan: Plan, ledger: AnyLedger, snapshot: Any) -> Choice:
        """Decide which of the planned compactions start now."""
        proposals = {self._dataset.identify(p.spec).key: p for p in plan.proposals}
        budget = self._in_step(proposals, ledger, snapshot)
        conflicts = {name: scope for name, scope in self._conflicts.items() if name in proposals}
        for name in list(conflicts):
            if not conflicts[name].issuperset(self._dataset.identify(proposals[name].spec).conflict_scope):
                budget.finished(self._key(name))
                del conflicts[name]
        dropped = budget.offer(
            [self._work(name, p) for name, p in proposals.items()], monotonic_ms(self._clock)
        )
        shed = tuple(proposals[d.work.key.unit].spec for d in dropped if d.why is DropReason.SHED)
        started = tuple(proposals[work.key.unit] for work in budget.start())
        notes = plan.notes
        if waiting := len(proposals) - len(started):
            notes = (
                *notes,
                f"{waiting} more cannot start now: they share sources with other compactions, or capacity",
            )
        admission = Admission(self._dataset, self._clock, budget, conflicts)
        waiting_bytes = _cost_bytes(plan.proposals) - _cost_bytes(started)
        chosen = replace(plan, proposals=started, notes=notes)
        return Choice(admission, chosen, waiting, shed, waiting_bytes)

    def _in_step(self, proposals: Mapping[str, Proposal], ledger: AnyLedger, snapshot: Any) -> Budget:
        budget = self._budget.copy()
        budget.capacity = self._dataset.capacity(snapshot)
        active = {self._key(self._dataset.identify(c.spec).key): c for c in ledger.active()}
        for work in budget.running:
            if work.key not in active:
                budget.finished(work.key)
        for work in budget.queued:
            if work.key.unit not in proposals:
                budget.cancelled(work.key)
        budget.adopt(
            PlannedWork(
                key,
                1.0,
                self._dataset.cost_bytes(c.spec, snapshot),
                takes_capacity=c.state is not CompactionState.COMPACTED,
            )
            for key, c in active.items()
        )
        return budget

    def _work(self, name: str, proposal: Proposal) -> PlannedWork:
        after = tuple(map(self._key, proposal.after))
        return PlannedWork(self._key(name), proposal.priority, proposal.cost_bytes, after)

    def _key(self, name: str) -> WorkKey:
        return WorkKey(self._dataset.url, name)


def _cost_bytes(proposals: Iterable[Proposal]) -> int:
    return sum(proposal.cost_bytes for proposal in proposals)

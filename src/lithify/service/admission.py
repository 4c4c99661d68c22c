"""Which of a dataset's planned compactions start now: the task manager's queue of one coordinator, kept in
step with plan and ledger (`lithify.planning.admission`).

At each look:

1. What is queued and not planned any more leaves the queue. What runs according to the queue and not
   according to the ledger has ended; what conflicted (`conflicted`) is left alone for a while, unless
   something has joined its scope since: that must not wait for a writer that keeps changing the rest.
2. What the ledger has and the queue does not know, since an earlier process submitted it, counts as running.
   What is Compacted takes no capacity any more, but what depends on it still waits for its commit.
3. All that is planned is offered. When there is more than the queue holds, the least urgent is shed: the
   dataset may defer it.
4. What the dataset's capacity allows is started.

A look changes nothing: it gives the admission as it will be once what it decided was done. Lost with the
process, it is built again by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lithify.base.clock import Clock, monotonic_ms
from lithify.datasets.kind import DatasetPort
from lithify.planning.admission import Budget, Capacity, DropReason, PlannedWork, WorkKey
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.proposal import Plan, Planner, Proposal
from lithify.protocol.transitions import AnyLedger


@dataclass(frozen=True, slots=True)
class Choice:
    """What a look decided."""

    admission: Admission
    """To go on with."""
    plan: Plan
    """With what starts now as its only proposals, most urgent first."""
    waiting: int
    """How many that were planned do not start now."""
    shed: tuple[Any, ...]
    """Specs of those among them that did not fit the queue."""
    waiting_bytes: int = 0
    """What all that does not start now reads."""

    @property
    def is_queue_empty(self) -> bool:
        """Whether nothing waits for its turn."""
        return self.admission.is_empty


def starting(dataset: DatasetPort, clock: Clock, planner: Planner) -> tuple[Any, AnyLedger, Choice]:
    """The snapshot, the ledger, and what a coordinator that plans so would do now. Changes nothing."""
    found, snapshot = dataset.glance()
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
        """By name, the scope of what conflicted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._budget.queued

    def conflicted(self, spec: Any) -> None:
        """A compaction came to nothing because somebody else changed what it read."""
        name = self._dataset.name(spec)
        self._budget.failed(self._key(name), monotonic_ms(self._clock))
        self._conflicts[name] = self._dataset.scope(spec)

    def look(self, plan: Plan, ledger: AnyLedger, snapshot: Any) -> Choice:
        """Which of the planned compactions start now."""
        proposals = {self._dataset.name(p.spec): p for p in plan.proposals}
        budget = self._in_step(proposals, ledger, snapshot)
        conflicts = {name: scope for name, scope in self._conflicts.items() if name in proposals}
        for name in list(conflicts):
            if not conflicts[name].issuperset(self._dataset.scope(proposals[name].spec)):
                budget.finished(self._key(name))
                del conflicts[name]
        dropped = budget.offer(
            [self._work(name, p) for name, p in proposals.items()], monotonic_ms(self._clock)
        )
        shed = tuple(proposals[d.work.key.unit].spec for d in dropped if d.why is DropReason.SHED)
        started = tuple(proposals[work.key.unit] for work in budget.start())
        notes = plan.notes
        if waiting := len(proposals) - len(started):
            notes = (*notes, f"{waiting} more cannot start now: they share sources with others, or capacity")
        admission = Admission(self._dataset, self._clock, budget, conflicts)
        waiting_bytes = _cost_bytes(plan.proposals) - _cost_bytes(started)
        chosen = replace(plan, proposals=started, notes=notes)
        return Choice(admission, chosen, waiting, shed, waiting_bytes)

    def _in_step(self, proposals: Mapping[str, Proposal], ledger: AnyLedger, snapshot: Any) -> Budget:
        budget = self._budget.copy()
        budget.capacity = self._dataset.capacity(snapshot)
        active = {self._key(self._dataset.name(c.spec)): c for c in ledger.active()}
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

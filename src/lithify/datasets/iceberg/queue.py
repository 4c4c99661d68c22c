"""Which planned tasks of a table start now: the task manager's queue, kept in step with plan and ledger.

At each look:

1. What is queued and not planned any more leaves the queue. What runs according to the queue and not
   according to the ledger has ended; what conflicted (`conflicted`) is left alone for a while, unless other
   chunks have joined it since: these must not wait for a writer that keeps changing one of them.
2. What the ledger has and the queue does not know, since an earlier process submitted it, counts as running.
3. All planned tasks are offered. When there are more than the queue holds, the least urgent ones are
   shed: their chunks become deferred.
4. What the capacity allows is started.

A look changes nothing: it gives the queue as it will be once what it decided was done. Lost with the process,
the queue is built again by the next look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lithify.clock import Clock
from lithify.datasets.iceberg.model import ChunkSpec, IcebergLedger
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.planning.admission import Budget, Capacity, Drop, Work, WorkKey
from lithify.planning.timeline.model import ChunkKey, Task, TimelinePlan


@dataclass(frozen=True, slots=True)
class Choice:
    """What a look decided."""

    queue: TaskQueue
    """The queue to go on with."""
    start: tuple[Task, ...]
    """Most urgent first."""
    shed: tuple[ChunkKey, ...]
    """Chunks whose tasks did not fit the queue."""


class TaskQueue:
    """The queue of one table."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        budget: Budget | None = None,
        conflicted: Mapping[str, frozenset[ChunkKey]] = MappingProxyType({}),
    ) -> None:
        self._url = url
        self._clock = clock
        self._budget = budget if budget is not None else Budget(Capacity())
        self._conflicted = dict(conflicted)
        """By task, the chunks it had when it conflicted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._budget.queued

    def conflicted(self, spec: ChunkSpec) -> None:
        """A compaction came to nothing because somebody else changed its files."""
        self._budget.failed(self._key(spec.task), self._now_ms())
        self._conflicted[spec.task] = frozenset(spec.chunks)

    def look(
        self, timeline: TimelinePlan, ledger: IcebergLedger, sizes: Mapping[str, int], policy: TablePolicy
    ) -> Choice:
        """Which of the planned tasks start now."""
        budget = self._in_step(timeline, ledger, sizes, policy)
        conflicted = {t.key: self._conflicted[t.key] for t in timeline.tasks if t.key in self._conflicted}
        for task in timeline.tasks:
            if not conflicted.get(task.key, frozenset(task.chunks)).issuperset(task.chunks):
                budget.finished(self._key(task.key))
                del conflicted[task.key]
        tasks = {self._key(task.key): task for task in timeline.tasks}
        works = [
            Work(key, task.priority, task.cost_bytes, tuple(self._key(after) for after in task.after))
            for key, task in tasks.items()
        ]
        dropped = budget.offer(works, self._now_ms())
        shed = [drop.work.key for drop in dropped if drop.why is Drop.SHED]
        started = tuple(tasks[work.key] for work in budget.start())
        queue = TaskQueue(self._url, self._clock, budget, conflicted)
        return Choice(queue, started, tuple(chunk for key in shed for chunk in tasks[key].chunks))

    def _in_step(
        self, timeline: TimelinePlan, ledger: IcebergLedger, sizes: Mapping[str, int], policy: TablePolicy
    ) -> Budget:
        capacity = Capacity(
            max_running=policy.max_tasks,
            max_running_bytes=policy.max_active_bytes,
            max_queued=policy.max_queued_tasks,
        )
        budget = self._budget.copy() if self._budget.capacity == capacity else Budget(capacity)
        active = {self._key(c.spec.task): c.spec for c in ledger.active()}
        for work in budget.running:
            if work.key not in active:
                budget.finished(work.key)
        planned = {self._key(task.key) for task in timeline.tasks}
        for work in budget.queued:
            if work.key not in planned:
                budget.cancelled(work.key)
        known = {work.key for work in budget.running}
        budget.adopt(
            Work(key, 1.0, sum(sizes.get(path, 0) for path in spec.inputs))
            for key, spec in active.items()
            if key not in known
        )
        return budget

    def _key(self, task: str) -> WorkKey:
        return WorkKey(self._url, task)

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)

"""A day of a fleet of tables: burst, quiet, overload, recovery; `python -m benchmarks.day_cycle` draws it.

Nothing here measures time: planner, task manager and chunk states are the real ones, the tables are
models, and minutes pass in a loop. The same seed gives the same day.

Each minute:
1. Files arrive at every table: mostly of this hour, some late. During the overload a backfill brings
   files of every hour of the day before.
2. Running tasks read on; those that are done are committed.
3. Every `PLAN_EVERY_MIN` minutes each table is planned and its tasks are offered to the task manager.
   What is shed becomes deferred; deferred chunks come back when the queue is empty.
4. The task manager starts what fits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from lithify.planning.admission import Budget, Capacity, DropReason, PlannedWork, WorkKey
from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.model import (
    ActiveTask,
    ChunkKey,
    DeletesStatus,
    Interval,
    Task,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan, remember, resolve
from lithify.planning.timeline.state import ChunkStates, committed, deferred
from lithify.testing.timeline import ModelTable

MB = 1_000_000
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
START_US = 20_000 * 24 * HOUR_US
TABLES = 4
FILE_BYTES = 10 * MB
READ_BYTES_PER_MINUTE = 20 * MB
"""By each running task."""
PLAN_EVERY_MIN = 10
MAX_END_MIN = 48 * 60
"""By then the day must be over."""

POLICY = TimelinePolicy(
    calendar=Calendar(Granularity.HOUR),
    max_file_bytes=64 * MB,
    small_task_bytes=16 * MB,
    max_task_bytes=4096 * MB,
    skip_clock_us=HOUR_US,
)
CAPACITY = Capacity(
    max_running=4, max_running_bytes=16384 * MB, max_queued=24, max_dataset_share=0.5, first_pause_ms=60_000
)


@dataclass(frozen=True)
class Phase:
    """A part of the day."""

    name: str
    until_hour: int
    files_per_minute: float
    """At all tables together."""
    backfill_per_minute: float = 0.0


PHASES = (
    Phase("idle", 3, 0.3),
    Phase("burst", 8, 9.0),
    Phase("quiet", 12, 0.6),
    Phase("overload", 18, 6.0, backfill_per_minute=9.0),
    Phase("recovery", 24, 0.3),
    Phase("stopped", MAX_END_MIN // 60, 0.0),
)


@dataclass(frozen=True)
class Sample:
    """What the fleet looks like at one planning."""

    minute: int
    arrived_bytes: int
    """Since the last sample."""
    read_bytes: int
    queued: int
    running: int
    awaiting_chunks: int
    deferred_chunks: int
    chunks: int
    files: int
    analysed: int
    """Chunks that the rules had to look at."""


@dataclass(frozen=True)
class Shed:
    """A task that was shed, and the least urgent that stayed."""

    minute: int
    priority: float
    least_kept: float


@dataclass
class Day:
    """What happened."""

    samples: list[Sample] = field(default_factory=list)
    shed: list[Shed] = field(default_factory=list)
    planned_again: int = 0
    """Tasks dropped because a predecessor was."""
    ever_deferred: set[tuple[str, ChunkKey]] = field(default_factory=set)
    compacted: set[tuple[str, ChunkKey]] = field(default_factory=set)
    started: list[tuple[int, float]] = field(default_factory=list)
    """Minute and priority of every task that ran."""
    rows_arrived: int = 0
    rows_left: int = 0
    last_plan_tasks: int = -1
    """Tasks in a plan of everything, without memory, at the end."""
    ended_min: int = 0


@dataclass
class _Table:
    name: str
    model: ModelTable
    weight: float
    """Its part of the files that arrive."""
    states: ChunkStates = field(default_factory=ChunkStates)
    tasks: dict[str, Task] = field(default_factory=dict)
    """Queued and running ones."""
    latest: TimelinePlan | None = None

    def active(self) -> list[ActiveTask]:
        return [ActiveTask(t.key, frozenset(t.chunks), frozenset(t.files)) for t in self.tasks.values()]


@dataclass
class _Run:
    table: _Table
    task: Task
    inputs: list[str]
    left_bytes: int


class Fleet:
    """The tables and their task manager."""

    def __init__(self, seed: int = 1, capacity: Capacity = CAPACITY) -> None:
        self.day = Day()
        self.budget = Budget(capacity)
        self._rng = random.Random(seed)
        weights = [2.0**-i for i in range(TABLES)]
        self._tables = {
            f"table {i}": _Table(f"table {i}", ModelTable(POLICY), weight / sum(weights))
            for i, weight in enumerate(weights)
        }
        self._running: list[_Run] = []
        self._minute = 0
        self._arrived_bytes = self._read_bytes = self._analysed = 0

    @property
    def now_us(self) -> int:
        return START_US + self._minute * MINUTE_US

    def run(self) -> Day:
        """Until the files have stopped coming and there is nothing left to do."""
        while self._minute < MAX_END_MIN:
            phase = next(p for p in PHASES if self._minute < p.until_hour * 60)
            self._arrive(phase)
            self._work()
            if self._minute % PLAN_EVERY_MIN == 0:
                self._plan()
                self._sample()
                if phase is PHASES[-1] and self._is_over():
                    break
            self._start()
            self._minute += 1
        self.day.ended_min = self._minute
        final = [plan(t.model.listing(), POLICY, self.now_us) for t in self._tables.values()]
        self.day.last_plan_tasks = sum(len(result.tasks) for result in final)
        self.day.rows_left = sum(t.model.rows() for t in self._tables.values())
        return self.day

    def _is_over(self) -> bool:
        last = self.day.samples[-1]
        return not (last.queued or last.running or last.awaiting_chunks or last.deferred_chunks)

    def _arrive(self, phase: Phase) -> None:
        for table in self._tables.values():
            for _ in range(self._count(phase.files_per_minute * table.weight)):
                late_us = HOUR_US * self._rng.choice((0,) * 9 + (1,))
                self._add(table, self.now_us - late_us)
            for _ in range(self._count(phase.backfill_per_minute / TABLES)):
                self._add(table, START_US - self._rng.randrange(24) * HOUR_US - MINUTE_US)

    def _count(self, rate: float) -> int:
        return int(rate) + (self._rng.random() < rate - int(rate))

    def _add(self, table: _Table, at_us: int) -> None:
        name = f"{table.name}/{self._minute}-{len(table.model.files)}-{self._rng.getrandbits(32):x}"
        table.model.files[name] = TimelineFile(
            name, Interval(at_us, at_us + MINUTE_US), FILE_BYTES, rows=1000, version=self._minute
        )
        self.day.rows_arrived += 1000
        self._arrived_bytes += FILE_BYTES

    def _work(self) -> None:
        for run in list(self._running):
            read_bytes = min(run.left_bytes, READ_BYTES_PER_MINUTE)
            run.left_bytes -= read_bytes
            self._read_bytes += read_bytes
            if not run.left_bytes:
                self._running.remove(run)
                self._commit(run)

    def _commit(self, run: _Run) -> None:
        table = run.table
        table.model.version = self._minute
        added = table.model.rewrite(run.inputs)
        table.states = committed(table.states, run.task.chunks, added, POLICY)
        del table.tasks[run.task.key]
        self.day.compacted |= {(table.name, key) for key in run.task.chunks}
        self.budget.finished(WorkKey(table.name, run.task.key))

    def _plan(self) -> None:
        revive = not self.budget.queued
        self._analysed = 0
        for table in self._tables.values():
            table.latest = plan(
                table.model.listing(),
                POLICY,
                self.now_us,
                states=table.states,
                active=table.active(),
                revive_deferred=revive,
            )
            self._analysed += table.latest.analysed
            table.states = remember(table.latest, POLICY)
            table.tasks |= {task.key: task for task in table.latest.tasks}
            self._offer(table, table.latest.tasks)

    def _offer(self, table: _Table, tasks: tuple[Task, ...]) -> None:
        works = [
            PlannedWork(
                WorkKey(table.name, task.key),
                task.priority,
                task.cost_bytes,
                tuple(WorkKey(table.name, key) for key in task.after),
            )
            for task in tasks
        ]
        for drop in self.budget.offer(works, self._minute * 60_000):
            owner = self._tables[drop.work.key.dataset]
            task = owner.tasks.pop(drop.work.key.unit)
            if drop.why is not DropReason.SHED:
                self.day.planned_again += 1
                continue
            least_kept = min(work.priority for work in self.budget.queued)
            self.day.shed.append(Shed(self._minute, drop.work.priority, least_kept))
            owner.states = deferred(owner.states, task.chunks)
            self.day.ever_deferred |= {(owner.name, key) for key in task.chunks}

    def _start(self) -> None:
        for work in self.budget.start():
            table = self._tables[work.key.dataset]
            task = table.tasks[work.key.unit]
            inputs = resolve(task.chunks, table.model.listing(), POLICY)
            cost_bytes = sum(file.size_bytes for file in inputs)
            self._running.append(_Run(table, task, [file.id for file in inputs], cost_bytes))
            self.day.started.append((self._minute, work.priority))

    def _sample(self) -> None:
        totals = [table.latest.totals for table in self._tables.values() if table.latest is not None]
        self.day.samples.append(
            Sample(
                minute=self._minute,
                arrived_bytes=self._arrived_bytes,
                read_bytes=self._read_bytes,
                queued=len(self.budget.queued),
                running=len(self.budget.running),
                awaiting_chunks=sum(t[DeletesStatus.AWAITING].chunks for t in totals),
                deferred_chunks=sum(t[DeletesStatus.DEFERRED].chunks for t in totals),
                chunks=sum(a.chunks for t in totals for a in t.values()),
                files=sum(len(table.model.files) for table in self._tables.values()),
                analysed=self._analysed,
            )
        )
        self._arrived_bytes = self._read_bytes = 0


def draw(day: Day, path: Path) -> None:
    """Four curves over the day."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    hours = [sample.minute / 60 for sample in day.samples]
    rate = 1 / (PLAN_EVERY_MIN * MB)
    with rc_context({"svg.hashsalt": "lithify", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 9), layout="constrained")
        flow, queue, chunks, files = figure.subplots(4, sharex=True)
        flow.plot(hours, [s.arrived_bytes * rate for s in day.samples], label="arriving")
        flow.plot(hours, [s.read_bytes * rate for s in day.samples], label="read by tasks")
        flow.set_ylabel("MB per minute")
        queue.plot(hours, [s.queued for s in day.samples], label="queued")
        queue.plot(hours, [s.running for s in day.samples], label="running")
        queue.axhline(CAPACITY.max_queued, color="gray", linestyle=":", label="max_queued")
        queue.set_ylabel("tasks")
        chunks.plot(hours, [s.awaiting_chunks for s in day.samples], label="awaiting")
        chunks.plot(hours, [s.deferred_chunks for s in day.samples], label="deferred")
        chunks.plot(hours, [s.analysed for s in day.samples], ":", label="analysed in the plan")
        chunks.set_ylabel("chunks")
        files.plot(hours, [s.files for s in day.samples], label="files of all tables")
        files.set_ylabel("files")
        files.set_xlabel("hour")
        begin = 0
        for index, phase in enumerate(PHASES):
            end = min(phase.until_hour, hours[-1])
            for axes in (flow, queue, chunks, files):
                axes.axvspan(begin, end, color="gray", alpha=0.08 * (index % 2))
            middle, across = (begin + end) / 2, flow.get_xaxis_transform()
            flow.text(middle, 0.97, phase.name, ha="center", va="top", transform=across)
            begin = phase.until_hour
        for axes in (flow, queue, chunks, files):
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
            axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    day = Fleet().run()
    path = Path("docs/day-cycle.svg")
    draw(day, path)
    last = day.samples[-1]
    print(
        f"{len(day.started)} tasks, {len(day.shed)} shed, {len(day.ever_deferred)} chunks deferred, "
        f"longest queue {max(s.queued for s in day.samples)}, over after {day.ended_min / 60:.1f} h with "
        f"{last.files} files in {last.chunks} chunks, {day.last_plan_tasks} tasks left; drawn to {path}"
    )


if __name__ == "__main__":
    main()

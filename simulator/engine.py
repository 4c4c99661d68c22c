"""An engine whose tasks take virtual time, fail, hang, run twice and survive their driver.

Each call is a fiber with a view of the store of its own. It merges the rows of its range as the real
task does: reads the inputs, continues behind what an earlier attempt recorded, and writes SSTs under
new ids, one after another while time passes.

`cancel` ends the futures at once. The task itself may go on for a while, as one on another machine
does: what it writes from then on is garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lithify.base.errors import Cancelled, EngineError, LithifyError
from lithify.base.ids import Ulid
from lithify.coordination.sidecar import MovementReporter
from lithify.datasets.slatedb.compaction.task import MergeTask, RowCounts, TaskResult, sst_key
from lithify.datasets.slatedb.model import Sst
from lithify.engine.ports import ArgumentT, ResultT
from lithify.testing.faulty import Crash
from simulator.rows import (
    ROW_BYTES,
    Row,
    decode_rows,
    describe,
    encode_rows,
    merge_rows,
)
from simulator.world import Process, RunningTask, World

_MAX_ORPHAN_MS = 5_000


class SimulatedEngine:
    """The engine of one process (`lithify.engine.ports.Engine`)."""

    def __init__(self, world: World, driver: Process) -> None:
        self._world = world
        self.driver = driver
        self.worker_id = driver.name
        self._calls: list[RunningTask] = []

    @property
    def slots(self) -> int:
        return 2

    @property
    def failure(self) -> LithifyError | None:
        return None

    def check(self) -> None:
        """It is always there."""

    def start(self) -> None:
        """There is nothing to start."""

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        assert isinstance(argument, MergeTask)
        process = self._world.process("task")
        future: Future[Any] = Future()
        call = RunningTask(Ulid(job), self.worker_id, process, future)
        self._calls.append(call)
        self._world.tasks.append(call)
        process.log(f"runs {argument.range} of {job}")
        self._world.scheduler.spawn(lambda: self._run(call, argument))
        return future

    def cancel(self, job: str) -> None:
        for call in [c for c in self._calls if c.compaction == job]:
            self._end(call)
            call.future.set_exception(Cancelled(f"{job} was cancelled"))

    def close(self) -> None:
        for job in {call.compaction: None for call in self._calls}:
            self.cancel(job)

    def kill(self) -> None:
        """The driver is dead: its tasks end, soon."""
        for call in list(self._calls):
            self._end(call)

    def _end(self, call: RunningTask) -> None:
        """Nobody waits for the call any more; it may not have noticed yet."""
        self._calls.remove(call)
        call.is_over = True
        world = self._world
        if world.rng.random() < world.faults.orphan_per_task:
            world.count("fault: task orphaned")
            world.scheduler.spawn(call.process.kill, world.rng.randint(1, _MAX_ORPHAN_MS))
        else:
            call.process.kill()

    def _run(self, call: RunningTask, task: MergeTask) -> None:
        world, process = self._world, call.process
        try:
            result: Any = self._attempt(call, task)
        except LithifyError as error:
            result = error
        except Crash:
            result = EngineError("the executor was lost")
        process.is_dead = True
        if call in self._calls:
            self._calls.remove(call)
            call.is_over = True
            process.log(f"ends: {result if isinstance(result, Exception) else 'done'}")
            if isinstance(result, Exception):
                call.future.set_exception(result)
            else:
                call.future.set_result(result)
        world.tasks.remove(call)

    def _attempt(self, call: RunningTask, task: MergeTask) -> TaskResult:
        faults, rng, world = self._world.faults, self._world.rng, self._world
        if rng.random() < faults.failure_per_task:
            world.count("fault: task failed")
            raise EngineError("the task never started")
        if rng.random() < faults.hang_per_task:
            world.count("fault: task hung")
            call.process.log("hangs")
            while not call.process.is_dead:
                call.process.sleep_ms(1_000)
            raise Crash("the task hung until it was cancelled")
        result = run_toy_merge(call, task, world.scenario.max_task_ms)
        if rng.random() < faults.twin_per_task:
            world.count("fault: task ran twice")
            result = run_toy_merge(call, task, world.scenario.max_task_ms)
        if rng.random() < faults.lost_result_per_task:
            world.count("fault: task result lost")
            raise EngineError("the result of the task was lost")
        return result


def run_toy_merge(call: RunningTask, task: MergeTask, max_ms: int) -> TaskResult:
    """Merge the rows of the task's range into SSTs; see the module."""
    process, rng = call.process, call.process.rng
    reporter = None
    if task.reporting is not None:
        reporter = MovementReporter(task.reporting, process.store, process.clock, process.ids)
        reporter.report(0, 0)
    rows = _input_rows(process, task)
    merged = list(merge_rows(rows, task.rules))
    if task.resume_outputs:
        last = decode_rows(process.store.get(sst_key(task.output_folder, task.resume_outputs[-1].id)))[-1]
        merged = [row for row in merged if (row.key, -row.seq) > (last.key, -last.seq)]
    per_sst = max(1, task.options.max_sst_size // ROW_BYTES)
    outputs: list[Sst] = []
    steps = len(range(0, len(merged), per_sst)) + 1
    for start in range(0, len(merged), per_sst):
        chunk = merged[start : start + per_sst]
        process.sleep_ms(rng.randint(1, max_ms) // steps)
        sst_id = process.ids.ulid(max(process.clock.now_ms(), task.min_output_ms))
        call.written.append(sst_id)
        process.store.put(sst_key(task.output_folder, sst_id), encode_rows(chunk))
        outputs.append(describe(sst_id, chunk))
        if reporter is not None:
            reporter.report(len(rows) * ROW_BYTES, len(outputs) * per_sst * ROW_BYTES)
    process.sleep_ms(rng.randint(1, max_ms) // steps)
    if reporter is not None:
        reporter.close()
    return TaskResult(
        outputs=(*task.resume_outputs, *outputs),
        rows=RowCounts(rows_in=len(rows), rows_out=len(merged)),
        bytes_read=len(rows) * ROW_BYTES,
        bytes_written=len(merged) * ROW_BYTES,
        cpu_s=0.0,
        peak_memory_bytes=0,
    )


def _input_rows(process: Process, task: MergeTask) -> list[Row]:
    return [
        row
        for source in task.sources
        for part in source
        for row in decode_rows(process.store.get(part.key))
        if task.range.contains(row.key) and part.visible.contains(row.key)
    ]

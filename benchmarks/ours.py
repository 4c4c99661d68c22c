"""Lithify at work, measured: `python -m benchmarks.ours kernel|end-to-end DATABASE`.

Kernel: one task over the whole key range, without Spark, in a process pinned to one core. Planning and
loading the compiled code are not measured, as opening the database is not on the official side; reading
the inputs, merging, and writing complete outputs are. CPU time is of all threads of the process.

End to end: a one-shot run on `local[2]`, from reading the manifest to having published the new one.
Starting the Spark session is measured apart.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.child import Stopwatch, run_child
from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.compaction.execute import execute_merge
from lithify.datasets.slatedb.compaction.task import MergeTask
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.datasets.slatedb.model import EVERYTHING
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import Compaction, Ledger
from lithify.service import one_shot
from lithify.store.urls import open_store

MASTER = "local[2]"
_LONGER_THAN_A_FORK_S = 0.2
PRELOAD = "lithify.datasets.slatedb.kernel.warm_up:warm_up"


@dataclass(frozen=True, slots=True)
class KernelRun:
    """What one task over all keys took."""

    wall_s: float
    cpu_s: float
    system_cpu_s: float
    peak_memory_bytes: int
    output_bytes: int
    """Bytes of data blocks in the outputs."""
    rows_in: int
    rows_out: int


@dataclass(frozen=True, slots=True)
class EndToEndRun:
    """What a whole run took."""

    wall_s: float
    session_start_s: float
    task_cpu_s: float
    """CPU time of all tasks together."""
    peak_memory_bytes: int
    """Of the largest task."""
    ranges: int


def measure_kernel(database: Path) -> KernelRun:
    """Merge `database` with one task in a child process."""
    return KernelRun(**run_child("benchmarks.ours", "kernel", str(database)))


def measure_end_to_end(database: Path) -> EndToEndRun:
    """Compact `database` with a one-shot run in a child process."""
    return EndToEndRun(**run_child("benchmarks.ours", "end-to-end", str(database)))


def one_task(database: Path) -> MergeTask:
    """The task of a full compaction that is not cut into ranges."""
    dataset = _dataset(database)
    snapshot = dataset.snapshot()
    (proposal,) = dataset.planner(full=True)(snapshot, Ledger()).proposals
    compaction: SlateCompaction = Compaction(RandomIds().ulid(SystemClock().now_ms()), proposal.spec)
    argument = dataset.prepare(compaction, snapshot).works[0].argument
    assert isinstance(argument, MergeTask)
    return replace(argument, range=EVERYTHING)


def _run_kernel(database: Path) -> KernelRun:
    _pin_to_one_core()
    warm_up()
    task = one_task(database)
    watch = Stopwatch()
    result = execute_merge(task)
    cost = watch.read()
    return KernelRun(
        wall_s=cost.wall_s,
        cpu_s=cost.cpu_s,
        system_cpu_s=cost.system_cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        output_bytes=sum(sst.info.data_end for sst in result.outputs),
        rows_in=result.rows.rows_in,
        rows_out=result.rows.rows_out,
    )


def _run_end_to_end(database: Path) -> EndToEndRun:
    dataset, clock, ids = _dataset(database), SystemClock(), RandomIds()
    finished: list[events.RangeFinished] = []

    def observe(event: events.Event) -> None:
        if isinstance(event, events.RangeFinished):
            finished.append(event)

    with SparkEngine(MASTER, preload=PRELOAD) as engine:
        session_start_s = start_session(engine)
        started_s = time.perf_counter()
        result = one_shot.run(
            dataset,
            engine,
            clock,
            ids,
            Leadership(dataset, clock, ids),
            planner=dataset.planner(full=True),
            observer=observe,
        )
        wall_s = time.perf_counter() - started_s
    if len(result.committed) != 1:
        raise RuntimeError(f"expected one commit: {result}")
    return EndToEndRun(
        wall_s=wall_s,
        session_start_s=session_start_s,
        task_cpu_s=sum(event.cpu_s for event in finished),
        peak_memory_bytes=max(event.peak_memory_bytes for event in finished),
        ranges=len(finished),
    )


def start_session(engine: SparkEngine) -> float:
    """Start Spark, a Python worker for each slot, and load compiled code; the seconds this took."""
    started_s = time.perf_counter()
    calls = [engine.submit("start", time.sleep, _LONGER_THAN_A_FORK_S) for _ in range(engine.slots)]
    warm_up()
    for call in calls:
        call.result()
    return time.perf_counter() - started_s


def _dataset(database: Path) -> SlateDataset:
    store, root = open_store(str(database))
    return SlateDataset(store, root, SystemClock(), RandomIds())


def _pin_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    run = _run_kernel(folder) if sys.argv[1] == "kernel" else _run_end_to_end(folder)
    print(json.dumps(asdict(run)))

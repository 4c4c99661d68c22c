"""The service as a whole, in processes as users run them: `python -m benchmarks.service CACHE SCALE`.

All processes poll every `POLL_MS`, the official client's too; those of many databases every
`INDEPENDENT_POLL_MS`. Sessions are warm, as those of a worker that runs for days: it begins to look for work
when Spark, the compiled code of its JVMs and the kernel are ready. Times come from the modification times of
the compactions files, so watching costs nothing: from the version in which a compaction first appears to the
one that says Completed.

1. *Scaling, independent*: `INDEPENDENT` databases with one compaction each, one coordinator for each, and one
   or two worker processes that serve all of them, one compaction at a time. A worker may use one core only,
   for its JVM, its Python and its tasks together, as in a container of that size.
2. *Scaling, one large compaction*: one worker process on a standalone Spark cluster of one
   or two executors, each bound to a core of its own. The driver and the coordinator have no core to
   themselves: this machine has as many as there are executors.
   Both with zstd, where the cores do nearly all, and uncompressed, where a core writes more than a gigabyte
   per second and the cores wait for the disk and the memory that they share. What the machine allows is
   measured beside it, by the merge alone without any service (`benchmarks.bare`).
3. *Drain*: one L0 compaction, small and large, by `lithify run` and by a SlateDB process with coordinator
   and worker inside.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.cluster import cluster_conf, standalone_cluster
from tests.engine.waiting import wait_until
from tests.processes.history import history, latest
from tests.processes.node import READY, NodeOptions
from tests.processes.nodes import nodes_in

from benchmarks.bare import bare_speed_up
from benchmarks.cases import CASES, Case
from benchmarks.child import run_child
from benchmarks.data import copy_for_a_run, database_of, warm_up_page_cache
from benchmarks.official import POLL_MS, measure_official
from lithify.protocol.model import CompactionState
from lithify.service.worker import WorkerOptions

CASE = next(case for case in CASES if case.name == "1 KB")
ZSTD = replace(CASE, name="1 KB zstd", codec="Zstd")
INDEPENDENT = 8
LARGE_SCALES = {ZSTD: 10.0, CASE: 20.0}
"""Of one large compaction: ten to thirty seconds for one core."""
PART_SCALES = {ZSTD: 0.625, CASE: 5.0}
"""Of each independent one: all together at least ten seconds for one core, so that it does not matter when
in its interval a coordinator looks."""
DRAIN_SCALES = (0.02, 1.0)
WARM_S = 2.0
INDEPENDENT_POLL_MS = 500
"""Many coordinators that look all the time would need a good part of a core."""
HEARTBEAT_MS = WorkerOptions().heartbeat_interval_ms
HEARTBEAT_MIN_MS = WorkerOptions().heartbeat_min_interval_ms
RANGE_BYTES = 256 * 1024 * 1024
LIMIT_S = 300.0
TIMEOUT_MS = 30_000
OFFICIAL_SUBCOMPACTIONS = 4


@dataclass(frozen=True, slots=True)
class Scaling:
    """The same work by one worker and by two."""

    name: str
    input_bytes: int
    one_wall_s: float
    two_wall_s: float
    bare_speed_up: float
    """What the machine allows (`benchmarks.bare`)."""


@dataclass(frozen=True, slots=True)
class Drain:
    """From submission to commit of one L0 compaction."""

    input_bytes: int
    official_wall_s: float
    lithify_wall_s: float


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """One repetition of everything."""

    scalings: tuple[Scaling, ...]
    drains: tuple[Drain, ...]


def measure_service(cache: Path, scale: float) -> ServiceRun:
    """Measure in a child process, for which all databases are ready."""
    for case in LARGE_SCALES:
        drained = DRAIN_SCALES if case is CASE else ()
        for size in (LARGE_SCALES[case], PART_SCALES[case], *drained):
            database_of(case, cache, size * scale)
    document = run_child("benchmarks.service", str(cache), str(scale))
    return ServiceRun(
        tuple(Scaling(**scaling) for scaling in document["scalings"]),
        tuple(Drain(**drain) for drain in document["drains"]),
    )


def _measure(cache: Path, scale: float) -> ServiceRun:
    with tempfile.TemporaryDirectory(prefix="service-", dir=cache) as name:
        folder = Path(name)
        scalings: list[Scaling] = []
        for case, large in LARGE_SCALES.items():
            part = database_of(case, cache, PART_SCALES[case] * scale)
            bare = bare_speed_up(part, folder)
            scalings.append(_independent(case, part, bare, folder))
            scalings.append(_large(case, database_of(case, cache, large * scale), bare, folder))
        drained = (database_of(CASE, cache, size * scale) for size in DRAIN_SCALES)
        return ServiceRun(tuple(scalings), tuple(measure_drain(database, folder) for database in drained))


def _independent(case: Case, database: Path, bare: float, folder: Path) -> Scaling:
    def wall_s(workers: int) -> float:
        paths = [_copy(database, folder / f"db{n}") for n in range(INDEPENDENT)]
        urls = [str(path) for path in paths]
        options = [
            NodeOptions("worker", urls[0], urls[1:], max_concurrent_compactions=1, cores=[n])
            for n in range(workers)
        ]
        return _time_to_compact(paths, options, INDEPENDENT_POLL_MS, folder)

    size = INDEPENDENT * _size(database)
    return Scaling(f"{case.name}: independent compactions", size, wall_s(1), wall_s(2), bare)


def _large(case: Case, database: Path, bare: float, folder: Path) -> Scaling:
    def wall_s(executors: int) -> float:
        path = _copy(database, folder / "db")
        spark = Path(tempfile.mkdtemp(prefix="spark-", dir=folder))
        with standalone_cluster(spark, executors, pinned=True) as master:
            options = NodeOptions("worker", str(path), master=master, spark_conf=cluster_conf())
            return _time_to_compact([path], [options], POLL_MS, folder)

    return Scaling(f"{case.name}: one large compaction", _size(database), wall_s(1), wall_s(2), bare)


def _time_to_compact(
    databases: Sequence[Path], workers: Sequence[NodeOptions], poll_ms: int, folder: Path
) -> float:
    """Seconds from the moment in which workers see one compaction of each database, all Scheduled, to the
    last commit. Removes the databases."""
    with nodes_in(folder / "logs") as nodes:
        ready = [nodes.node(_scaling(options, poll_ms)) for options in workers]
        wait_until(lambda: all(process.events(READY) for process in ready), LIMIT_S)
        for process in ready:
            process.freeze()
        for path in databases:
            nodes.node(_scaling(NodeOptions("coordinator", str(path)), poll_ms))
        wait_until(lambda: all(_states(path) == [CompactionState.SCHEDULED] for path in databases), LIMIT_S)
        start_s = time.time()
        for process in ready:
            process.thaw()
        wait_until(lambda: all(_states(path) == [CompactionState.COMPLETED] for path in databases), LIMIT_S)
        end_s = max(history(path)[-1].written_s for path in databases)
    for path in databases:
        shutil.rmtree(path)
    return end_s - start_s


def measure_drain(database: Path, folder: Path) -> Drain:
    """Compact a copy of `database` in `folder` on both sides."""
    path = _copy(database, folder / "db")
    official_s = measure_official(CASE, path, OFFICIAL_SUBCOMPACTIONS).whole_wall_s
    shutil.rmtree(path)
    path = _copy(database, folder / "db")
    options = NodeOptions("run", str(path), master="local[2]", max_sst_size=RANGE_BYTES)
    with nodes_in(folder / "logs") as nodes:
        nodes.node(_polling(options))
        start_s, end_s = _wait_for_commit(path)
    shutil.rmtree(path)
    return Drain(_size(database), official_s, end_s - start_s)


def _scaling(options: NodeOptions, poll_ms: int) -> NodeOptions:
    return replace(
        options,
        poll_interval_ms=poll_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        heartbeat_min_interval_ms=HEARTBEAT_MIN_MS,
        worker_heartbeat_timeout_ms=TIMEOUT_MS,
        max_sst_size=RANGE_BYTES,
        warm_s=WARM_S,
    )


def _polling(options: NodeOptions) -> NodeOptions:
    return replace(options, poll_interval_ms=POLL_MS, worker_heartbeat_timeout_ms=TIMEOUT_MS, warm_s=WARM_S)


def _wait_for_commit(path: Path) -> tuple[float, float]:
    """When the compaction appeared, and when it was Completed; seconds since the epoch."""

    wait_until(lambda: _states(path) == [CompactionState.COMPLETED], LIMIT_S)
    versions = [version for version in history(path) if version.ledger.compactions]
    return versions[0].written_s, versions[-1].written_s


def _states(path: Path) -> list[CompactionState]:
    ledger = latest(path)
    return [compaction.state for compaction in ledger.compactions] if ledger is not None else []


def _copy(database: Path, path: Path) -> Path:
    copy = copy_for_a_run(database, path)
    os.sync()
    warm_up_page_cache(database)
    return copy


def _size(database: Path) -> int:
    return sum(sst.stat().st_size for sst in database.rglob("*.sst"))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(Path(sys.argv[1]), float(sys.argv[2])))))

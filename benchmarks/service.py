"""The service as a whole, in processes as users run them: `python -m benchmarks.service CACHE SCALE`.

All processes poll every `POLL_MS`, the official client's too. Sessions are warm: a worker process begins to
look for work when Spark and the compiled kernel are ready, and the coordinator starts after that. Times come
from the modification times of the compactions files, so watching costs nothing: from the version in which a
compaction first appears to the one that says Completed.

1. *Scaling, independent*: `INDEPENDENT` databases with one compaction each, one coordinator for each, and one
   or two worker processes of one core that serve all of them, one compaction at a time.
2. *Scaling, one large compaction*: one worker process on a standalone Spark cluster of one or two executors
   of one core.
3. *Drain*: one L0 compaction, small and large, by `lithify run` and by a SlateDB process with coordinator
   and worker inside.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster import cluster_conf, standalone_cluster
from tests.engine.waiting import wait_until
from tests.service.history import history, latest
from tests.service.node import READY, NodeOptions
from tests.service.nodes import nodes_in

from benchmarks.cases import CASES
from benchmarks.child import run_child
from benchmarks.data import copy_for_a_run, database_of, warm_up_page_cache
from benchmarks.official import POLL_MS, measure_official
from lithify.compaction.model import State

CASE = next(case for case in CASES if case.name == "1 KB")
INDEPENDENT = 4
LARGE_SCALE = 2.5
SMALL_SCALE = 0.02
RANGE_BYTES = 64 * 1024 * 1024
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

    @property
    def speed_up(self) -> float:
        return self.one_wall_s / self.two_wall_s


@dataclass(frozen=True, slots=True)
class Drain:
    """From submission to commit of one L0 compaction."""

    input_bytes: int
    official_wall_s: float
    lithify_wall_s: float


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """One repetition of everything."""

    independent: Scaling
    large: Scaling
    drains: tuple[Drain, ...]


def measure_service(cache: Path, scale: float) -> ServiceRun:
    """Measure in a child process."""
    document = run_child("benchmarks.service", str(cache), str(scale))
    return ServiceRun(
        Scaling(**document["independent"]),
        Scaling(**document["large"]),
        tuple(Drain(**drain) for drain in document["drains"]),
    )


def _measure(cache: Path, scale: float) -> ServiceRun:
    small, middle, large = (
        database_of(CASE, cache, part * scale) for part in (SMALL_SCALE, 1.0, LARGE_SCALE)
    )
    with tempfile.TemporaryDirectory(prefix="service-", dir=cache) as name:
        folder = Path(name)
        return ServiceRun(
            _independent(middle, folder),
            _large(large, folder),
            (measure_drain(small, folder), measure_drain(middle, folder)),
        )


def _independent(database: Path, folder: Path) -> Scaling:
    def wall_s(workers: int) -> float:
        paths = [_copy(database, folder / f"db{n}") for n in range(INDEPENDENT)]
        urls = [str(path) for path in paths]
        options = NodeOptions(
            "worker", urls[0], urls[1:], max_concurrent_compactions=1, max_sst_size=RANGE_BYTES
        )
        with _working(folder, [options] * workers, urls):
            times = [_wait_for_commit(path) for path in paths]
        for path in paths:
            shutil.rmtree(path)
        return max(end_s for _, end_s in times) - min(start_s for start_s, _ in times)

    size = INDEPENDENT * _size(database)
    return Scaling("independent compactions", size, wall_s(1), wall_s(2))


def _large(database: Path, folder: Path) -> Scaling:
    def wall_s(executors: int) -> float:
        path = _copy(database, folder / "db")
        spark = folder / f"spark{executors}"
        spark.mkdir()
        with standalone_cluster(spark, executors) as master:
            options = NodeOptions(
                "worker", str(path), master=master, spark_conf=cluster_conf(), max_sst_size=RANGE_BYTES
            )
            with _working(folder, [options], [str(path)]):
                start_s, end_s = _wait_for_commit(path)
        shutil.rmtree(path)
        return end_s - start_s

    return Scaling("one large compaction", _size(database), wall_s(1), wall_s(2))


def measure_drain(database: Path, folder: Path) -> Drain:
    """Compact a copy of `database` in `folder` on both sides."""
    path = _copy(database, folder / "db")
    official_s = measure_official(CASE, path, OFFICIAL_SUBCOMPACTIONS).whole_wall_s
    shutil.rmtree(path)
    path = _copy(database, folder / "db")
    options = NodeOptions("run", str(path), master="local[2]", max_sst_size=256 * 1024 * 1024)
    with nodes_in(folder / "logs") as nodes:
        nodes.node(_polling(options))
        start_s, end_s = _wait_for_commit(path)
    shutil.rmtree(path)
    return Drain(_size(database), official_s, end_s - start_s)


@contextmanager
def _working(folder: Path, workers: Sequence[NodeOptions], urls: Sequence[str]) -> Iterator[None]:
    """Worker processes that are ready, then a coordinator for each database."""
    with nodes_in(folder / "logs") as nodes:
        ready = [nodes.node(_polling(options)) for options in workers]
        wait_until(lambda: all(process.events(READY) for process in ready), LIMIT_S)
        for url in urls:
            nodes.node(_polling(NodeOptions("coordinator", url)))
        yield


def _polling(options: NodeOptions) -> NodeOptions:
    return NodeOptions(
        **{**asdict(options), "poll_interval_ms": POLL_MS, "worker_heartbeat_timeout_ms": 30_000}
    )


def _wait_for_commit(path: Path) -> tuple[float, float]:
    """When the compaction appeared, and when it was Completed; seconds since the epoch."""

    def is_done() -> bool:
        ledger = latest(path)
        return ledger is not None and [c.state for c in ledger.compactions] == [State.COMPLETED]

    wait_until(is_done, LIMIT_S)
    versions = [version for version in history(path) if version.ledger.compactions]
    return versions[0].written_s, versions[-1].written_s


def _copy(database: Path, path: Path) -> Path:
    copy = copy_for_a_run(database, path)
    os.sync()
    warm_up_page_cache(database)
    return copy


def _size(database: Path) -> int:
    return sum(sst.stat().st_size for sst in database.rglob("*.sst"))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(Path(sys.argv[1]), float(sys.argv[2])))))

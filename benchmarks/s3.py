"""Compactions over S3, beside the official client in the same run.

1. The store is `lithify.testing.s3` in a process of its own, with `BANDWIDTH` for each connection and one
   latency for all requests; a database is put there without being read.
2. Each side compacts the same database in processes of its own (`benchmarks.s3_run`), the official client
   first. Before that it has compacted `SMALL_WARM_UPS` small ones, on a second server without latency, and
   `WARM_UPS` of its size, as it is measured, or another small one where they are very large: how much memory
   a side keeps depends on how much is in flight, and so on latency. Who asked for what is told by the access
   key, and when by the server's log: of a side counts what it asked for between the submission of the
   compaction and its completion.
3. Afterwards, in good weather, the official client reads all rows: they must be those of the database
   before, and all in one run.
4. *Chain*: the most requests of a side of which each began after the one before had ended. So many latencies
   pass, however many cores there are. The official client's has the looks of its coordinator and its worker
   in it.
5. *Idle*: `lithify run` and a process of the official client, both as by default, on a database that needs
   nothing, at the same time for `IDLE_S`.

Each case is done `S3Case.repetitions` times by both sides in turns, and of each the run of the middle wall
counts: the first ones write into memory that the machine's host may still have to provide.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.processes.nodes import nodes_in

from benchmarks.cases import Case
from benchmarks.child import ChildFailed, cpu_s_of_tree
from benchmarks.data import copy_for_a_run, database_of
from benchmarks.ours import measure_kernel
from benchmarks.report import middle
from benchmarks.s3_cases import BANDWIDTH, IDLE, S3_CASES, S3Case
from benchmarks.s3_rows import contents_of, contents_of_kept
from benchmarks.s3_run import JUDGE, LITHIFY, OFFICIAL, WATCHER, SideRun, Task, measure, options_of
from lithify.testing.s3 import (
    LoggedRequest,
    Operation,
    S3Process,
    Weather,
    by_class,
    latency_of_all,
    longest_chain,
    most_in_flight,
)

NAME = "s3"
NAMES = (*(case.name for case in S3_CASES), IDLE)
BUCKET = "bench"
IDLE_SETTLE_S = 20.0
"""Until everybody has started."""
IDLE_S = 60.0
SMALL_WARM_UPS, WARM_UPS = 10, 2
"""What each side compacts before."""
_MAX_WARM_UP_BYTES = 1 << 30
"""A larger database is not compacted before it is measured: it would be in memory six times."""
_IDLE_FLUSHES, _FEW_ROWS_SCALE = 1, 0.0001
_KINDS = ("data GET", "control GET", "PUT", "LIST", "HEAD", "DELETE")


@dataclass(frozen=True, slots=True)
class Side:
    """What one side took for one compaction."""

    wall_s: float
    """From the submission to the last write of the compaction's states."""
    data_s: float
    """From the first request for rows to the end of the last: what its tasks took, where one begins."""
    cpu_s: float
    """Of all its processes."""
    start_cpu_s: float
    """Of all its processes, before there was anything to compact."""
    requests: dict[str, int]
    bytes_read: int
    bytes_written: int
    chain: int
    chain_requests: list[str]
    """One by one, for who wants to make it shorter."""
    most_in_flight: int


@dataclass(frozen=True, slots=True)
class S3Result:
    """Both sides of one case at one latency."""

    name: str
    latency_ms: int
    input_bytes: int
    official: Side
    lithify: Side

    def to_json(self) -> dict[str, Any]:
        """With ratios of official to Lithify: more than 1 is better."""
        pairs = {
            "wall": (self.official.wall_s, self.lithify.wall_s),
            "cpu": (self.official.cpu_s, self.lithify.cpu_s),
            "requests": (sum(self.official.requests.values()), sum(self.lithify.requests.values())),
            "chain": (self.official.chain, self.lithify.chain),
        }
        return {**asdict(self), "ratios": {name: theirs / ours for name, (theirs, ours) in pairs.items()}}


@dataclass(frozen=True, slots=True)
class IdleResult:
    """What an idle database costs in a minute."""

    latency_ms: int
    official: dict[str, int]
    lithify: dict[str, int]
    official_cpu_s: float
    lithify_cpu_s: float


@dataclass(frozen=True, slots=True)
class S3Results:
    """Everything over S3."""

    compactions: Sequence[S3Result]
    idle: Sequence[IdleResult]
    bandwidth: float | None = BANDWIDTH
    """Bytes per second of each connection; `None`: no limit."""

    def to_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return {
            "bandwidth_of_a_connection": self.bandwidth,
            "compactions": [result.to_json() for result in self.compactions],
            "idle": [asdict(result) for result in self.idle],
        }


def selected(only: Sequence[str] | None) -> list[str]:
    """The names of what is to be measured: of `only`, or all but what has to be named."""
    if only is None:
        return [*(case.name for case in S3_CASES if not case.only_when_named), IDLE]
    return [name for name in NAMES if name in only]


def measure_s3(
    names: Sequence[str],
    latencies_ms: Iterable[int],
    cache: Path,
    scale: float,
    console: Console,
    bandwidth: float | None = BANDWIDTH,
) -> S3Results:
    """Measure the cases of these names."""
    compactions, idle = [], []
    for data in {case.data.codec: case.data for case in S3_CASES if case.name in names}.values():
        _compile_kernel(data, cache)
    with S3Process() as server, S3Process() as calm:
        for latency_ms in latencies_ms:
            weather = Weather(latency=latency_of_all(latency_ms), bandwidth=bandwidth)
            for case in (case for case in S3_CASES if case.name in names):
                console.print(f"{case.name}, {latency_ms} ms …", highlight=False)
                compactions.append(_measure_case(server, calm, case, weather, latency_ms, cache, scale))
            if IDLE in names:
                console.print(f"{IDLE}, {latency_ms} ms …", highlight=False)
                idle.append(_measure_idle(server, weather, latency_ms, cache))
    return S3Results(compactions, idle, bandwidth)


def _compile_kernel(data: Case, cache: Path) -> None:
    """Merge a few rows, so that what is compiled once for each codec of this machine is not measured."""
    copy = copy_for_a_run(database_of(data, cache, _FEW_ROWS_SCALE), cache / f"compile-{os.getpid()}")
    try:
        measure_kernel(copy)
    finally:
        shutil.rmtree(copy)


def _measure_case(
    server: S3Process,
    calm: S3Process,
    case: S3Case,
    weather: Weather,
    latency_ms: int,
    cache: Path,
    scale: float,
) -> S3Result:
    database = database_of(case.data, cache, case.scale * scale)
    keys = int(case.data.rows * case.scale * scale)
    before = contents_of_kept(database, keys)
    found: dict[str, list[Side]] = {OFFICIAL: [], LITHIFY: []}
    for side in [OFFICIAL, LITHIFY] * case.repetitions:
        prefix = f"{side}/db"
        url = f"s3://{BUCKET}/{prefix}"
        server.load(database, BUCKET, prefix)
        server.forget()
        server.weather = weather
        try:
            run = measure(
                side,
                Task(
                    url,
                    server.url,
                    case.data.codec,
                    case.master,
                    case.max_sst_bytes,
                    _load_warm_ups(server, calm, database, database_of(case.data, cache, _FEW_ROWS_SCALE)),
                ),
            )
        finally:
            server.weather = Weather()
            calm.delete(BUCKET, "")
        found[side].append(side_of(side, run, server.log))
        after = contents_of(url, options_of(server.url, JUDGE), keys)
        if after != replace(before, l0s=0, runs=1):
            raise ChildFailed(f"{case.name} by {side}: {after} is not {before} in one run")
        server.delete(BUCKET, "")
    sides = {side: middle(runs, lambda run: run.wall_s) for side, runs in found.items()}
    return S3Result(case.name, latency_ms, _size_of(database), sides[OFFICIAL], sides[LITHIFY])


def _size_of(database: Path) -> int:
    """Bytes of its SSTs."""
    return sum(sst.stat().st_size for sst in database.rglob("*.sst"))


def _load_warm_ups(server: S3Process, calm: S3Process, database: Path, small: Path) -> list[tuple[str, str]]:
    """What a side compacts before it is measured."""
    alike = [database] * WARM_UPS if _size_of(database) <= _MAX_WARM_UP_BYTES else [small]
    there = [*[(calm, small)] * SMALL_WARM_UPS, *((server, one) for one in alike)]
    for n, (where, warm_up) in enumerate(there):
        where.load(warm_up, BUCKET, f"warm-up-{n}/db")
    return [(f"s3://{BUCKET}/warm-up-{n}/db", where.url) for n, (where, _) in enumerate(there)]


def side_of(side: str, run: SideRun, log: Sequence[LoggedRequest]) -> Side:
    """What the log says of one side. A submission by somebody else is when it begins."""
    during = [r for r in log if run.began_s <= r.start_s <= run.ended_s]
    submitted = [r.end_s for r in during if r.requester == WATCHER and r.operation is Operation.PUT]
    began_s = min(submitted, default=run.began_s)
    requests = [r for r in during if r.requester == side and r.end_s >= began_s]
    last_s = max(r.end_s for r in requests if r.operation is Operation.PUT and is_state(r.key))
    requests = [r for r in requests if r.start_s <= last_s]
    rows = [r for r in requests if is_data(r.key)]
    chain = longest_chain(requests)
    return Side(
        wall_s=last_s - began_s,
        data_s=max(r.end_s for r in rows) - min(r.start_s for r in rows),
        cpu_s=run.cpu_s,
        start_cpu_s=run.start_cpu_s,
        requests=dict(by_class(requests, is_data)),
        bytes_read=sum(r.bytes_out for r in requests),
        bytes_written=sum(r.bytes_in for r in requests),
        chain=len(chain),
        chain_requests=[
            f"{r.start_s - began_s:.3f} s: {r.operation} {r.key} {r.range}".strip() for r in chain
        ],
        most_in_flight=most_in_flight(requests),
    )


def is_data(key: str) -> bool:
    """Whether an object holds rows, not states."""
    return key.endswith(".sst")


def is_state(key: str) -> bool:
    """Whether an object says how far a compaction is. A lease does not: it is given back by who has done."""
    return key.endswith(".compactions")


def _measure_idle(server: S3Process, weather: Weather, latency_ms: int, cache: Path) -> IdleResult:
    case = replace(S3_CASES[0].data, flushes=_IDLE_FLUSHES)
    database = database_of(case, cache, _FEW_ROWS_SCALE)
    urls = {side: f"s3://{BUCKET}/idle-{side}/db" for side in (OFFICIAL, LITHIFY)}
    for side in urls:
        server.load(database, BUCKET, f"idle-{side}/db")
    run = ["run", urls[LITHIFY], "--master", "local[1]"]
    run += [f"--store-option={key}={value}" for key, value in options_of(server.url, LITHIFY).items()]
    server.weather = weather
    with tempfile.TemporaryDirectory(prefix="idle-") as folder, nodes_in(Path(folder)) as nodes:
        processes = {
            LITHIFY: nodes.module("lithify.cli.main", *run),
            OFFICIAL: nodes.module("benchmarks.s3_idle", urls[OFFICIAL], server.url),
        }
        time.sleep(IDLE_SETTLE_S)
        server.forget()
        before = {side: cpu_s_of_tree(process.pid) for side, process in processes.items()}
        time.sleep(IDLE_S)
        cpu_s = {side: cpu_s_of_tree(process.pid) - before[side] for side, process in processes.items()}
        log = server.log
        for side, process in processes.items():
            if process.exit_code is not None:
                raise ChildFailed(f"{side} ended with {process.exit_code}:\n{process.errors[-4000:]}")
    server.weather = Weather()
    counts = {side: dict(by_class([r for r in log if r.requester == side], is_data)) for side in urls}
    for side in urls:
        server.delete(BUCKET, f"idle-{side}/db")
    return IdleResult(latency_ms, counts[OFFICIAL], counts[LITHIFY], cpu_s[OFFICIAL], cpu_s[LITHIFY])


def print_tables(console: Console, results: S3Results) -> None:
    """Times and requests of each case and latency; each cell is official : Lithify."""
    limit = "without limit" if results.bandwidth is None else f"{results.bandwidth / 1e6:g} MB/s a connection"
    times = Table(title=f"Over S3, {limit}, official : Lithify")
    requests = Table(title="Requests over S3, official : Lithify")
    _add_columns(times, "wall s", "× wall", "MB/s", "data MB/s", "CPU s", "× CPU", "chain")
    _add_columns(requests, *_KINDS)
    for result in results.compactions:
        theirs, ours, ratios = result.official, result.lithify, result.to_json()["ratios"]
        name, latency = result.name.removeprefix("S3 "), str(result.latency_ms)
        times.add_row(
            name,
            latency,
            f"{theirs.wall_s:.2f} : {ours.wall_s:.2f}",
            f"{ratios['wall']:.2f}",
            _speeds(result.input_bytes, theirs.wall_s, ours.wall_s),
            _speeds(result.input_bytes, theirs.data_s, ours.data_s),
            f"{theirs.cpu_s:.2f} : {ours.cpu_s:.2f}",
            f"{ratios['cpu']:.2f}",
            f"{theirs.chain} : {ours.chain}",
        )
        counts = [(theirs.requests.get(kind, 0), ours.requests.get(kind, 0)) for kind in _KINDS]
        requests.add_row(name, latency, *(f"{official} : {lithify}" for official, lithify in counts))
    if results.compactions:
        console.print(times)
        console.print(requests)
    for idle in results.idle:
        others = f"official {idle.official} and {idle.official_cpu_s:.2f} CPU s"
        mine = f"Lithify {idle.lithify} and {idle.lithify_cpu_s:.2f} CPU s"
        console.print(f"{IDLE}, {idle.latency_ms} ms, a minute: {others}; {mine}", highlight=False)


def _speeds(size_bytes: int, theirs_s: float, ours_s: float) -> str:
    return f"{size_bytes / theirs_s / 1e6:.0f} : {size_bytes / ours_s / 1e6:.0f}"


def _add_columns(table: Table, *names: str) -> None:
    table.add_column("data", no_wrap=True)
    for name in ("ms", *names):
        table.add_column(name, justify="right")

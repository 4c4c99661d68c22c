"""A writer that writes as fast as it can, compacted by itself and by `lithify run` beside it:
`python -m benchmarks.writer [--seconds 300] [--latency 20]`. It draws `docs/writer.svg` and writes
`build/writer.json`.

1. The store is `lithify.testing.s3` in a process of its own, with `BANDWIDTH` for each connection.
2. The official client writes to a new database (`writer_side`): once with its own coordinator and worker in
   its process, once without, while `lithify run` serves the database. All look for work as often as by
   default. Both sides have the whole machine: the writer, the store and Spark share its cores.
3. Each second somebody else reads the manifest: what L0 SSTs wait for compaction, and how many sorted runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.compacting import dataset_at
from tests.judge.official import open_db
from tests.processes.nodes import Process, nodes_in

from benchmarks.s3_cases import BANDWIDTH
from benchmarks.s3_run import JUDGE, LITHIFY, OFFICIAL, options_of
from benchmarks.writer_side import Task, Written
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.testing.s3 import S3Process, Weather, latency_of_all

BUCKET = "bench"
SAMPLE_S = 1.0
STARTED = "EpochTaken"
"""The event by which `lithify run` says that it serves a database."""
START_LIMIT_S = 120.0
WARM_S = 10.0
MIN_BYTES_RATIO = 1.3
ROOM_BYTES_PER_S = 135_000_000
"""What the store grows by at most, of both sides together: a writer's rows, and these again and again in
what was compacted, of which nothing is deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What waited at one moment."""

    at_s: float
    """Since the writer began."""
    l0_ssts: int
    l0_bytes: int
    runs: int


@dataclass(frozen=True, slots=True)
class Side:
    """One side."""

    name: str
    written: Written
    samples: tuple[Sample, ...]

    @property
    def most_waiting_bytes(self) -> int:
        return max((sample.l0_bytes for sample in self.samples), default=0)


def measure(seconds: float, latency_ms: float) -> list[Side]:
    """Both sides, one after the other."""
    sides = []
    # What both sides write is more than memory holds.
    with tempfile.TemporaryDirectory(prefix="writer-s3-") as folder:
        _check_room(folder, seconds)
        _warm_up()
        with S3Process(folder=Path(folder)) as server:
            for name in (OFFICIAL, LITHIFY):
                print(f"{name}: {seconds:.0f} s at {latency_ms:g} ms …", flush=True)
                sides.append(_measure(server, name, seconds, latency_ms))
    return sides


def _check_room(folder: str, seconds: float) -> None:
    """A disk that runs full in the middle looks like a slow store."""
    needed_bytes, free_bytes = int(seconds * ROOM_BYTES_PER_S), shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise SystemExit(
            f"{folder} has {free_bytes / 1e9:.0f} GB; {seconds:.0f} s need {needed_bytes / 1e9:.0f} GB. "
            "Set TMPDIR to a folder on a larger disk, or give fewer --seconds."
        )


def _measure(server: S3Process, name: str, seconds: float, latency_ms: float) -> Side:
    url = f"s3://{BUCKET}/{name}/db"
    with tempfile.TemporaryDirectory(prefix="writer-") as folder:
        server.load(_empty(Path(folder)), BUCKET)  # creates the bucket
        with open_db(url, store_options=options_of(server.url, OFFICIAL)):
            pass  # creates the database
        server.weather = Weather(latency=latency_of_all(latency_ms), bandwidth=BANDWIDTH)
        try:
            with nodes_in(Path(folder) / "logs") as nodes:
                if name == LITHIFY:
                    options = options_of(server.url, LITHIFY).items()
                    given = [f"--store-option={key}={value}" for key, value in options]
                    command = ["run", url, "--master", "local[2]", "--log-format", "json"]
                    _wait_for_start(nodes.module("lithify.cli.main", *command, *given))
                    time.sleep(WARM_S)
                task = Task(url, server.url, seconds, with_compactor=name == OFFICIAL)
                with _sampled(dataset_at(url, store_options=options_of(server.url, JUDGE))) as samples:
                    written = _write(task)
        finally:
            server.weather = Weather()
            server.delete(BUCKET, f"{name}/")
    since_begin = (replace(s, at_s=s.at_s - written.began_s) for s in samples)
    return Side(name, written, tuple(s for s in since_begin if 0 <= s.at_s <= seconds))


def _empty(folder: Path) -> Path:
    empty = folder / "empty"
    empty.mkdir()
    return empty


def _warm_up() -> None:
    """So that what is compiled once on a machine is not measured: as an image does for its containers."""
    command = [sys.executable, "-m", "lithify.cli.main", "warm-up"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _wait_for_start(process: Process) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while STARTED not in process.errors:
        if process.exit_code is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"lithify run has not started:\n{process.errors[-4000:]}")
        time.sleep(0.2)


def _write(task: Task) -> Written:
    command = [sys.executable, "-m", "benchmarks.writer_side", json.dumps(asdict(task))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=task.seconds + 700)
    if done.returncode != 0:
        raise RuntimeError(f"the writer ended with {done.returncode}:\n{done.stderr[-4000:]}")
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return Written(**{**facts, "bytes_by_second": tuple(facts["bytes_by_second"])})


@contextmanager
def _sampled(dataset: SlateDataset) -> Iterator[list[Sample]]:
    """Samples of the manifest, by the clock of this machine."""
    samples: list[Sample] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE_S):
            trees = dataset.snapshot().trees()
            l0 = [view.sst for tree in trees for view in tree.l0]
            size = sum(sst.size_bytes for sst in l0)
            samples.append(Sample(time.time(), len(l0), size, sum(len(tree.runs) for tree in trees)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def draw(sides: Sequence[Side], path: Path) -> None:
    """Bytes written, the rate and the backlog over time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = {OFFICIAL: "its own compactor", LITHIFY: "lithify run beside it"}
    with rc_context({"svg.hashsalt": "lithify", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 8), layout="constrained")
        written, waiting, runs = figure.subplots(3, sharex=True)
        for side in sides:
            total, totals = 0, []
            for size in side.written.bytes_by_second:
                total += size
                totals.append(total / 1e9)
            label = names[side.name]
            written.plot(range(1, len(totals) + 1), totals, label=label)
            times = [sample.at_s for sample in side.samples]
            waiting.plot(times, [sample.l0_bytes / 1e6 for sample in side.samples], label=label)
            runs.plot(times, [sample.runs for sample in side.samples], label=label)
        written.set_ylabel("GB written")
        waiting.set_ylabel("MB in L0 (backlog)")
        runs.set_ylabel("sorted runs")
        runs.set_xlabel("seconds")
        for axes in (written, waiting, runs):
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left")
        figure.savefig(path, metadata={"Date": None})


def print_table(sides: Sequence[Side]) -> None:
    """The figures."""
    print(
        "compacted by  GB written  MB/s  puts  p50 ms  p99 ms  longest ms  stalled s  most MB in L0"
        "  runs at last"
    )
    for side in sides:
        done, last = side.written, side.samples[-1].runs if side.samples else 0
        print(
            f"{side.name:12}  {done.bytes / 1e9:10.2f}  {done.bytes / 1e6 / done.seconds:4.0f}  {done.puts:5}"
            f"  {done.p50_ms:6.1f}  {done.p99_ms:6.1f}  {done.longest_ms:10.0f}  {done.stalled_s:9.1f}"
            f"  {side.most_waiting_bytes / 1e6:13.0f}  {last:12}"
        )
    theirs, ours = (side.written for side in sides)
    print(
        f"bytes by Lithify over its own: {ours.bytes / theirs.bytes:.2f} (at least {MIN_BYTES_RATIO}); "
        f"stalled {ours.stalled_s:.1f} s against {theirs.stalled_s:.1f} s (no more)"
    )


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writer")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--latency", type=float, default=20.0, metavar="MS")
    parser.add_argument("--plot", type=Path, default=Path("docs/writer.svg"))
    parser.add_argument("--output", type=Path, default=Path("build/writer.json"))
    arguments = parser.parse_args()
    sides = measure(arguments.seconds, arguments.latency)
    print_table(sides)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"latency_ms": arguments.latency, "sides": [asdict(side) for side in sides]}
    arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    draw(sides, arguments.plot)
    print(f"written: {arguments.output}, {arguments.plot}")


if __name__ == "__main__":
    main()

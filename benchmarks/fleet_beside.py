"""Small work beside large: how long it waits while what is large fills all cores, and what the large loses.

One `lithify fleet run` on `local[2]` with a queue for what is small, and a slot of the other one reserved.
`LARGE` databases of `CASE` are compacted, once alone and once while one of `SMALL` databases has work every
`ARRIVE_EVERY_S`, which is said to the fleet. Both are counted from the first claim of a large one to the
last commit of one, so without the start of Spark.

1. *Wait*: from when the coordinator first sees the work, as the board says, to the claim. Of work that came
   while large compactions ran.
2. *Done*: from the same to the commit.
3. *Loss*: how much longer the large ones take than alone.

What arrives was written before (`benchmarks.fleet_small`), and is linked in, so that no writer takes a core.

    python -m benchmarks.fleet_beside [--scale 0.1]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.judge.official import open_db

import lithify
from benchmarks.cases import CASES
from benchmarks.data import copy_for_a_run, database_of
from benchmarks.fleet_small import LARGEST_BYTES, written
from benchmarks.fleet_waits import p95
from lithify.fleet.task_queue_files import BoardFiles
from lithify.store.urls import open_store

CASE = next(case for case in CASES if case.name == "200 B zstd")
L0_MAX_SSTS = 10_000
"""So that no stall is near: work of a writer near a stall may take reserved slots."""
LARGE, SMALL = 20, 16
ARRIVE_EVERY_S = 3.0
MAX_P95_S, MAX_LOSS = 3.0, 0.10
LIMIT_S = 600.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Beside:
    """What was measured."""

    large: int
    small: int
    p50_s: float
    p95_s: float
    done_p95_s: float
    alone_s: float
    """That the large ones take."""
    beside_s: float
    """The same, with small ones."""

    @property
    def loss(self) -> float:
        """The part by which the large ones took longer."""
        return self.beside_s / self.alone_s - 1

    def print_table(self, console: Console) -> None:
        """For people."""
        table = Table(
            "what", "measured", "at most", title=f"{self.small} small beside {self.large} large ones"
        )
        table.add_row("from seen to claimed, half", f"{self.p50_s:.1f} s", "")
        table.add_row("from seen to claimed, 95 of 100", f"{self.p95_s:.1f} s", f"{MAX_P95_S:g} s")
        table.add_row("from seen to committed, 95 of 100", f"{self.done_p95_s:.1f} s", "")
        table.add_row("large ones alone", f"{self.alone_s:.1f} s", "")
        table.add_row("large ones beside small", f"{self.beside_s:.1f} s", "")
        table.add_row("that is longer by", f"{self.loss:.0%}", f"{MAX_LOSS:.0%}")
        console.print(table)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "loss": self.loss}


def measure(cache: Path, scale: float = 1.0) -> Beside:
    """Alone, then with small ones, with this part of the data of a large one."""
    large = database_of(CASE, cache, scale)
    with tempfile.TemporaryDirectory(prefix="fleet-beside-", dir=cache) as name:
        folder = Path(name)
        small = written(folder / "template")
        alone = _Run(folder / "alone", large, small, count=0)
        beside = _Run(folder / "beside", large, small, count=SMALL)
        waits_s, done_s = beside.small_waits()
        return Beside(
            LARGE,
            len(waits_s),
            statistics.median(waits_s),
            p95(waits_s),
            p95(done_s),
            alone.large_s(),
            beside.large_s(),
        )


class _Run:
    """One fleet process over all of them, until all is committed."""

    def __init__(self, folder: Path, large: Path, small: Path, count: int) -> None:
        self._small = small
        self._since_ms: dict[str, int] = {}
        self._large = [folder / "large" / f"l{number:03}" for number in range(LARGE)]
        (folder / "large").mkdir(parents=True)
        for path in self._large:
            copy_for_a_run(large, path)
        self._names = [folder / "small" / f"s{number:03}" for number in range(count)]
        for path in self._names:
            open_db(path).close()
        fleet = lithify.Fleet(str(folder / "fleet"))
        fleet.init()
        queue = fleet.create_queue("small", largest_bytes=LARGEST_BYTES)
        fleet.set_queue("default", reserved_slots=1)
        fleet.add(str(folder / "large" / "*"))
        fleet.add(str(folder / "small" / "*"))
        self._boards, self._queue = BoardFiles(*open_store(fleet.url)), queue.id
        self._events: list[dict[str, Any]] = []
        self._run(fleet, folder / "fleet.log", count)
        shutil.rmtree(folder / "large")

    def _run(self, fleet: lithify.Fleet, log: Path, count: int) -> None:
        settings = ("spark.master=local[2]", f"slatedb.l0_max_ssts={L0_MAX_SSTS}")
        options = ["--log-format", "json", *(part for s in settings for part in ("--set", s)), fleet.url]
        command = [sys.executable, "-m", "lithify.cli.main", "fleet", "run", *options]
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stderr=errors)
        deadline_s, due_s, left = time.monotonic() + LIMIT_S, float("inf"), list(self._names)
        try:
            while True:
                text = log.read_text()
                if due_s == float("inf") and '"Claimed"' in text:
                    due_s = time.monotonic() + ARRIVE_EVERY_S
                if left and time.monotonic() >= due_s:
                    self._arrive(left.pop(), fleet)
                    due_s += ARRIVE_EVERY_S
                if not left and text.count('"Committed"') >= LARGE + count:
                    break
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"not all were compacted: {text[-2000:]}")
                for hint in self._boards.read(self._queue):
                    self._since_ms.setdefault(hint.compaction, hint.since_ms)
                time.sleep(LOOK_S)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        self._events = [json.loads(line) for line in log.read_text().splitlines() if '"event"' in line]

    def _arrive(self, path: Path, fleet: lithify.Fleet) -> None:
        """What a writer has flushed: SSTs before the manifests that name them."""
        shutil.rmtree(path)
        for part in ("wal", "compacted", "gc", "manifest"):
            if (self._small / part).exists():
                shutil.copytree(self._small / part, path / part, copy_function=os.link)
        fleet.wake(str(path))

    def _at_s(self, event: str) -> dict[str, tuple[str, float]]:
        """By compaction: the dataset, and when it was first told."""
        found: dict[str, tuple[str, float]] = {}
        for one in self._events:
            if one.get("event") == event:
                at_s = datetime.fromisoformat(one["time"]).timestamp()
                found.setdefault(one["compaction"], (one["dataset"], at_s))
        return found

    def large_s(self) -> float:
        """From the first claim of a large one to the last commit."""
        claimed = [at_s for url, at_s in self._at_s("Claimed").values() if "/large/" in url]
        committed = [at_s for url, at_s in self._at_s("Committed").values() if "/large/" in url]
        return max(committed) - min(claimed)

    def small_waits(self) -> tuple[list[float], list[float]]:
        """Seconds to the claim and to the commit of what was claimed while large ones ran."""
        claimed, committed = self._at_s("Claimed"), self._at_s("Committed")
        last_s = max(at_s for url, at_s in committed.values() if "/large/" in url)
        waits = [
            (claimed[c][1] - since_ms / 1000, committed[c][1] - since_ms / 1000)
            for c, since_ms in self._since_ms.items()
            if c in claimed and "/small/" in claimed[c][0] and since_ms / 1000 < last_s
        ]
        return [wait for wait, _ in waits], [done for _, done in waits]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cache", type=Path, default=Path("build/bench-data"))
    given = parser.parse_args()
    measure(given.cache, given.scale).print_table(Console())

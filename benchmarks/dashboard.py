"""What the dashboard of a fleet of `DATASETS` databases costs its server: the first page, in a process
that has just begun to serve, and what memory all pages take.

1. The fleet: as many copies of a small database in a folder, named by one pattern.
2. A process of its own (`python -m benchmarks.dashboard FLEET`) serves it and asks itself over HTTP. Each
   request is measured from its first byte to the last one of its answer, with the CPU of the whole process.
3. *First page*: the catalog is read, the folder is listed, and a hundred databases are drawn while they are
   read; a browser is told of them as they come. *Again*: what is known by then is drawn.
   *All pages*: every database has been read and drawn once; memory is what the process has more than before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from tests.judge.official import open_db

import lithify
from lithify.api.client import settled
from lithify.web import serving
from lithify.web.dashboard import PER_PAGE

NAME = "dashboard"
DATASETS = 1000
MAX_FIRST_MS = 300.0
MAX_MEMORY_MB = 50.0
FILL_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What one page took."""

    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Found:
    """What one process found."""

    first: Asked
    again: Asked
    memory_mb: float
    """Of all pages."""


@dataclass(frozen=True, slots=True)
class Results:
    """Of all repetitions."""

    found: list[Found]

    @property
    def first_ms(self) -> float:
        return median(one.first.wall_ms for one in self.found)

    @property
    def memory_mb(self) -> float:
        return max(one.memory_mb for one in self.found)

    def to_json(self) -> dict[str, object]:
        return {
            "datasets": DATASETS,
            "first_ms": self.first_ms,
            "memory_mb": self.memory_mb,
            "max_first_ms": MAX_FIRST_MS,
            "max_memory_mb": MAX_MEMORY_MB,
            "repetitions": [asdict(one) for one in self.found],
        }


def measure(cache: Path, repetitions: int, console: Console, datasets: int = DATASETS) -> Results:
    """Measure it."""
    console.print(f"{NAME} …", highlight=False)
    fleet = fleet_of(cache, datasets)
    command = [sys.executable, "-m", "benchmarks.dashboard", fleet]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    outputs = [
        subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        for _ in range(repetitions)
    ]
    documents = map(json.loads, outputs)
    return Results(
        [Found(Asked(**one["first"]), Asked(**one["again"]), one["memory_mb"]) for one in documents]
    )


def fleet_of(cache: Path, datasets: int) -> str:
    """The fleet, made unless it is there."""
    folder = cache / f"{NAME}-{datasets}"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with open_db(folder / "one") as database:
            for flush in range(3):
                database.put(b"k%d" % flush, b"v")
                database.flush()
        for number in range(datasets):
            shutil.copytree(folder / "one", folder / "tenants" / f"{number:04}" / "db")
        fleet = lithify.Fleet(str(folder / "fleet"))
        fleet.init()
        fleet.add(f"{folder}/tenants/*/db")
        (folder / "whole").touch()
    return str(folder / "fleet")


def serve(fleet: str) -> Found:
    """Serve it and look, in this process."""
    with serving.served([], fleet, settled({"web.port": 0})) as where:
        before_mb = _memory_mb()
        first, again = _ask(where), _ask(where)
        total = int(json.loads(_get(f"{where}api/datasets"))["total"])
        for page in range(1, -(-total // PER_PAGE) + 1):
            deadline_s = time.monotonic() + FILL_LIMIT_S
            while "being read" in _get(f"{where}datasets?page={page}"):
                assert time.monotonic() < deadline_s, f"page {page} is not filled"
                time.sleep(0.2)
        return Found(first, again, round(_memory_mb() - before_mb, 1))


def _ask(where: str) -> Asked:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    _get(where)
    taken = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return Asked(*(round(1000 * seconds, 1) for seconds in taken))


def _get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
        return text


def _memory_mb() -> float:
    """The most that this process has ever had; its resource usage would have its parent's too."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1000


def print_tables(console: Console, results: Results) -> None:
    """For people."""
    table = Table("", "median", "target", title=f"Dashboard of a fleet of {DATASETS:,} databases")
    first = f"{results.first_ms:.0f} ms ({median(o.first.cpu_ms for o in results.found):.0f} ms of CPU)"
    again = f"{median(o.again.wall_ms for o in results.found):.0f} ms"
    table.add_row("first page", first, f"{MAX_FIRST_MS:.0f} ms")
    table.add_row("the same again", again, "")
    table.add_row("memory of all pages", f"{results.memory_mb:.0f} MB", f"{MAX_MEMORY_MB:.0f} MB")
    console.print(table)


if __name__ == "__main__":
    print(json.dumps(asdict(serve(sys.argv[1]))))

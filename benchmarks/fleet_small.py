"""Many small databases with work: how many a second one fleet process compacts, beside the official client.

`DATABASES` databases of the official client, hard links of one with five L0 SSTs. One `lithify fleet run` on
`local[2]`, whose queue for what is small lets `PER_SLOT` share a slot, compacts all of them; counted is from
its first commit to the last, so without the start of Spark. The official client does the same in one process
with `OPEN_AT_ONCE` databases open at a time, each until its L0 is compacted: as it looks by default, and 20
times a second. It does a part of them each time, and is counted from the first open to the last close.

    python -m benchmarks.fleet_small [--scale 0.1]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.judge.official import Admin, Put, compactor_settings, open_db

import lithify

DATABASES, OFFICIAL_PART = 1_000, 0.2
OPEN_AT_ONCE = 8
PER_SLOT = 32
LARGEST_BYTES = 1_000_000
MIN_PER_S, MIN_RATIO = 20.0, 5.0
FLUSHES, KEYS, VALUE_BYTES = 5, 200, 50
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one side is."""

    per_s: float
    cpu_s: float
    """Of all its processes, for each database; of ours with the start of Spark."""


@dataclass(frozen=True, slots=True)
class SmallDatabases:
    """What all did."""

    databases: int
    ours: Rate
    official: Rate
    """As it is by default."""
    quick: Rate
    """Looking for work 20 times a second."""

    @property
    def ratio(self) -> float:
        """To the client as it is by default."""
        return self.ours.per_s / self.official.per_s

    def print_table(self, console: Console) -> None:
        """For people."""
        table = Table(title=f"{self.databases:,} small databases with work, on two cores")
        table.add_column("who")
        for column in ("a second", "CPU for each", "Lithify is so many times as fast", "target"):
            table.add_column(column, justify="right")
        for who, rate, target in (
            ("Lithify", self.ours, f"at least {MIN_PER_S:.0f} a second"),
            ("official, by default", self.official, f"at least {MIN_RATIO:.0f} times"),
            ("official, looking 20 times a second", self.quick, ""),
        ):
            ratio = "" if rate is self.ours else f"{self.ours.per_s / rate.per_s:.1f}"
            table.add_row(who, f"{rate.per_s:.1f}", f"{rate.cpu_s * 1000:.0f} ms", ratio, target)
        console.print(table)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


def measure(scale: float = 1.0) -> SmallDatabases:
    """All of them, with this part of the databases."""
    count = max(2, round(DATABASES * scale))
    part = max(OPEN_AT_ONCE, round(count * OFFICIAL_PART))
    with tempfile.TemporaryDirectory(prefix="fleet-small-") as name:
        folder = Path(name)
        template = written(folder / "template")
        official = _official(_linked(template, folder / "official", part))
        quick = _official(_linked(template, folder / "quick", part), poll_ms=50)
        ours = _fleet(folder, _linked(template, folder / "ours", count))
        return SmallDatabases(count, ours, official, quick)


def written(path: Path) -> Path:
    """A database there that is small and has work."""
    for n in range(FLUSHES):
        with open_db(path) as database:
            database.write_batch([Put(b"%06d" % key, bytes([n]) * VALUE_BYTES) for key in range(KEYS)])
            database.flush()
    return path


def _linked(template: Path, folder: Path, count: int) -> list[Path]:
    """Objects are never changed, so databases may share those that there are now."""
    paths = [folder / f"d{n:05}" for n in range(count)]
    for path in paths:
        shutil.copytree(template, path, copy_function=os.link)
    return paths


def _fleet(folder: Path, paths: list[Path]) -> Rate:
    before = os.times()
    fleet = lithify.Fleet(str(folder / "fleet"))
    fleet.init()
    fleet.create_queue("small", largest_bytes=LARGEST_BYTES, per_slot=PER_SLOT)
    fleet.add(str(paths[0].parent / "*"))
    log = folder / "fleet.log"
    options = ["--log-format", "json", "--set", "spark.master=local[2]", fleet.url]
    command = [sys.executable, "-m", "lithify.cli.main", "fleet", "run", *options]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
    deadline_s = time.monotonic() + LIMIT_S
    try:
        while log.read_text().count('"Committed"') < len(paths):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"not all were compacted: {log.read_text()[-2000:]}")
            time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    committed = (line["time"] for line in lines if line.get("event") == "Committed")
    at_s = sorted(datetime.fromisoformat(at).timestamp() for at in committed)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Rate((len(at_s) - 1) / (at_s[-1] - at_s[0]), cpu_s / len(paths))


def _official(paths: list[Path], poll_ms: int | None = None) -> Rate:
    """`None`: it looks as often as it does by default."""
    scheduler = {"min_compaction_sources": "4"}
    options: dict[str, object] = {"scheduler_options": scheduler}
    if poll_ms is not None:
        options = compactor_settings(poll_ms=poll_ms, scheduler=scheduler)
    settings = {"compactor_options": options}

    def compact(path: Path) -> None:
        admin, deadline_s = Admin(path), time.monotonic() + LIMIT_S
        with open_db(path, settings=settings):
            while any(tree.l0 for tree in admin.trees()):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"the official client does not compact {path}")
                time.sleep(0.02)

    started_s, before_s = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(OPEN_AT_ONCE) as threads:
        list(threads.map(compact, paths))
    lasted_s, cpu_s = time.monotonic() - started_s, time.process_time() - before_s
    return Rate(len(paths) / lasted_s, cpu_s / len(paths))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    measure(parser.parse_args().scale).print_table(Console())

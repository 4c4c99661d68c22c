"""`make chaos`, or `python -m tests.chaos`: real processes are killed and frozen while they compact a large
database (1 GB unless told otherwise), Spark is killed under them, and their ledgers are damaged; a table says
what it cost.

1. The database is made once by the official client and kept: eight overlapping flushes, so about a third
   of its rows are older versions. Its rows are scanned by the official client and their digest is kept.
2. Each accident (`tests.processes.accidents`) happens on a copy, beside a client that goes on writing rows
   of its own, and checks what must hold after it.
3. The official client scans the copy: the digest must be the same, and the rows written meanwhile there.

The exit code is 1 when anything is not as it must be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import CASES, FLUSHES
from benchmarks.data import copy_for_a_run, database_of
from rich.console import Console
from rich.table import Table

from tests.cluster import Cluster, cluster_conf
from tests.judge.official import Admin, Database, open_db
from tests.processes import accidents
from tests.processes.accidents import Outcome, Stage
from tests.processes.coordinator_kills import kill_at_each_write
from tests.processes.databases import Model
from tests.processes.lakes import Lake
from tests.processes.lease_kills import kills
from tests.processes.ledger_accident import damage_a_ledger
from tests.processes.nodes import nodes_in
from tests.processes.writer import Writer

CASE = next(case for case in CASES if case.name == "1 KB")
ROWS_PER_GB = 1_000_000
SLICE_ROWS = 50_000
SST_BYTES_PER_GB = 16 * 1024 * 1024
"""So there are as many ranges, however large the database is."""
TIMEOUT_MS = 5_000
CACHE = Path("build/bench-data")
WRITER_KEYS = 2_000
SCAN_LIMIT_S = 120.0
LEASE_KILLS = 30
DAMAGED = {0: "ledger damaged, first of three", 2: "ledger damaged, last of three"}
"""By the place of the damaged one in the worker's list."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    name: str
    outcome: Outcome | None
    rows_equal: bool
    error: str = ""
    note: str = ""

    @property
    def is_good(self) -> bool:
        return self.rows_equal and not self.error


class Chaos:
    """Lets accidents happen to copies of one database."""

    def __init__(
        self, database: Path, rows: int, digest: str, folder: Path, max_sst_size: int, console: Console
    ) -> None:
        self._database = database
        self._rows = rows
        self._digest = digest
        self._digests: dict[tuple[str, ...], str] = {}
        self._folder = folder
        self._max_sst_size = max_sst_size
        self._console = console

    def play(
        self, name: str, accident: Callable[[Stage], Outcome], master: str = "local[1]", enough: int = 6
    ) -> Line:
        """Let one happen, and judge."""
        self._console.print(f"{name} …", highlight=False)
        path = copy_for_a_run(self._database, self._folder / "db")
        conf = {} if master.startswith("local") else cluster_conf()
        model: Model = {}
        try:
            with nodes_in(self._folder / "logs" / name.replace(" ", "-")) as nodes:
                stage = Stage(path, nodes, enough, TIMEOUT_MS, self._max_sst_size, master, conf)
                with (
                    open_db(path, settings={"wal_enabled": False}) as database,
                    Writer(database, model, keys=WRITER_KEYS, batch=100, value_bytes=100, pause_s=1),
                ):
                    outcome = accident(stage)
            self._console.print(f"  {outcome}", highlight=False)
            return Line(name, outcome, self.rows_are_equal(path, model))
        except Exception as error:
            traceback.print_exc()
            return Line(name, None, False, f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(path)

    def play_on_a_cluster(self, name: str, accident: Callable[[Stage, Cluster], Outcome]) -> Line:
        """Let it happen to a standalone cluster of its own."""
        with Cluster(Path(tempfile.mkdtemp(prefix="cluster-", dir=self._folder))) as cluster:
            return self.play(name, lambda stage: accident(stage, cluster), cluster.url)

    def play_damage(self, place: int) -> Line:
        """Damage the ledger of one of three datasets that a worker serves, and judge all three."""

        def damage(stage: Stage) -> Outcome:
            other = copy_for_a_run(self._database, self._folder / "other")
            lake = Lake(Path(tempfile.mkdtemp(dir=self._folder)))
            outcome = damage_a_ledger(stage, other, lake, place=place)
            assert self.rows_are_equal(other, {}), "the other database shows other rows"
            return outcome

        return self.play(DAMAGED[place], damage)

    def play_commits(self) -> Line:
        """Kill the coordinator at each write of a commit, and judge each time."""
        name = "coordinator killed at each write of a commit"
        self._console.print(f"{name} …", highlight=False)
        path = copy_for_a_run(self._database, self._folder / "db")
        equal: list[bool] = []
        try:
            with nodes_in(self._folder / "logs" / "compacted") as nodes:
                accidents.leave_compacted(Stage(path, nodes, 1, TIMEOUT_MS, self._max_sst_size))
            for copy, model in kill_at_each_write(path, {}, self._folder / "commits", WRITER_KEYS):
                equal.append(self.rows_are_equal(copy, model))
            return Line(name, None, all(equal), note=f"{len(equal)} deaths")
        except Exception as error:
            traceback.print_exc()
            return Line(name, None, False, f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(path)

    def play_lease_kills(self) -> Line:
        """Kill a run between its lease and its epoch; SlateDB's coordinator opens, and must live on."""
        name = "compact killed between lease and epoch"
        self._console.print(f"{name} …", highlight=False)
        try:
            made = list(kills(self._folder / "leases", LEASE_KILLS))
        except Exception as error:
            traceback.print_exc()
            return Line(name, None, False, f"{type(error).__name__}: {error}")
        bad = [kill for kill in made if not kill.is_good]
        return Line(name, None, not bad, str(bad) if bad else "", f"{len(made)} deaths")

    def rows_are_equal(self, path: Path, written: Model) -> bool:
        """Whether the official client shows all rows of the database and those written since. Trees of
        the same SSTs have the same rows, so these are scanned once."""
        runs = Admin(path).trees()[0].runs
        ssts = tuple(view.sst_id for run in runs for view in run.views)
        with open_db(path, timeout_s=SCAN_LIMIT_S) as database:
            if ssts not in self._digests:
                self._digests[ssts] = digest_of(database, self._rows)
            return dict(database.scan(end=b"user")) == written and self._digests[ssts] == self._digest


def digest_of(database: Database, rows: int) -> str:
    """A digest of all rows the benchmark's databases have, slice by slice."""
    digest = hashlib.sha256()
    for start in range(0, rows, SLICE_ROWS):
        for key, value in database.scan(b"user%012d" % start, b"user%012d" % (start + SLICE_ROWS)):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    return digest.hexdigest()


def kept_digest(database: Path, rows: int) -> str:
    """The digest of the database as it was made, by the official client."""
    kept = database.with_name("digest.json")
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=database.parent) as folder:
            copy = copy_for_a_run(database, Path(folder) / "db")
            with open_db(copy, settings={"wal_enabled": False}, timeout_s=SCAN_LIMIT_S) as opened:
                kept.write_text(json.dumps(digest_of(opened, rows)))
    return str(json.loads(kept.read_text()))


def print_table(console: Console, lines: list[Line]) -> None:
    """What happened, and what it cost."""
    table = Table(title=f"Accidents in the middle of a compaction (timeout {TIMEOUT_MS / 1000:g} s)")
    columns = ("", "ranges", "finished before", "run afterwards", "free again after", "committed after")
    for column in (*columns, "rows"):
        table.add_column(column, justify="left" if column == "" else "right")
    for line in lines:
        seen = line.outcome
        facts = ["", "", "", "", line.note] if seen is None else _facts(seen)
        table.add_row(line.name, *facts, "equal" if line.is_good else f"[red]{line.error or 'DIFFERENT'}[/]")
    console.print(table)


def _facts(seen: Outcome) -> list[str]:
    free = "" if seen.reclaimed_after_s is None else f"{seen.reclaimed_after_s:.2f} s"
    counts = (seen.ranges, seen.finished_before, seen.run_afterwards)
    return [*map(str, counts), free, f"{seen.commit_after_s:.1f} s"]


def main() -> int:
    """Play every accident; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument(
        "--cache", type=Path, default=Path("build/bench-data"), help="where databases are kept"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="accidents whose name has this text")
    arguments = parser.parse_args()
    console = Console()
    started_s = time.monotonic()
    scale = arguments.gigabytes * ROWS_PER_GB / CASE.rows
    rows = int(CASE.rows * scale)
    database = database_of(CASE, arguments.cache.absolute(), scale)
    size = sum(sst.stat().st_size for sst in database.rglob("*.sst"))
    console.print(f"{size / 1e6:.0f} MB in {FLUSHES} L0s", highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=arguments.cache.absolute()))
    max_sst_size = int(SST_BYTES_PER_GB * arguments.gigabytes)
    chaos = Chaos(database, rows, kept_digest(database, rows), folder, max_sst_size, console)

    def is_wanted(name: str) -> bool:
        return not arguments.only or any(text in name for text in arguments.only)

    local: dict[str, Callable[[Stage], Outcome]] = {
        "worker killed": accidents.kill_worker,
        "worker frozen, then woken": accidents.freeze_worker,
        "worker told to stop": accidents.stop_worker,
        "coordinator frozen, then woken": accidents.freeze_coordinator,
        "JVM of a worker killed": accidents.kill_jvm,
        "every JVM of a worker killed": accidents.kill_every_jvm,
    }
    try:
        lines = [chaos.play(name, accident) for name, accident in local.items() if is_wanted(name)]
        if is_wanted("coordinator killed at each write of a commit"):
            lines.append(chaos.play_commits())
        if is_wanted("compact killed between lease and epoch"):
            lines.append(chaos.play_lease_kills())
        lines += [chaos.play_damage(place) for place, name in DAMAGED.items() if is_wanted(name)]
        on_a_cluster: dict[str, Callable[[Stage, Cluster], Outcome]] = {
            "executor killed": lambda stage, cluster: accidents.kill_executor(stage),
            "master killed": accidents.kill_master,
            "master and executors killed": accidents.kill_cluster,
        }
        lines += [chaos.play_on_a_cluster(n, happens) for n, happens in on_a_cluster.items() if is_wanted(n)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(console, lines)
    console.print(f"{time.monotonic() - started_s:.0f} s", highlight=False)
    return 0 if all(line.is_good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fleet.soak`, a part of `make soak`: a fleet keeps databases and tables in shape while its
members come, freeze and die.

1. Real clients write: SlateDB's opens one database after the other, writes, overwrites, deletes and flushes;
   PyIceberg appends small files. A tenth of the databases are hot: they have half of all writes.
2. Two coordinators and three workers of two cores serve all of them. Every few seconds one, chosen by the
   seed, is killed (SIGKILL), ended (SIGTERM), frozen (SIGSTOP) for a while, or ended and left out for a
   while; now and then one more joins. One worker and one coordinator that are up are always left alone.
3. Each member's requests are read from its metrics every few seconds; what it asks for in the last ones
   before it is killed is not counted, nor what tasks ask for.
4. At the end all members are up and left alone; each database is written to once more, and all is compacted.

It has passed when every row is as its client wrote it, all work was done, no dataset with work waited for its
commit for longer than `--starved`, nothing lies there that nobody needs once garbage was collected, no member
that ended is still listed, no process wrote a traceback, left children, or ended otherwise than it was to.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
from benchmarks.costs import DOLLARS_A_READ, DOLLARS_A_WRITE
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import OperationalError

import lithify
from lithify.fleet.garbage_times import COLLECT_AFTER_S
from tests.compacting import check_state_files, dataset_at
from tests.engine.waiting import descendants, is_alive, wait_until
from tests.fleet.dynamic import free_port
from tests.judge.official import Admin, open_db
from tests.processes.databases import Model, write_some
from tests.processes.nodes import Nodes, Process, nodes_in
from tests.soak import LAST_FLUSHES, is_quiet, leaked, repeating, youngest_garbage_ms

DATABASES, TABLES, MINUTES = 300, 30, 30.0
COORDINATORS, WORKERS = 2, 3
KEYS, BATCH, VALUE_BYTES = 400, 60, 100
ROWS = 50
COLLECTED_WITHIN_S = COLLECT_AFTER_S + 300.0
"""After the last commit."""
HOT_PART, HOT_SHARE = 0.1, 0.5
WRITE_EVERY_S = 0.2
APPEND_EVERY_S = 1.0
ACCIDENT_EVERY_S = (6.0, 16.0)
FROZEN_S = (5.0, 60.0)
AWAY_S = (10.0, 60.0)
READY_AFTER_S = 30.0
STARVED_S = 300.0
QUIET_LIMIT_S = 600.0
COUNT_EVERY_S = 3.0
PROPERTIES = {"lithify.min-saved-files": "4", "lithify.allowed-lateness-seconds": "0"}
SCHEMA = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("id", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = """\
[service]
worker_heartbeat_timeout = "15s"
[service.worker]
heartbeat_interval = "3s"
heartbeat_bytes = 0
[slatedb]
checkpoint_lifetime = "10s"
[spark]
master = "local[2]"
[spark.conf]
"spark.driver.memory" = "512m"
[log]
format = "json"
"""


class Databases:
    """Databases of the official client, each with the rows it must show."""

    def __init__(self, folder: Path, count: int, rng: random.Random) -> None:
        self.paths = [folder / f"d{n:03}" for n in range(count)]
        self.models: dict[Path, Model] = {path: Model() for path in self.paths}
        self.flushed_s: defaultdict[Path, list[float]] = defaultdict(list)
        self._rng = rng
        self._hot = self.paths[: max(1, round(count * HOT_PART))]

    def write_some(self) -> None:
        """To any of them."""
        self.write(self._rng.choice(self._hot if self._rng.random() < HOT_SHARE else self.paths))

    def write(self, path: Path, flushes: int = 1) -> None:
        with open_db(path) as database:
            for _ in range(flushes):
                numbers = self._rng.sample(range(KEYS), BATCH)
                write_some(database, self.models[path], self._rng, numbers, VALUE_BYTES)
                database.flush()
        self.flushed_s[path].append(time.time())

    def problems(self) -> list[str]:
        found = []
        for path, model in self.models.items():
            with open_db(path) as database:
                shown = dict(database.scan())
            if shown != model:
                found.append(f"{path.name} shows {len(shown)} rows, its model has {len(model)}")
        return found


class Tables:
    """Tables of PyIceberg, each with the rows it must show: so many, numbered."""

    def __init__(self, folder: Path, count: int, rng: random.Random) -> None:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", (folder / "warehouse").as_uri()
        self.environment = {
            "PYICEBERG_CATALOG__LAKE__URI": uri,
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": warehouse,
        }
        self._catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
        self._catalog.create_namespace("db")
        self.names = [f"db.t{n:02}" for n in range(count)]
        self.rows = dict.fromkeys(self.names, 0)
        self._rng = rng
        for name in self.names:
            self._catalog.create_table(name, SCHEMA, properties=PROPERTIES)

    def append_some(self) -> None:
        """To any of them, again and again while somebody else commits."""
        name = self._rng.choice(self.names)
        first = self.rows[name]
        rows = pa.table([[START] * ROWS, list(range(first, first + ROWS))], schema=SCHEMA)
        while True:
            try:
                self._catalog.load_table(name).append(rows)
            except (CommitFailedException, OperationalError):
                time.sleep(self._rng.uniform(0.01, 0.2))
            else:
                self.rows[name] += ROWS
                return

    def files(self) -> dict[str, int]:
        """How many each has."""
        return {name: len(list(self._catalog.load_table(name).scan().plan_files())) for name in self.names}

    def problems(self) -> list[str]:
        found = []
        for name, count in self.rows.items():
            ids = sorted(self._catalog.load_table(name).scan().to_arrow()["id"].to_pylist())
            if ids != list(range(count)):
                found.append(f"{name} shows {len(ids)} rows, {count} were appended")
        return found


class Bill:
    """Requests of all members, as their metrics have them."""

    def __init__(self) -> None:
        self._of: dict[int, Counter[str]] = {}
        self._lock = threading.Lock()

    def read(self, port: int) -> None:
        """What one says, if it does."""
        found: Counter[str] = Counter()
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith("lithify_store_requests_total{"):
                        verb = line.partition('verb="')[2].partition('"')[0]
                        found[verb.upper()] += round(float(line.rpartition(" ")[2]))
        except OSError:
            return  # not there yet, frozen, or gone
        with self._lock:
            self._of[port] = found

    def total(self) -> Counter[str]:
        with self._lock:
            return sum(self._of.values(), Counter())

    @staticmethod
    def dollars(requests: Counter[str]) -> float:
        reads = requests["GET"] + requests["HEAD"]
        return reads * DOLLARS_A_READ + (requests["PUT"] + requests["LIST"]) * DOLLARS_A_WRITE


@dataclass(slots=True)
class Seat:
    """Where members of one kind follow each other."""

    kind: str
    process: Process | None = None
    port: int = 0
    since_s: float = 0.0
    back_s: float = 0.0
    """When it is taken again, or its member thaws."""
    is_frozen: bool = False
    is_extra: bool = False

    @property
    def is_ready(self) -> bool:
        is_up = self.process is not None and not self.is_frozen
        return is_up and time.monotonic() - self.since_s > READY_AFTER_S


class Members:
    """All members, and what is done to them."""

    def __init__(
        self, nodes: Nodes, fleet: str, environment: dict[str, str], config: Path, rng: random.Random
    ) -> None:
        self.accidents: Counter[str] = Counter()
        self.problems: list[str] = []
        self.bill = Bill()
        self._nodes, self._fleet, self._environment, self._config = nodes, fleet, environment, config
        self._rng = rng
        self.seats = [Seat("coordinator") for _ in range(COORDINATORS)] + [
            Seat("worker") for _ in range(WORKERS)
        ]
        self._below: list[int] = []
        """Children of those that were killed."""
        for seat in self.seats:
            self._take(seat)

    def count(self) -> None:
        """Their requests so far."""
        for seat in tuple(self.seats):
            if seat.process is not None and not seat.is_frozen:
                self.bill.read(seat.port)

    def accident(self) -> None:
        """Something happens to somebody, if enough others are up; who was away comes back."""
        self.settle(time.monotonic())
        seat = self._rng.choice(self.seats)
        others = any(other.is_ready for other in self.seats if other.kind == seat.kind and other is not seat)
        if self._rng.random() < 0.1 and not any(other.is_extra for other in self.seats):
            extra = Seat("worker", is_extra=True, back_s=time.monotonic() + self._rng.uniform(*AWAY_S))
            self.seats.append(extra)
            self._take(extra)
            self.accidents["one joins"] += 1
        elif others and seat.process is not None and not seat.is_frozen and not seat.is_extra:
            what = self._rng.choice(
                (self._kill, self._kill, self._kill, self._end, self._freeze, self._remove)
            )
            what(seat)

    def settle(self, now_s: float) -> None:
        """Who was away for long enough, or is to leave, comes or goes."""
        for seat in tuple(self.seats):
            if now_s < seat.back_s:
                continue
            if seat.is_extra:
                self._terminate(seat)
                self.seats.remove(seat)
            elif seat.is_frozen and seat.process is not None:
                seat.process.thaw()
                seat.is_frozen, seat.since_s = False, now_s
            elif seat.process is None:
                self._take(seat)
            elif seat.process.exit_code is not None:
                self._ended_with(seat.process, seat.process.exit_code)
                self._take(seat)

    def end(self) -> None:
        """All end, in order."""
        self.settle(float("inf"))
        self.count()
        for seat in self.seats:
            self._terminate(seat)
        left = [pid for pid in self._below if is_alive(pid)]
        if left:
            self.problems.append(f"{len(left)} processes were left behind")

    def _take(self, seat: Seat) -> None:
        seat.port = free_port()
        options = ["--config", str(self._config), "--metrics-port", str(seat.port)]
        seat.process = self._nodes.command(
            "fleet", seat.kind, *options, self._fleet, environment=self._environment
        )
        seat.since_s = time.monotonic()

    def _kill(self, seat: Seat) -> None:
        assert seat.process is not None
        self.bill.read(seat.port)
        self._below += descendants(seat.process.pid)
        seat.process.kill()
        self._take(seat)
        self.accidents[f"{seat.kind} killed"] += 1

    def _end(self, seat: Seat) -> None:
        self._terminate(seat)
        self._take(seat)
        self.accidents[f"{seat.kind} ended"] += 1

    def _remove(self, seat: Seat) -> None:
        self._terminate(seat)
        seat.back_s = time.monotonic() + self._rng.uniform(*AWAY_S)
        self.accidents[f"{seat.kind} removed for a while"] += 1

    def _freeze(self, seat: Seat) -> None:
        assert seat.process is not None
        seat.process.freeze()
        seat.is_frozen, seat.back_s = True, time.monotonic() + self._rng.uniform(*FROZEN_S)
        self.accidents[f"{seat.kind} frozen"] += 1

    def _terminate(self, seat: Seat) -> None:
        if seat.process is None:
            return
        self.bill.read(seat.port)
        self._below += descendants(seat.process.pid)
        code = seat.process.terminate()
        is_starting = time.monotonic() - seat.since_s < READY_AFTER_S and code == -signal.SIGTERM
        if code != 0 and not is_starting:
            self._ended_with(seat.process, code)
        seat.process = None

    def _ended_with(self, process: Process, code: int) -> None:
        self.problems.append(f"{process.log.stem} ended with {code}: {process.errors[-500:]}")


@dataclass
class Said:
    """What the members have said, of all that ever were."""

    committed_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By dataset."""
    events: Counter[str] = field(default_factory=Counter)

    @classmethod
    def by(cls, nodes: Nodes) -> Said:
        found = cls()
        for process in nodes.all:
            for event in process.events():
                found.events[event["event"]] += 1
                if event["event"] == "Committed":
                    at_s = datetime.fromisoformat(event["time"]).timestamp()
                    found.committed_s[event["dataset"].removeprefix("file://")].append(at_s)
        for times in found.committed_s.values():
            times.sort()
        return found

    def longest_wait_s(self, url: str, flushed_s: list[float]) -> float:
        """From the flush with which there was enough to do, of those since the last commit, to the next."""
        longest_s, before_s = 0.0, 0.0
        for committed_s in self.committed_s.get(url, ()):
            first = bisect_right(flushed_s, before_s)
            if first + LAST_FLUSHES <= len(flushed_s):
                longest_s = max(longest_s, committed_s - flushed_s[first + LAST_FLUSHES - 1])
            before_s = committed_s
        return longest_s


class Soak:
    """One soak."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
        self._folder = folder
        self._given = arguments
        self._console = console
        self._problems: list[str] = []

    def run(self) -> bool:
        """Whether it has passed."""
        seeds = random.Random(self._given.seed)
        rngs = [random.Random(seeds.randrange(1 << 30)) for _ in range(3)]
        databases = Databases(self._folder / "databases", self._given.databases, rngs[0])
        tables = Tables(self._folder, self._given.tables, rngs[1])
        config = self._folder / "lithify.toml"
        config.write_text(CONFIG)
        for path in databases.paths:
            databases.write(path)
        fleet = lithify.Fleet(str(self._folder / "fleet"))
        fleet.init()
        fleet.create_queue("small", largest_bytes=50_000, reserved_slots=1)
        fleet.add(str(self._folder / "databases" / "*"), tenant="databases")
        fleet.add("iceberg://lake/db.*", tenant="tables")
        os.environ.update(tables.environment)
        with nodes_in(self._folder / "logs") as nodes:
            members = Members(nodes, fleet.url, tables.environment, config, rngs[2])
            started_s = time.monotonic()
            with repeating(members.count, COUNT_EVERY_S):
                with (
                    repeating(databases.write_some, WRITE_EVERY_S),
                    repeating(tables.append_some, APPEND_EVERY_S),
                ):
                    self._disturb(members, databases, tables, rngs[2])
                self._say("members are left alone, and each database is written to once more")
                members.settle(float("inf"))
                self._until_quiet(databases, tables)
                calm_ms = int(time.time() * 1000)
                for path in databases.paths:
                    databases.write(path, LAST_FLUSHES)
                self._until_quiet(databases, tables)
            lasted_s = time.monotonic() - started_s
            alive = len(fleet.status().members)
            members.end()
            self._problems += [*members.problems, *databases.problems(), *tables.problems()]
            self._check_left(databases, calm_ms)
            left = [member.seen.name for member in fleet.status().members]
            killed = sum(count for what, count in members.accidents.items() if "killed" in what)
            self._demand(
                len(left) <= killed, f"{len(left)} of {alive} members are listed, {killed} were killed"
            )
            said = Said.by(nodes)
            for process in nodes.all:
                self._demand("Traceback" not in process.errors, f"a traceback in {process.log.stem}")
        self._report(members, databases, tables, said, lasted_s)
        return not self._problems

    def _disturb(self, members: Members, databases: Databases, tables: Tables, rng: random.Random) -> None:
        end_s, said_s = time.monotonic() + self._given.minutes * 60, time.monotonic()
        while (now_s := time.monotonic()) < end_s:
            time.sleep(min(rng.uniform(*ACCIDENT_EVERY_S), max(0.0, end_s - now_s)))
            members.accident()
            if now_s - said_s > 30:
                said_s = now_s
                flushes = sum(map(len, databases.flushed_s.values()))
                appends = sum(tables.rows.values()) // ROWS
                total = sum(members.accidents.values())
                left_s = end_s - time.monotonic()
                self._say(f"{left_s:5.0f} s left: {flushes} flushes, {appends} appends, {total} accidents")

    def _until_quiet(self, databases: Databases, tables: Tables) -> None:
        waiting = [dataset_at(path) for path in databases.paths]

        def is_over() -> bool:
            waiting[:] = [dataset for dataset in waiting if not is_quiet(dataset)]
            return not waiting and max(tables.files().values(), default=0) <= LAST_FLUSHES

        with suppress(AssertionError):
            wait_until(is_over, QUIET_LIMIT_S)
        names = [dataset.url for dataset in waiting[:5]]
        self._demand(
            not waiting, f"{len(waiting)} databases still have work after {QUIET_LIMIT_S:g} s: {names}"
        )
        many = {name: count for name, count in tables.files().items() if count > LAST_FLUSHES}
        self._demand(not many, f"tables have files to compact after {QUIET_LIMIT_S:g} s: {many}")

    def _check_left(self, databases: Databases, calm_ms: int) -> None:
        """First what the fleet has collected by itself, then what is left."""

        def kept() -> list[str]:
            return [f"{path.name}/{name}" for path in databases.paths for name in _kept_inputs(path)]

        with suppress(AssertionError):
            wait_until(lambda: not kept(), COLLECTED_WITHIN_S)
        found = kept()
        self._demand(not found, f"the fleet keeps {len(found)} SSTs that nothing needs: {found[:5]}")
        for path in databases.paths:
            with lithify.open(str(path)) as opened:
                opened.collect_garbage(delete=True, min_age_s=1, wal_fences=True)
            dataset = dataset_at(path)
            limit_ms = youngest_garbage_ms(Admin(path))
            self._demand(limit_ms > calm_ms, f"{path.name}: the limits of its garbage did not move on")
            left = leaked(path, dataset, time.time(), limit_ms)
            self._demand(not left, f"{path.name}: {len(left)} objects leaked: {', '.join(left[:5])}")
            check_state_files(dataset, path)

    def _report(
        self, members: Members, databases: Databases, tables: Tables, said: Said, lasted_s: float
    ) -> None:
        waits = sorted(
            (said.longest_wait_s(str(path), databases.flushed_s[path]), path.name) for path in databases.paths
        )
        longest_s, slowest = waits[-1]
        starved_s = self._given.starved
        self._demand(longest_s <= starved_s, f"{slowest} waited {longest_s:.0f} s for a commit")
        never = [path.name for path in databases.paths if not said.committed_s.get(str(path))]
        self._demand(not never, f"never compacted: {never[:5]}")
        requests = members.bill.total()
        dollars = Bill.dollars(requests)
        rows: dict[str, str] = {
            "flushes, appends": f"{sum(map(len, databases.flushed_s.values()))}, "
            f"{sum(tables.rows.values()) // ROWS}",
            "accidents": ", ".join(f"{count} {what}" for what, count in sorted(members.accidents.items())),
            **{
                name: str(said.events[name])
                for name in ("Committed", "Reclaimed", "Lost", "Failed", "EpochTaken", "GarbageCollected")
            },
            "longest wait for a commit": f"{longest_s:.0f} s ({slowest}); half of the databases at most "
            f"{waits[len(waits) // 2][0]:.0f} s",
            "requests": ", ".join(f"{count} {verb}" for verb, count in sorted(requests.items())),
            "bill": f"${dollars:.4f} in {lasted_s / 60:.1f} min, ${dollars / lasted_s * 86_400:.2f} a day",
        }
        table = Table(
            "what", "how much", title=f"{len(databases.paths)} databases, {len(tables.names)} tables"
        )
        for what, value in rows.items():
            table.add_row(what, value)
        self._console.print(table)
        for problem in self._problems:
            self._console.print(f"[red]{problem}[/]", highlight=False)
        self._console.print("[red]FAILED[/]" if self._problems else "[green]passed[/]")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def _demand(self, is_so: bool, problem: str) -> None:
        if not is_so:
            self._problems.append(problem)


def _kept_inputs(path: Path) -> list[str]:
    """SSTs that nothing needs, and that may be collected."""
    found = leaked(path, dataset_at(path), time.time(), youngest_garbage_ms(Admin(path)))
    return [name for name in found if name.startswith("compacted/")]


def main() -> int:
    """Soak for as long as asked for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleet.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--databases", type=int, default=DATABASES)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--starved", type=float, default=STARVED_S, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--keep", action="store_true", help="keep databases, tables and logs")
    arguments = parser.parse_args()
    console = Console()
    sizes = f"--databases {arguments.databases} --tables {arguments.tables}"
    console.print(
        f"python -m tests.fleet.soak --minutes {arguments.minutes:g} {sizes} --seed {arguments.seed}"
    )
    folder = Path(tempfile.mkdtemp(prefix="lithify-fleet-soak-"))
    passed = False
    try:
        passed = Soak(folder, arguments, console).run()
    finally:
        if passed and not arguments.keep:
            shutil.rmtree(folder)
        else:
            console.print(f"databases, tables and logs: {folder}", highlight=False)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""A fleet: databases and tables of three tenants, one of them hot, served by one process.

1. Make databases with SlateDB's own client and tables with PyIceberg, of the tenants red, green and blue.
   Blue is hot: most are its. All have work.
2. Make a fleet, with a queue of its own for what is small, and add what is blue's, by two patterns.
3. Run `lithify fleet run` in a process of its own. When it works for blue, what is red's and green's
   is added.
4. Tell how long each tenant waited: red and green do not stand behind all that blue had before them.
5. Read everything with SlateDB's client and PyIceberg, and compare with what was written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from tests.judge.official import Put, copy_database, open_db

from demo.shell import lithify, say

HOT, OTHERS = "blue", ("red", "green")
DATABASES = {HOT: 150, **dict.fromkeys(OTHERS, 20)}
TABLES = {HOT: 4, **dict.fromkeys(OTHERS, 3)}
FLUSHES = 5
KEYS = 500
VALUE_BYTES = 100
FILES = 6
ROWS = 1_000
HEAD_START = 10
"""Datasets of the hot tenant that are compacted before the others write."""
LIMIT_S = 300.0
SEED = 7
PROPERTIES = {"lithify.min-saved-files": "1", "lithify.allowed-lateness-seconds": "0"}
SCHEMA = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("id", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)

Rows = dict[bytes, bytes]


def demonstrate(folder: Path) -> bool:
    """Whether every row was right."""
    folder.mkdir(parents=True)
    total = sum(DATABASES.values()) + sum(TABLES.values())
    say(f"1. Making {total} databases and tables of three tenants, most of them {HOT}'s: {folder}")
    made = _Tenants(folder)
    for tenant in DATABASES:
        made.write(tenant)
    say("\n2. A fleet of them")
    fleet = str(folder / "fleet")
    lithify("fleet", "init", fleet, quietly=True)
    lithify("queue", "create", "--largest", "1MB", "--per-slot", "16", fleet, "small")

    def add(tenant: str) -> None:
        patterns = str(folder / "tenants" / tenant / "*"), f"iceberg://demo/{tenant}.*"
        command = ("fleet", "add", "--tenant", tenant, fleet, *patterns)
        lithify(*command, environment=made.environment, quietly=True)

    add(HOT)
    say("\n3. Serving it: one process watches, plans, works and commits")
    service = _Service(fleet, folder / "fleet.log", made.environment)
    try:
        service.until(lambda: len(service.done()) >= HEAD_START)
        late_s = time.time()
        say(f"   {HOT} is being served; now {' and '.join(OTHERS)} come as well")
        for tenant in OTHERS:
            add(tenant)
        service.until(lambda: len(service.done()) >= total // 2)
        lithify("fleet", "status", fleet, environment=made.environment)
        service.until(lambda: len(service.done()) >= total)
    finally:
        service.end()
    done = service.done()
    began_s = {HOT: min(done.values()), **dict.fromkeys(OTHERS, late_s)}
    say("\n4. Who waited for how long")
    for tenant in DATABASES:
        ended = sorted(done[url] - began_s[tenant] for url in made.urls(tenant))
        say(f"   {tenant:>5}: {len(ended):3} compacted, half within {ended[len(ended) // 2]:.0f} s, "
            f"all within {ended[-1]:.0f} s")  # fmt: skip
    say("\n5. Reading everything back with SlateDB's client and PyIceberg")
    wrong = made.wrong()
    say(f"   {'every row is right' if not wrong else f'{len(wrong)} WITH WRONG ROWS: {wrong[0]}'}")
    return not wrong


class _Tenants:
    """What the tenants have, and what must be read from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        uri, warehouse = f"sqlite:///{folder}/catalog.db", (folder / "warehouse").as_uri()
        self.environment = {
            "PYICEBERG_CATALOG__DEMO__URI": uri,
            "PYICEBERG_CATALOG__DEMO__WAREHOUSE": warehouse,
        }
        self._catalog = SqlCatalog("demo", uri=uri, warehouse=warehouse)
        self._templates: dict[str, Path] = {}
        self._rows: dict[str, Rows] = {}
        rng = random.Random(SEED)
        for tenant in DATABASES:
            self._templates[tenant], self._rows[tenant] = self._database(tenant, rng)
            self._catalog.create_namespace(tenant)

    def urls(self, *tenants: str) -> list[str]:
        """As the fleet names them."""
        databases = [str(path) for tenant in tenants for path in self._databases(tenant)]
        return databases + [
            f"iceberg://demo/{tenant}.{name}" for tenant in tenants for name in _tables(tenant)
        ]

    def write(self, tenant: str) -> None:
        """All its databases and tables are there now, and have work."""
        for path in self._databases(tenant):
            copy_database(self._templates[tenant], path)
        for name in _tables(tenant):
            table = self._catalog.create_table(f"{tenant}.{name}", SCHEMA, properties=PROPERTIES)
            for number in range(FILES):
                ids = range(number * ROWS, (number + 1) * ROWS)
                table.append(pa.table([[START] * ROWS, list(ids)], schema=SCHEMA))

    def wrong(self) -> list[str]:
        """Which do not show what was written, and only that."""
        found = []
        for tenant in DATABASES:
            for path in self._databases(tenant):
                with open_db(path) as database:
                    if dict(database.scan()) != self._rows[tenant]:
                        found.append(str(path))
            for name in _tables(tenant):
                ids = self._catalog.load_table(f"{tenant}.{name}").scan().to_arrow()["id"].to_pylist()
                if sorted(ids) != list(range(FILES * ROWS)):
                    found.append(f"{tenant}.{name}")
        return found

    def _databases(self, tenant: str) -> list[Path]:
        return [self._folder / "tenants" / tenant / f"db-{n:03}" for n in range(DATABASES[tenant])]

    def _database(self, tenant: str, rng: random.Random) -> tuple[Path, Rows]:
        path, rows = self._folder / "templates" / tenant, Rows()
        for _ in range(FLUSHES):
            with open_db(path) as database:
                new = {b"%s-%06d" % (tenant.encode(), rng.randrange(10 * KEYS)): rng.randbytes(VALUE_BYTES)
                       for _ in range(KEYS)}  # fmt: skip
                database.write_batch([Put(key, value) for key, value in new.items()])
                database.flush()
                rows |= new
        return path, rows


def _tables(tenant: str) -> list[str]:
    return [f"t{n}" for n in range(TABLES[tenant])]


class _Service:
    """`lithify fleet run`, and what it says."""

    def __init__(self, fleet: str, log: Path, environment: Mapping[str, str]) -> None:
        options = ["--log-format", "json", "--set", "spark.master=local[2]"]
        say(f"$ lithify fleet run {' '.join(options)} {fleet} &")
        command = [sys.executable, "-m", "lithify.cli.main", "fleet", "run", *options, fleet]
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(command, stderr=errors, env={**os.environ, **environment})

    def done(self) -> dict[str, float]:
        """What is compacted, and when that was."""
        lines = self._log.read_text().split("\n")[:-1]
        facts: list[dict[str, Any]] = [json.loads(line) for line in lines if '"Committed"' in line]
        return {
            fact["dataset"].removeprefix("file://"): datetime.fromisoformat(fact["time"]).timestamp()
            for fact in reversed(facts)
        }

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not holds():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the fleet is not served: {self._log.read_text()[-2000:]}")
            time.sleep(0.2)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

"""Killing `lithify compact` between its lease and its epoch, with SlateDB's coordinator open afterwards.

1. The command runs in a process of its own (`python -m tests.processes.lease_kills POINT URL`). Once it has
   brought the announcement to its place, every further event that Python's audit hooks show is a *point*, up
   to and with the moment before the manifest is linked to its name. It kills itself at the wanted point.
2. The official client opens the database, with a coordinator inside, and takes the next epoch.
3. `lithify compact` must end with exit code 3. The client must not have been closed: it writes, flushes and
   reads on.

`make chaos` plays 30 kills, spread over all points; the suite plays a few.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.model import Manifest
from tests.compacting import dataset_at
from tests.engine.waiting import child_environment, wait_until
from tests.judge.official import compactor_settings, copy_database, open_db

LEASE = "coordinator.json"
EXIT_ALIVE = 3
LIMIT_S = 120.0
FLUSHES = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """What came of one."""

    point: int
    epoch_before: int
    epoch_after: int
    exit_code: int
    """Of the next `lithify compact`, without `--take-over`."""
    is_open: bool
    """Whether the client could go on."""

    @property
    def is_good(self) -> bool:
        is_between = self.epoch_before == self.epoch_after - 1
        return is_between and self.exit_code == EXIT_ALIVE and self.is_open


def kills(folder: Path, count: int) -> Iterator[Kill]:
    """So many kills, at points spread evenly over all there are; every second one on a database that Lithify
    has coordinated before."""
    template = make_database(folder / "template")
    last = points(copy_database(template, folder / "rehearsal"))
    for number in range(count):
        point = 1 + number * last // count
        path = copy_database(template, folder / f"kill-{number}" / "db")
        if number % 2:
            with Leadership(dataset_at(path), SystemClock(), RandomIds()).acquire():
                pass
        yield kill(path, point)
        shutil.rmtree(path)


def make_database(path: Path) -> Path:
    """A database in which there is something to compact."""
    with open_db(path) as database:
        for n in range(FLUSHES):
            database.put(b"k%d" % n, b"v")
            database.flush()
    return path


def points(path: Path) -> int:
    """How many points there are; the database is not to be used any more."""
    ran = _run(path, 0)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("points "))
    return int(line.split()[1])


def kill(path: Path, point: int) -> Kill:
    """Kill a run on the database at one point, open the database, and try again."""
    before = _manifest(path).compactor_epoch
    died = _run(path, point)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (path / "lithify" / LEASE).exists()
    assert _manifest(path).compactor_epoch == before
    with open_db(path, settings={"compactor_options": compactor_settings()}) as database:
        wait_until(lambda: _manifest(path).compactor_epoch > before)
        database.put(b"first", b"v")
        database.flush()
        command = [str(Path(sys.executable).with_name("lithify")), "compact", str(path)]
        tried = _call(command)
        database.put(b"second", b"v")
        database.flush()
        rows = dict(database.scan())
        is_open = (
            not database.is_closed() and {b"first", b"second"} <= rows.keys() and len(rows) == FLUSHES + 2
        )
        return Kill(point, before, _manifest(path).compactor_epoch, tried.returncode, is_open)


def _manifest(path: Path) -> Manifest:
    return dataset_at(path).snapshot()


def _run(path: Path, point: int) -> subprocess.CompletedProcess[str]:
    return _call([sys.executable, "-m", "tests.processes.lease_kills", str(point), str(path)])


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


# ------------------------------------------------------------------------------ the process


def main() -> None:
    """`lithify compact URL`, killed at point POINT; if that is 0, at the last, whose number it prints."""
    from lithify.cli.main import app

    point, url = int(sys.argv[1]), sys.argv[2]
    passed: list[str] = []
    is_between = False

    def look(event: str, arguments: Sequence[object]) -> None:
        nonlocal is_between
        if is_between:
            passed.append(event)
            is_last = event == "os.link" and str(arguments[1]).endswith(".manifest")
            if is_last:
                print("points", len(passed), file=sys.stderr, flush=True)
            if is_last or len(passed) == point:
                os.kill(os.getpid(), signal.SIGKILL)
        elif event in ("os.link", "os.rename") and str(arguments[1]).endswith(LEASE):
            is_between = True

    sys.addaudithook(look)
    app(["compact", url])


if __name__ == "__main__":
    main()

"""A run that dies at any of its store calls leaves a database that opens with every row, and the next
run finishes the work."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock, crash_at_every_call
from tests.compacting import check_state_files, compact, dataset_at
from tests.judge.official import Delete, Put, open_db
from tests.judge.rows import read_database
from tests.parts import in_parts

NOW_MS = int(time.time() * 1000)
KILLS = 3

Model = dict[bytes, bytes]


def make_database(path: Path, keys: int = 50, value: bytes = b"v") -> Model:
    """Six overlapping flushes with overwrites and deletes; what a scan must show."""
    model: Model = {}
    with open_db(path) as database:
        for batch in range(6):
            rows = {b"k%06d" % n: b"%d-%s" % (batch, value) for n in range(batch, keys, 2)}
            gone = [b"k%06d" % n for n in range(batch, keys, 7)]
            database.write_batch([Put(k, v) for k, v in rows.items() if k not in gone])
            database.write_batch([Delete(k) for k in gone])
            model |= rows
            for key in gone:
                model.pop(key, None)
            database.flush()
    return model


def check(path: Path, model: Model) -> None:
    with open_db(path) as database:
        assert dict(database.scan()) == model


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    path = tmp_path_factory.mktemp("template") / "db"
    return path, make_database(path)


def test_a_crash_at_any_store_call_loses_nothing_and_the_next_run_finishes(
    template: tuple[Path, Model], tmp_path: Path
) -> None:
    source, model = template
    copies = itertools.count()
    current: list[Path] = []

    def make_store() -> ObjectStore:
        current[:] = [tmp_path / f"copy{next(copies)}"]
        shutil.copytree(source, current[0])
        return open_store(str(current[0]))[0]

    def run(store: ObjectStore) -> None:
        # A clock that stands still keeps the calls of all runs the same.
        clock = ManualClock(NOW_MS)
        dataset = dataset_at(current[0], wrap=lambda _: store, clock=clock)
        compact(dataset, clock=clock)

    sites = 0
    for site, _ in crash_at_every_call(make_store, run):
        sites += 1
        path = current[0]
        check(path, model)
        later = ManualClock(NOW_MS + 60_000)
        compact(dataset_at(path, clock=later), clock=later)
        rows = read_database(path)[b""]
        assert not rows.l0, site
        assert len(rows.runs) == 1, site
        check(path, model)
        check_state_files(dataset_at(path), path)
        shutil.rmtree(path)
    assert sites > 20


PROGRAM = """
import os, signal, sys
from tests.compacting import compact, dataset_at

path, suffix, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die(event, arguments):
    global left
    if event in ("os.link", "os.rename") and os.fspath(arguments[1]).endswith(suffix):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
print("ready", flush=True)
compact(dataset_at(path, max_sst_size=100_000))
"""
"""Dies when it has written the n-th file of a kind in full, but not yet under its name."""


@contextmanager
def compacting(path: Path, suffix: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, str(path), suffix, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.wait()


def check_what_is_left(path: Path, model: Model) -> None:
    """Reads every SST that is named: none may be cut short. Then the next run finishes."""
    check(path, model)
    assert not compact(dataset_at(path), take_over=True).failures
    check(path, model)
    assert not read_database(path)[b""].l0


@in_parts(KILLS)
def test_sigkill_at_any_time_loses_nothing(part: int, tmp_path: Path) -> None:
    path = tmp_path / "db"
    model = make_database(path, keys=6000, value=b"x" * 300)
    with compacting(path, "nothing", 1) as child:
        time.sleep(0.05 + 0.24 * part)
        child.send_signal(signal.SIGKILL)
    check_what_is_left(path, model)


@pytest.mark.parametrize(
    ("suffix", "number"),
    [
        (".json", 1),
        *((".manifest", n) for n in (1, 2)),
        *((".compactions", n) for n in (1, 2)),
        (".sst", 1),
    ],
    ids=str,
)
def test_what_was_written_and_not_published_is_in_nobodys_way(
    template: tuple[Path, Model], tmp_path: Path, suffix: str, number: int
) -> None:
    source, model = template
    path = Path(shutil.copytree(source, tmp_path / "db"))
    with compacting(path, suffix, number) as child:
        pass
    assert child.returncode == -signal.SIGKILL
    # What goes out at the same time may be left too.
    left = [file.name for file in path.rglob("*#*") if not file.name.endswith("#0")]
    assert [name for name in left if name.partition("#")[0].endswith(suffix)]
    check_what_is_left(path, model)

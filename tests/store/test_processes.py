"""Stores under several processes: who wins a race, and what a killed one leaves behind."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from lithify.store.urls import open_store
from tests.s3 import S3
from tests.store import writing

PROCESSES = 4
KILLS = 6
MAX_KILLS = 60
"""Until one has died while it wrote, which on a busy machine may take long."""
START_LIMIT_S = 150
_SPAWN = multiprocessing.get_context("spawn")
_REPOSITORY = Path(__file__).parents[2]


def started_together() -> ProcessPoolExecutor:
    """Processes none of which begins before all have started, and that wait for each other."""
    barrier = _SPAWN.Barrier(PROCESSES, timeout=START_LIMIT_S)
    return ProcessPoolExecutor(
        PROCESSES, mp_context=_SPAWN, initializer=writing.start_together, initargs=(barrier,)
    )


@pytest.mark.parametrize(("kind", "count"), [("local", 300), ("s3", 60)])
def test_of_several_processes_exactly_one_creates_an_object(
    kind: str, count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = str(tmp_path / "race"), {}
    if kind == "s3":
        server: S3 = request.getfixturevalue("s3")
        url, options = f"s3://{server.bucket()}/race", server.options
    names = [f"object{number}" for number in range(count)]
    with started_together() as pool:
        authors = [f"process{number}" for number in range(PROCESSES)]
        futures = [pool.submit(writing.create_all, url, options, author, names) for author in authors]
        won = {
            name: author for author, future in zip(authors, futures, strict=True) for name in future.result()
        }
        assert sum(len(future.result()) for future in futures) == len(won) == count
    assert len(set(won.values())) > 1, "there was no race"
    store, prefix = open_store(url, options)
    assert {meta.key.rsplit("/", 1)[1] for meta in store.list(prefix)} == set(names)
    assert all(store.get(f"{prefix}/{name}") == author.encode() for name, author in won.items())


def test_replacing_by_etag_loses_no_step_of_several_processes(tmp_path: Path) -> None:
    store, prefix = open_store(str(tmp_path))
    store.put(f"{prefix}/counter", b"0")
    with started_together() as pool:
        for future in [pool.submit(writing.increment, str(tmp_path), 50) for _ in range(PROCESSES)]:
            future.result()
    assert store.get(f"{prefix}/counter") == b"200"


def kill_while_writing(folder: Path, how: str, after_s: float) -> tuple[set[str], set[str]]:
    """Let a process write and kill it; the names that are listed and those that are not."""
    command = [sys.executable, "-m", "tests.store.writing", str(folder), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(after_s)
        process.kill()
    store, prefix = open_store(str(folder))
    listed = {meta.key for meta in store.list(prefix)}
    assert all(writing.whole(store.get(key)) for key in listed)
    files = {str(path).lstrip("/") for path in folder.rglob("*") if path.is_file()}
    return {key.removeprefix(f"{prefix}/") for key in listed}, files - listed


def test_a_process_killed_in_the_middle_of_an_upload_shows_nothing_of_it(tmp_path: Path) -> None:
    listed, hidden = kill_while_writing(tmp_path, "half", 0)
    assert listed == {"put"}
    assert len(hidden) == 2
    assert open_store(str(tmp_path))[0].get(f"{str(tmp_path)[1:]}/put")[:1] == b"o"


def test_a_process_killed_at_any_time_never_shows_part_of_an_object(tmp_path: Path) -> None:
    rng = random.Random(5)
    leftovers = 0
    for kill in range(MAX_KILLS):
        if kill >= KILLS and leftovers:
            break
        # Somewhere in a round of writes.
        listed, hidden = kill_while_writing(tmp_path / f"kill{kill}", "for-ever", rng.uniform(0, 0.15))
        assert "put" in listed
        assert all("#" in name for name in hidden)
        leftovers += len([name for name in hidden if not name.endswith("#0")])
    assert leftovers, "no process died while it wrote"

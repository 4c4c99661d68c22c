"""Wait for something another process does, for a limited time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyspark

from lithify.base.usercache import cache_folder
from lithify.engine.archive import archive_path
from lithify.engine.java import find_java

LIMIT_S = 120.0
"""Generous, because a busy machine may take many times as long; it only matters when a test fails."""


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {limit_s} seconds"
        time.sleep(0.05)


def noted_pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def replaces_a_file(pid: int) -> bool:
    """Whether a process has a lock file of the local store open."""
    try:
        return any(file.readlink().name.endswith("#0") for file in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # it has ended
        return False


class Pid(int):
    """Of a process that was seen: when it has ended, another may get the same number."""

    started: str


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie. One whose first thread has ended is alive for as long as
    another has not: until then it keeps its files and their locks."""
    process = Path(f"/proc/{pid}")
    try:
        state, _, started = _state_of(process)
        if isinstance(pid, Pid) and started != pid.started:
            return False
        return state != "Z" or len(list((process / "task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state_of(process: Path) -> tuple[str, int, str]:
    """Its state, its parent, and when it was started."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), fields[19]


def descendants(pid: int) -> list[Pid]:
    """All processes below `pid`."""
    children: dict[int, list[Pid]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                _, parent, started = _state_of(entry)
            except (FileNotFoundError, ProcessLookupError):
                continue
            child = Pid(entry.name)
            child.started = started
            children.setdefault(parent, []).append(child)
    found: list[Pid] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def spark_archive(folder: Path | None = None) -> Path:
    """Where the class archive is, or will be, in this cache folder, or else in that of the tests."""
    cache = cache_folder(os.environ)
    java, _ = find_java(os.environ, cache)
    return archive_path(folder or cache, java, Path(pyspark.__file__).parent, pyspark.__version__)


def settled_cache(folder: Path) -> Path:
    """A cache folder with the class archive of the tests, if there is one, and in which it was tried just
    now: no session that closes begins to make it, which would go on in the background for a while."""
    path = spark_archive(folder)
    path.parent.mkdir(parents=True)
    path.with_suffix(".attempt").touch()
    if spark_archive().exists():
        path.symlink_to(spark_archive())
    return folder


def repository() -> Path:
    return Path(__file__).parents[2]


def child_environment() -> dict[str, str]:
    """The environment for a Python process that can import the tests, and the same Lithify as this one."""
    return {**os.environ, "PYTHONPATH": python_path()}


def python_path() -> str:
    """What `PYTHONPATH` must be for that."""
    return os.pathsep.join(filter(None, (str(repository()), os.environ.get("PYTHONPATH"))))

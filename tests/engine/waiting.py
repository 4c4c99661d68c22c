"""Wait for something another process does, for a limited time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 30.0


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {limit_s} seconds"
        time.sleep(0.05)


def noted_pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def repository() -> Path:
    return Path(__file__).parents[2]


def child_environment() -> dict[str, str]:
    """The environment for a Python process that can import the tests, and the same Lithify as this one."""
    return {**os.environ, "PYTHONPATH": python_path()}


def python_path() -> str:
    """What `PYTHONPATH` must be for that."""
    return os.pathsep.join(filter(None, (str(repository()), os.environ.get("PYTHONPATH"))))

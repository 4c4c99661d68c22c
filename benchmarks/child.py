"""Measurements run in processes of their own, so that none inherits another's memory, threads or
compiled code. A child prints one JSON document as its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHILD_TIMEOUT_S = 600


class ChildFailed(RuntimeError):
    """A measuring process failed or took too long."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work took."""

    wall_s: float
    cpu_s: float
    """User and system time of all threads."""


def run_child(module: str, *arguments: str) -> Any:
    """Run `python -m module arguments…` and give the JSON document it prints last."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        raise ChildFailed(f"{' '.join(command)} took more than {CHILD_TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise ChildFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cost_of_cp(source: Path, destination: Path) -> Cost:
    """Wall time of `cp -R`, and the CPU time the kernel accounts to that process."""
    started_s = time.perf_counter()
    process = subprocess.Popen(["cp", "-R", str(source), str(destination)])
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise ChildFailed(f"cp ended with {process.returncode}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime)

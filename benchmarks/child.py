"""Measurements run in processes of their own, so that none inherits another's memory, threads or
compiled code. A child prints one JSON document as its last line.

What writes files takes fresh pages. In a virtual machine that gives free memory back to its host, some of
these cost a fault in the host, which the guest sees as its own system time: the same `cp` then takes
between one and five times as long. That is why system time is told apart in every sample, and why a
measurement is to be trusted only when the machine does nothing else. (Touching and freeing memory
beforehand was tried: it makes matters worse.)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.waiting import descendants

CHILD_TIMEOUT_S = 600


class ChildFailed(RuntimeError):
    """A measuring process failed or took too long."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work took."""

    wall_s: float
    cpu_s: float
    """User and system time of all threads."""
    system_cpu_s: float
    """The system's part of it."""


class Stopwatch:
    """Measures this process from its making on."""

    def __init__(self) -> None:
        self._wall_s = time.perf_counter()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)

    def read(self) -> Cost:
        """What the process took so far."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        user_s, system_s = usage.ru_utime - self._usage.ru_utime, usage.ru_stime - self._usage.ru_stime
        return Cost(time.perf_counter() - self._wall_s, user_s + system_s, system_s)


def cpu_s_of_tree(pid: int | None = None) -> float:
    """User and system time so far of a process, of all below it, and of those below it that have ended and
    were waited for; of this process by default."""
    total, ticks_per_s = 0, os.sysconf("SC_CLK_TCK")
    root = os.getpid() if pid is None else pid
    for one in (root, *descendants(root)):
        with suppress(FileNotFoundError, ProcessLookupError):
            facts = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, facts[11:15]))
    return total / ticks_per_s


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
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_stime)

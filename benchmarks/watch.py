"""What a process and everything it started costs: processor time and memory.

1. CPU time is that of all living processes of the tree and of those they have waited for. It is read
   before and after the measured work, in the process that does the work.
2. Peak memory is sampled from outside, every `SAMPLE_S`: the sum of the proportional set sizes of the tree,
   in which memory that several processes share counts once. It is that of the whole life of the process,
   start of Python, Java and libraries included. Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

SAMPLE_S = 0.1
TIMEOUT_S = 900
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FIRST_TIME, _LAST_TIME = 11, 15
"""utime, stime, cutime and cstime among the fields of /proc/PID/stat that follow the name."""


class WatchedFailed(RuntimeError):
    """A watched process failed or took too long."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What a process printed last, and the most memory its tree had."""

    document: Any
    peak_memory_bytes: int


class TreeStopwatch:
    """Measures this process and its descendants from its making on."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), tree_cpu_s(os.getpid())

    def read(self) -> tuple[float, float]:
        """Wall and CPU seconds so far."""
        return time.perf_counter() - self._wall_s, tree_cpu_s(os.getpid()) - self._cpu_s


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and of all its descendants, so far."""
    ticks = 0
    for pid in tree(root):
        with suppress(OSError):  # it has just ended; its parent has its time
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_FIRST_TIME:_LAST_TIME]))
    return ticks / _TICKS_PER_S


def tree(root: int) -> Iterator[int]:
    """The ids of a process and of its living descendants."""
    yield root
    with suppress(OSError):
        for task in Path(f"/proc/{root}/task").iterdir():
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield from tree(int(child))


def run_watched(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> Watched:
    """Run a command that prints one JSON document as its last line."""
    deadline_s = time.monotonic() + timeout_s
    peak = 0
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        while process.poll() is None:
            if time.monotonic() > deadline_s:
                process.kill()
                process.wait()
                raise WatchedFailed(f"{' '.join(command)} took more than {timeout_s:g} s")
            peak = max(peak, _tree_memory_bytes(process.pid))
            time.sleep(SAMPLE_S)
        output.seek(0)
        errors.seek(0)
        lines = output.read().strip().splitlines()
        if process.returncode != 0 or not lines:
            raise WatchedFailed(
                f"{' '.join(command)} ended with {process.returncode}:\n{errors.read()[-4000:]}"
            )
    return Watched(json.loads(lines[-1]), peak)


def _tree_memory_bytes(root: int) -> int:
    total_kib = 0
    for pid in tree(root):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total_kib += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total_kib * 1024


if sys.platform != "linux":
    raise ImportError("costs of process trees are read from /proc, which only Linux has")

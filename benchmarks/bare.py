"""What the machine allows: the merge alone, in one process and in two, each bound to a core of its own.

No Spark and no coordination takes part. Where two such processes do not do twice the work of one, the cores
share what the work is bound by (memory, disk), and no service around it could do better. Started by
`bare_speed_up` as `python -m benchmarks.bare DATABASE CORE MERGES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.child import ChildFailed
from benchmarks.data import copy_for_a_run
from benchmarks.ours import one_task
from lithify.datasets.slatedb.compaction.execute import execute_merge
from lithify.datasets.slatedb.kernel.warm_up import warm_up

MERGES = 4


def bare_speed_up(database: Path, folder: Path) -> float:
    """The work per second of two processes over that of one."""
    return 2 * _wall_s(database, folder, 1) / _wall_s(database, folder, 2)


def _wall_s(database: Path, folder: Path, processes: int) -> float:
    """The seconds in which each process has merged `database` `MERGES` times."""
    copies = [copy_for_a_run(database, folder / f"bare{core}") for core in range(processes)]
    os.sync()
    with ExitStack() as stack:
        children = []
        for core, copy in enumerate(copies):
            command = [sys.executable, "-m", "benchmarks.bare", str(copy), str(core), str(MERGES)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            children.append(stack.enter_context(child))
        for child in children:
            _line(child)  # it is ready
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        walls_s = [float(_line(child)) for child in children]
    for copy in copies:
        shutil.rmtree(copy)
    return max(walls_s)


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise ChildFailed(f"a merge ended with exit code {child.wait()}")
    return line


def _merge(database: Path, core: int, merges: int) -> None:
    os.sched_setaffinity(0, {core})
    warm_up()
    task = one_task(database)
    execute_merge(task)
    print(flush=True)
    sys.stdin.readline()
    started_s = time.perf_counter()
    for _ in range(merges):
        execute_merge(task)
    print(time.perf_counter() - started_s, flush=True)


if __name__ == "__main__":
    _merge(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

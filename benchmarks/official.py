"""The official compactor at work, measured: `python -m benchmarks.official CASE DATABASE SUBCOMPACTIONS`.

1. A process opens the database with the official client, a coordinator and a worker inside, all polling
   intervals 50 ms, the scheduler told to do nothing by itself. Opening is not measured, nor is the first
   `IDLE_S` after it.
2. Idle: for `IDLE_S` it only waits, looking at the folder of compactions files every `LOOK_S`. The CPU
   time of the process per second is the price of being open.
3. A full compaction of the eight L0s is submitted; the process goes on waiting in the same way until
   the compaction is completed.
4. CPU of the merge = CPU of the process between submission and completion, all threads, less the idle
   price for that time.
5. Wall time comes from the modification times of the compactions files, so watching costs nothing:
   *merge* is from the version that says Running to the one that says Compacted, *whole* from Submitted
   to Completed. The second contains the client's polling and the publication of the manifest.

Inputs are in the page cache; outputs are written to the same file system, as for every other side.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.judge.official import Admin, compactor_settings, full_compaction, open_db

from benchmarks.cases import Case
from benchmarks.child import CHILD_TIMEOUT_S, Cost, Stopwatch, run_child
from benchmarks.data import open_options

POLL_MS = 50
IDLE_S = 1.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class OfficialRun:
    """What one compaction by the official client took."""

    merge_wall_s: float
    whole_wall_s: float
    cpu_s: float
    system_cpu_s: float
    idle_cpu_per_s: float
    input_bytes: int
    output_bytes: int
    """Bytes of data blocks in the outputs."""


def measure_official(case: Case, database: Path, subcompactions: int) -> OfficialRun:
    """Compact `database` in a child process."""
    arguments = (json.dumps(asdict(case)), str(database), str(subcompactions))
    return OfficialRun(**run_child("benchmarks.official", *arguments))


def _compact(case: Case, database: Path, subcompactions: int) -> OfficialRun:
    options = open_options(case)
    compactor = compactor_settings(poll_ms=POLL_MS, max_subcompactions=subcompactions)
    options["settings"] = {**options["settings"], "compactor_options": compactor}
    admin = Admin(database)
    input_bytes = sum(sst.stat().st_size for sst in database.rglob("*.sst"))
    with open_db(database, **options):
        _wait(IDLE_S, database)
        idle = _wait(IDLE_S, database)
        watch = Stopwatch()
        (tree,) = admin.trees()
        spec = full_compaction(tree, (tree,))
        compaction = admin.submit_compaction(spec.l0_view_ids, spec.run_ids, spec.destination)
        _wait_until_settled(admin, compaction, database)
        busy = watch.read()
        times = dict(_times(admin, compaction, database))
        (run,) = admin.trees()[0].runs
    return OfficialRun(
        merge_wall_s=times["COMPACTED"] - times["RUNNING"],
        whole_wall_s=times["COMPLETED"] - times["SUBMITTED"],
        cpu_s=busy.cpu_s - idle.cpu_s / idle.wall_s * busy.wall_s,
        system_cpu_s=busy.system_cpu_s - idle.system_cpu_s / idle.wall_s * busy.wall_s,
        idle_cpu_per_s=idle.cpu_s / idle.wall_s,
        input_bytes=input_bytes,
        output_bytes=sum(view.sst_info.filter_offset for view in run.views),
    )


def _versions(database: Path) -> list[str]:
    folder = database / "compactions"
    return sorted(path.name for path in folder.glob("*.compactions")) if folder.exists() else []


def _wait(duration_s: float, database: Path) -> Cost:
    """Wait as `_wait_until_settled` waits; what it took."""
    watch, end_s = Stopwatch(), time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        _versions(database)
        time.sleep(LOOK_S)
    return watch.read()


def _wait_until_settled(admin: Admin, compaction: str, database: Path) -> None:
    seen: list[str] = []
    end_s = time.perf_counter() + CHILD_TIMEOUT_S
    while time.perf_counter() < end_s:
        versions = _versions(database)
        if versions != seen:
            seen = versions
            status = admin.read_compaction(compaction).status.name
            if status == "COMPLETED":
                return
            if status == "FAILED":
                raise RuntimeError("the official coordinator refused the compaction")
        time.sleep(LOOK_S)
    raise TimeoutError(f"no end of the compaction after {CHILD_TIMEOUT_S} s")


def _times(admin: Admin, compaction: str, database: Path) -> Iterator[tuple[str, float]]:
    """When each status was first written, in seconds since the epoch, latest status first."""
    for version in reversed(admin.list_compactions()):
        for entry in version.recent_compactions:
            if entry.id == compaction:
                path = database / "compactions" / f"{version.id:020d}.compactions"
                yield entry.status.name, path.stat().st_mtime_ns / 1e9


if __name__ == "__main__":
    measured = _compact(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(asdict(measured)))

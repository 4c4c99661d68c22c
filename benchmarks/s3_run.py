"""One compaction over S3, by one side, in a process of its own: `python -m benchmarks.s3_run SIDE TASK`, TASK
being JSON. It prints when it began and ended, and its CPU time, all processes below it included.

*Official*: a process that opens the database, coordinator and worker inside. Both look for work every
`POLL_MS`, everything else is as by default. The compaction is submitted and watched by somebody else
(`WATCHER`), whose requests can be told from those of the side.

*Lithify*: a one-shot run on a Spark session that has been started.

1. Both stand for a process that runs for days: before anything is measured each compacts other databases,
   small ones on a server without latency, and some like the one that is measured, beside it.
2. The server speaks HTTP, so that nothing of TLS is measured, and stands for a store that is reached over
   TLS. Each side signs what it signs there by default: the official client what it sends too, Lithify not
   (`lithify.store.endpoints`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.compacting import compact, dataset_at
from tests.judge.official import Admin, compactor_settings, full_compaction, open_db

from benchmarks.cases import Case
from benchmarks.child import CHILD_TIMEOUT_S, cpu_s_of_tree, run_child
from benchmarks.data import open_options
from benchmarks.official import POLL_MS
from benchmarks.ours import PRELOAD, start_session
from lithify.engine.spark import SparkEngine

OFFICIAL, LITHIFY, WATCHER, JUDGE = "official", "lithify", "watcher", "judge"
LOOK_S = 0.1
SETTLE_S = 1.0
DEFAULT_SST_BYTES = 256 * 1024 * 1024
_SUBCOMPACTIONS = 4


@dataclass(frozen=True, slots=True)
class Task:
    """What to compact."""

    url: str
    endpoint: str
    codec: str | None
    master: str
    max_sst_bytes: int | None
    warm_ups: Sequence[tuple[str, str]] = ()
    """The databases to compact before: the URL of each, and the endpoint where it is."""


@dataclass(frozen=True, slots=True)
class SideRun:
    """What a side took. Times are in seconds since 1970."""

    began_s: float
    ended_s: float
    cpu_s: float
    """Between the two."""
    start_cpu_s: float
    """Before: loading, opening, starting a session."""


def measure(side: str, task: Task) -> SideRun:
    """Compact in a child process."""
    return SideRun(**run_child("benchmarks.s3_run", side, json.dumps(asdict(task))))


def options_of(endpoint: str, requester: str) -> dict[str, str]:
    """How `requester` reaches the server."""
    return {
        "aws_endpoint": endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": requester,
        "aws_secret_access_key": "secret",
        "aws_region": "us-east-1",
    }


def _official(task: Task) -> SideRun:
    options: dict[str, Any] = {**open_options(Case("", 0, 0, 0, codec=task.codec))}
    compactor = compactor_settings(
        poll_ms=POLL_MS,
        max_subcompactions=_SUBCOMPACTIONS,
        max_sst_size=task.max_sst_bytes or DEFAULT_SST_BYTES,
    )
    settings = {**options["settings"], "manifest_poll_interval": "1s", "compactor_options": compactor}
    options["settings"] = settings
    for url, endpoint in task.warm_ups:
        options["store_options"] = options_of(endpoint, OFFICIAL)
        with open_db(url, **options):
            _compact_officially(Admin(url, store_options=options["store_options"]))
    options["store_options"] = options_of(task.endpoint, OFFICIAL)
    with open_db(task.url, **options):
        time.sleep(SETTLE_S)
        start_cpu_s, began_s = cpu_s_of_tree(), time.time()
        _compact_officially(Admin(task.url, store_options=options_of(task.endpoint, WATCHER)))
        return SideRun(began_s, time.time(), cpu_s_of_tree() - start_cpu_s, start_cpu_s)


def _compact_officially(admin: Admin) -> None:
    (tree,) = admin.trees()
    spec = full_compaction(tree, (tree,))
    compaction = admin.submit_compaction(spec.l0_view_ids, spec.run_ids, spec.destination)
    deadline_s = time.monotonic() + CHILD_TIMEOUT_S
    while (status := admin.read_compaction(compaction).status.name) != "COMPLETED":
        if status == "FAILED" or time.monotonic() > deadline_s:
            raise RuntimeError(f"the official compaction is {status}")
        time.sleep(LOOK_S)


def _lithify(task: Task) -> SideRun:
    with SparkEngine(task.master, preload=PRELOAD) as engine:
        start_session(engine)
        for url, endpoint in task.warm_ups:
            _compact_with(engine, url, endpoint, task)
        start_cpu_s, began_s = cpu_s_of_tree(), time.time()
        _compact_with(engine, task.url, task.endpoint, task)
        return SideRun(began_s, time.time(), cpu_s_of_tree() - start_cpu_s, start_cpu_s)


def _compact_with(engine: SparkEngine, url: str, endpoint: str, task: Task) -> None:
    dataset = dataset_at(
        url,
        store_options={**options_of(endpoint, LITHIFY), "aws_unsigned_payload": "true"},
        max_sst_size=task.max_sst_bytes or DEFAULT_SST_BYTES,
    )
    result = compact(dataset, engine=engine)
    if len(result.committed) != 1:
        raise RuntimeError(f"expected one commit: {result}")


if __name__ == "__main__":
    what = Task(**json.loads(sys.argv[2]))
    print(json.dumps(asdict(_official(what) if sys.argv[1] == OFFICIAL else _lithify(what))))

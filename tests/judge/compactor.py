"""The official compactor at work on a database.

1. The database is opened as a writer with a coordinator and a worker inside, all of whose polling
   intervals are `poll_ms`.
2. Either its own scheduler is kept from acting and full compactions are submitted one after another
   (`compact_officially`), or its scheduler runs until nothing happens any more
   (`run_officially_until_quiet`).
3. The database is closed. Nothing is written to it, so no L0 is added.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from slatedb import uniffi
from tests.judge.admin import Admin, TreeShape
from tests.judge.client import MAX_RETRIES, JudgeTimeout, OpenOptions, Target, open_db

COMPACTION_TIMEOUT_S = 60.0
QUIET_S = 0.5
"""A scheduler without active work for this long has nothing left to do."""
DEFAULT_MAX_SST_SIZE = 256 * 1024 * 1024
IDLE_SCHEDULER: Mapping[str, str] = {"min_compaction_sources": "1000000"}
SETTLED_STATUSES = (uniffi.CompactionStatus.COMPLETED, uniffi.CompactionStatus.FAILED)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What official compactions took, from submission to commit, in this process."""

    wall_s: float
    cpu_s: float
    """User and system time of all threads of this process, the polling included."""
    compaction_ids: tuple[str, ...]


def compactor_settings(
    *,
    poll_ms: int = 50,
    max_subcompactions: int = 4,
    max_sst_size: int = DEFAULT_MAX_SST_SIZE,
    scheduler: Mapping[str, str] = IDLE_SCHEDULER,
) -> dict[str, object]:
    """The client's `compactor_options` for a coordinator and a worker that poll every `poll_ms`."""
    every = f"{poll_ms}ms"
    return {
        "poll_interval": every,
        "commit_compacted_interval": every,
        "object_store_max_retries": MAX_RETRIES,
        "scheduler_options": dict(scheduler),
        "worker": {
            "compactions_poll_interval": every,
            "max_subcompactions": max_subcompactions,
            "max_sst_size": max_sst_size,
        },
    }


@dataclass(frozen=True, slots=True)
class TieredSpec:
    """Merge these sources of one tree, newest first, into the run `destination`."""

    prefix: bytes
    l0_view_ids: tuple[str, ...]
    run_ids: tuple[int, ...]
    destination: int


def full_compaction(tree: TreeShape, trees: Sequence[TreeShape]) -> TieredSpec:
    """Merge all of `tree`, one of `trees` of a database, into one run."""
    run_ids = tuple(run.id for run in tree.runs)
    destination = min(run_ids) if run_ids else next_run_id(trees)
    return TieredSpec(tree.prefix, tuple(view.id for view in tree.l0), run_ids, destination)


def next_run_id(trees: Iterable[TreeShape]) -> int:
    """An id for a new run: the ids of runs are unique over all trees of a database."""
    return max((run.id for tree in trees for run in tree.runs), default=-1) + 1


def compact_officially(
    target: Target,
    specs: Sequence[TieredSpec] | None = None,
    *,
    poll_ms: int = 50,
    max_subcompactions: int = 4,
    max_sst_size: int = DEFAULT_MAX_SST_SIZE,
    **options: Unpack[OpenOptions],
) -> CompactionReport:
    """Let the official compactor carry out `specs`, by default a full compaction of every tree.

    What shapes the outputs comes from `options`: the block size, and in `settings` the
    `compression_codec` and `min_filter_keys`.
    """
    admin = _admin(target, options)
    compactor = compactor_settings(
        poll_ms=poll_ms, max_subcompactions=max_subcompactions, max_sst_size=max_sst_size
    )
    compaction_ids: list[str] = []
    with open_db(target, **_with_compactor(options, compactor)):
        _await_coordinator(admin)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for spec in _full_compactions(admin) if specs is None else specs:
            compaction_ids.append(
                admin.submit_compaction(spec.l0_view_ids, spec.run_ids, spec.destination, spec.prefix)
            )
            _await_settled(admin, compaction_ids[-1], poll_ms)
        wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    return CompactionReport(wall_s, cpu_s, tuple(compaction_ids))


def _full_compactions(admin: Admin) -> Iterator[TieredSpec]:
    for prefix in [tree.prefix for tree in admin.trees() if tree.l0 or tree.runs]:
        trees = admin.trees()
        yield full_compaction(next(tree for tree in trees if tree.prefix == prefix), trees)


def run_officially_until_quiet(
    target: Target,
    *,
    poll_ms: int = 50,
    max_subcompactions: int = 4,
    scheduler: Mapping[str, str] | None = None,
    **options: Unpack[OpenOptions],
) -> CompactionReport:
    """Let the official scheduler compact until it finds nothing more to do.

    `scheduler` are its options. Quiet means: no active compaction and neither a new manifest nor a
    new compactions file for `QUIET_S`; that last wait is not counted in the report.
    """
    admin = _admin(target, options)
    compactor = compactor_settings(
        poll_ms=poll_ms, max_subcompactions=max_subcompactions, scheduler=scheduler or {}
    )
    compaction_ids: dict[str, None] = {}
    with open_db(target, **_with_compactor(options, compactor)):
        _await_coordinator(admin)
        start_s = busy_s = time.perf_counter()
        start_cpu_s = busy_cpu_s = time.process_time()
        seen: tuple[object, ...] = ()
        while time.perf_counter() - busy_s < QUIET_S:
            if time.perf_counter() - start_s > COMPACTION_TIMEOUT_S:
                raise JudgeTimeout(f"the official scheduler is busy after {COMPACTION_TIMEOUT_S} s")
            compactions = admin.read_compactions()
            now = (admin.read_manifest().id, compactions.id)
            compaction_ids.update((str(entry.id), None) for entry in compactions.recent_compactions)
            if now != seen or any(entry.active for entry in compactions.recent_compactions):
                busy_s, busy_cpu_s, seen = time.perf_counter(), time.process_time(), now
            time.sleep(poll_ms / 1000)
    return CompactionReport(busy_s - start_s, busy_cpu_s - start_cpu_s, tuple(compaction_ids))


def _admin(target: Target, options: OpenOptions) -> Admin:
    return Admin(target, store_options=options.get("store_options"))


def _with_compactor(options: OpenOptions, compactor: Mapping[str, object]) -> OpenOptions:
    settings = {**options.get("settings", {}), "compactor_options": compactor}
    return {**options, "settings": settings}


def _await_coordinator(admin: Admin) -> None:
    """Wait for the compactions file, without which nothing can be submitted."""
    deadline_s = time.monotonic() + COMPACTION_TIMEOUT_S
    while admin.read_compactions() is None:
        if time.monotonic() > deadline_s:
            raise JudgeTimeout(f"the official coordinator did not start in {COMPACTION_TIMEOUT_S} s")
        time.sleep(0.002)


def _await_settled(admin: Admin, compaction_id: str, poll_ms: int) -> None:
    deadline_s = time.monotonic() + COMPACTION_TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = admin.read_compaction(compaction_id)
        if found is not None and found.status in SETTLED_STATUSES:
            if found.status == uniffi.CompactionStatus.FAILED:
                raise AssertionError(f"the official coordinator failed compaction {compaction_id}")
            return
        time.sleep(min(poll_ms, 10) / 1000)
    raise JudgeTimeout(f"compaction {compaction_id} was not settled in {COMPACTION_TIMEOUT_S} s")

"""How coordinators and workers work. Names and defaults are SlateDB's where it has the option."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.base.backoff import GrowingPause

MAX_REST_MS = 30_000
"""Longest rest of a worker whose attempts all fail; new work may be urgent."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Of the coordinator of one dataset."""

    worker_heartbeat_timeout_ms: int = 30_000
    """A worker that was silent for longer counts as lost."""
    max_attempts: int = 5
    """A compaction that was tried so often has failed for good."""
    max_commit_wait_ms: int | None = 60_000
    """How long a finished compaction waits at most to be committed with others, where its kind wants few
    commits; `None`: for as long as others are under way."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Of the workers of one process."""

    max_concurrent_compactions: int = 4
    heartbeat_interval_ms: int = 10_000
    heartbeat_min_interval_ms: int = 2_000
    """Newly finished ranges are recorded at once, but not more often than this. With a coordinator beside the
    worker not before the first heartbeat is due: what is whole by then needs no record of its parts."""
    heartbeat_bytes: int = 100_000
    """A heartbeat is written only if at least so many bytes were read and written since the last one;
    slower than that is silent. 0: always."""
    spare_claim_delay_ms: int = 5_000
    """How long a compaction must have been free before a worker without idle slots claims it: time for
    others to look, so their poll interval."""
    watch_interval_ms: int | None = None
    """How often the reports of running tasks are read for a progress line; `None`: only for heartbeats."""
    range_start_timeout_ms: int = 600_000
    """How long a compaction may wait for a free slot or for the engine to start before it counts as
    silent."""
    first_retry_pause_ms: int = 1_000
    """Pause after the first failed attempt at a compaction; four times as long after each further one."""
    max_retry_pause_ms: int = 600_000

    @property
    def retry_pause(self) -> GrowingPause:
        return GrowingPause(self.first_retry_pause_ms, self.max_retry_pause_ms)

    @property
    def rest(self) -> GrowingPause:
        return GrowingPause(self.first_retry_pause_ms, min(self.max_retry_pause_ms, MAX_REST_MS))

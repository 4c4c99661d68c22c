"""Options of coordinators and workers. Names and defaults are SlateDB's where it has the option."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.base.backoff import GrowingPause

MAX_REST_MS = 30_000
"""Longest pause of a worker whose attempts all fail; new work may be urgent."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Options of the coordinator of one dataset."""

    worker_heartbeat_timeout_ms: int = 30_000
    """A worker that is silent for longer counts as lost."""
    max_attempts: int = 5
    """Number of attempts after which a compaction has failed for good."""
    max_commit_wait_ms: int | None = 60_000
    """How long a finished compaction waits at most to be committed with others, if its kind wants few
    commits; `None`: as long as others are active."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of the workers of one process."""

    max_concurrent_compactions: int = 4
    heartbeat_interval_ms: int = 10_000
    heartbeat_min_interval_ms: int = 2_000
    """Newly finished ranges are recorded at once, but not more often than this. An embedded worker records
    them when the first heartbeat is due: a compaction that is complete by then needs no record of its
    ranges."""
    heartbeat_bytes: int = 100_000
    """A heartbeat is written only if at least so many bytes were read and written since the last one; slower
    work counts as silent. 0: always."""
    spare_claim_delay_ms: int = 5_000
    """How long a compaction must have been claimable before a worker without idle slots claims it: time for
    other workers to poll, so their poll interval."""
    watch_interval_ms: int | None = None
    """How often to read the reports of running tasks for a progress line; `None`: only for heartbeats."""
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

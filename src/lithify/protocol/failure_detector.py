"""Detection of silent workers, by the coordinator's own clock.

A heartbeat in the ledger carries the time of the worker's clock, which may be wrong. So the coordinator
compares no clocks: a worker is silent when the coordinator has seen its heartbeat in the ledger unchanged for
longer than the timeout. A coordinator that has just started has seen nothing yet and gives every worker the
whole timeout. After a long time without a poll, because the coordinator's machine was suspended or its
process stopped, it counts at most half the timeout for that time: the worker may have been stopped as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.base.ids import Ulid
from lithify.protocol.model import AssignedWorker, CompactionState
from lithify.protocol.transitions import AnyLedger


@dataclass(frozen=True, slots=True)
class _Sighting:
    worker: AssignedWorker
    unchanged_s: float = 0.0
    """How long it has been seen unchanged."""


class SilenceWatch:
    """Tracks the heartbeats of Running compactions for one coordinator. Times are of a monotonic clock."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._seen: dict[Ulid, _Sighting] = {}
        self._looked_s = 0.0

    def silent(self, ledger: AnyLedger, now_s: float) -> tuple[Ulid, ...]:
        """Read the latest ledger. Return the Running compactions whose worker has been silent for longer than
        the timeout, and those that name no worker at all."""
        passed_s = min(now_s - self._looked_s, self._timeout_s / 2)
        self._looked_s = now_s
        running = [c for c in ledger.compactions if c.state is CompactionState.RUNNING]
        self._seen = {c.id: self._sight(c.id, c.worker, passed_s) for c in running if c.worker is not None}
        return tuple(
            c.id for c in running if c.worker is None or self._seen[c.id].unchanged_s > self._timeout_s
        )

    def _sight(self, compaction_id: Ulid, worker: AssignedWorker, passed_s: float) -> _Sighting:
        before = self._seen.get(compaction_id)
        if before is None or before.worker != worker:
            return _Sighting(worker)
        return _Sighting(worker, before.unchanged_s + passed_s)

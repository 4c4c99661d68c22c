"""Heartbeats of a worker's claims: when one is due and deserved.

1. A claim that is about to be released gets none.
2. When a range has finished, one is due after `heartbeat_min_interval_ms`; but a coordinator in the same
   process may soon commit a claim younger than a heartbeat interval as a whole, so that claim waits.
3. Otherwise one is due after `heartbeat_interval_ms`. Then the movements that tasks report are read, at most
   once in `heartbeat_min_interval_ms`, and the pulse decides whether they suffice
   (`lithify.protocol.heartbeat_gate`). Only movements of this very claim count.
4. With a `watch_interval_ms` they are read that often as well, only to be reported.

Nothing is written here: the worker publishes the heartbeats of all its claims at once. Times are milliseconds
of a clock that does not jump: a wall clock that is set back would keep a claim silent until it is lost.
"""

from __future__ import annotations

from contextlib import suppress

from lithify.base import events
from lithify.base.errors import LithifyError
from lithify.base.events import Observer
from lithify.datasets.kind import DatasetPort
from lithify.protocol.running import Claim
from lithify.service.options import WorkerOptions


class Heartbeats:
    """The heartbeats of one worker."""

    def __init__(
        self, dataset: DatasetPort, worker_id: str, options: WorkerOptions, observer: Observer
    ) -> None:
        self._dataset = dataset
        self._worker_id = worker_id
        self._options = options
        self._observe = observer

    def is_short(self, running: Claim, now_ms: int) -> bool:
        """Return whether a crash now would lose so little (less than between two heartbeats) that nothing
        needs to be recorded."""
        return now_ms - running.began_ms < self._options.heartbeat_interval_ms

    def deserves(self, running: Claim, now_ms: int, *, is_beside_coordinator: bool) -> bool:
        """Return whether a heartbeat is due and deserved; read the movements if these decide."""
        options, pulse = self._options, running.pulse
        if running.error is not None:
            return False
        since_ms = now_ms - running.last_heartbeat_ms
        # The coordinator may soon commit the whole compaction, in one version instead of three.
        may_be_whole_soon = is_beside_coordinator and self.is_short(running, now_ms)
        if pulse.has_news and not may_be_whole_soon:
            return since_ms >= options.heartbeat_min_interval_ms
        if since_ms < options.heartbeat_interval_ms:
            return False
        if now_ms - running.looked_at_ms >= options.heartbeat_min_interval_ms:
            self._look(running, now_ms)
        return pulse.deserves_heartbeat(now_ms, options.heartbeat_bytes, options.range_start_timeout_ms)

    def watch(self, running: Claim, now_ms: int) -> None:
        """Report the compaction's progress, if a report is due."""
        interval_ms = self._options.watch_interval_ms
        is_due = interval_ms is not None and now_ms - running.looked_at_ms >= interval_ms
        if is_due and running.pending and running.error is None:
            with suppress(LithifyError):  # the next heartbeat runs into the same error and reports it
                self._look(running, now_ms)

    def _look(self, running: Claim, now_ms: int) -> None:
        running.looked_at_ms = now_ms
        reported = self._dataset.journal.movements(running.compaction.id)
        mine = {
            name: movement
            for name, movement in reported.items()
            if (movement.worker, movement.claimed_at_ms) == (self._worker_id, running.claimed_at_ms)
        }
        running.pulse.look(mine, now_ms)
        self.report_movement(running)

    def has_beaten(self, running: Claim, now_ms: int) -> None:
        """Note that the ledger has this heartbeat."""
        running.last_heartbeat_ms = now_ms
        running.pulse.beat()
        self._observe(
            events.Heartbeat(
                self._dataset.url, running.compaction.id, self._worker_id, running.pulse.moved_bytes
            )
        )

    def report_movement(self, running: Claim) -> None:
        """Report how many bytes of the claim are done."""
        done, cost = running.done_bytes, running.cost_bytes
        self._observe(events.Moved(self._dataset.url, running.compaction.id, done, cost))

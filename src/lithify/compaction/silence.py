"""Which workers are silent, by the coordinator's own clock.

A heartbeat in the ledger carries the time of the worker's clock, which may be wrong. So the coordinator
compares no clocks: a worker is silent when its heartbeat in the ledger has stayed the same, under the
coordinator's eyes, for longer than the timeout. A coordinator that has just started has seen nothing yet and
gives every worker the whole timeout.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.compaction.model import State, Worker
from lithify.compaction.protocol import AnyLedger
from lithify.ids import Ulid


@dataclass(frozen=True, slots=True)
class _Sighting:
    worker: Worker
    since_s: float


class SilenceWatch:
    """What one coordinator has seen of the Running compactions. Times are of a monotonic clock."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._seen: dict[Ulid, _Sighting] = {}

    def silent(self, ledger: AnyLedger, now_s: float) -> tuple[Ulid, ...]:
        """Look at the latest ledger. Gives the Running compactions whose worker has been silent for longer
        than the timeout, and those that name no worker at all."""
        seen: dict[Ulid, _Sighting] = {}
        silent = []
        for compaction in ledger.compactions:
            if compaction.state is not State.RUNNING:
                continue
            if compaction.worker is None:
                silent.append(compaction.id)
                continue
            before = self._seen.get(compaction.id)
            is_same = before is not None and before.worker == compaction.worker
            sighting = before if before is not None and is_same else _Sighting(compaction.worker, now_s)
            seen[compaction.id] = sighting
            if (now_s - sighting.since_s) * 1000 > self._timeout_ms:
                silent.append(compaction.id)
        self._seen = seen
        return tuple(silent)

"""The compactions that a worker may claim: Scheduled ones, unless their dataset says that they must wait."""

from __future__ import annotations

from lithify.base import events
from lithify.base.events import Observer
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort
from lithify.protocol import transitions
from lithify.protocol.transitions import AnyCompaction, AnyLedger


class ClaimableCompactions:
    """Finds the compactions of a ledger that one worker may claim. Reports each reason to wait once."""

    def __init__(self, dataset: DatasetPort, worker_id: str, observer: Observer) -> None:
        self._dataset = dataset
        self._worker_id = worker_id
        self._observe = observer
        self._reasons: dict[Ulid, str] = {}

    def __call__(self, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
        """Return them, oldest first."""
        free = transitions.claimable(ledger)
        reasons: dict[Ulid, str] = {}
        for compaction in free:
            why = self._dataset.why_unclaimable(compaction, ledger)
            if why is not None:
                reasons[compaction.id] = why
        for compaction_id, reason in reasons.items():
            if self._reasons.get(compaction_id) != reason:
                url = self._dataset.url
                self._observe(events.ClaimPostponed(url, compaction_id, self._worker_id, reason))
        self._reasons = reasons
        return tuple(c for c in free if c.id not in reasons)

"""Adding, validating and claiming compactions in the ledger of a coordinator's dataset.

1. Proposals that the capacity admits (`lithify.service.admission`) are added as Submitted, unless something
   similar has just failed for good.
2. Submitted compactions are validated: valid ones become Scheduled, the others Failed. Scheduled ones that
   this scheduler has not validated (found at the start, reclaimed, or written by another process)
   are validated once too. Otherwise workers would claim each of a thousand such entries in vain, with several
   versions of the ledger for each.
3. New compactions for which the `EmbeddedWorker` has idle slots are claimed for it, unless something has
   waited longer; then workers claim in turns.

Nothing is published here, and the same ledger may be scheduled again, after a conflict or with a later
snapshot. `goes_on` confirms the last result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lithify.base.clock import Clock
from lithify.base.ids import Ids, Ulid
from lithify.datasets.kind import DatasetPort
from lithify.protocol import transitions
from lithify.protocol.model import Compaction, CompactionState
from lithify.protocol.proposal import Plan, Proposal
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service.admission import Admission, Choice
from lithify.service.coordinator_view import EmbeddedWorker


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """Changes made by one publication of the ledger."""

    choice: Choice
    added: tuple[tuple[Ulid, Proposal], ...] = ()
    refused: tuple[tuple[AnyCompaction, str], ...] = ()
    """Invalid compactions, with the reason."""
    reclaimed: tuple[AnyCompaction, ...] = ()
    """As they were before; `failed` likewise."""
    failed: tuple[AnyCompaction, ...] = ()

    @property
    def only_adds(self) -> bool:
        """Return whether no compaction is refused, reclaimed or failed."""
        return not (self.refused or self.reclaimed or self.failed)


class Scheduler:
    """The scheduler of one dataset."""

    def __init__(
        self,
        dataset: DatasetPort,
        clock: Clock,
        ids: Ids,
        plan: Callable[[object, AnyLedger], Plan],
        companion: EmbeddedWorker | None,
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._ids = ids
        self._plan = plan
        self._companion = companion
        self._admission = Admission(dataset, clock)
        self._validated: set[Ulid] = set()
        """Compactions of the ledger that were found valid here."""

    def schedule(self, ledger: AnyLedger, snapshot: object) -> tuple[AnyLedger, TickOutcome]:
        """Return the ledger with new compactions planned, validated and claimed, and what changed."""
        choice = self._admission.look(self._plan(snapshot, ledger), ledger, snapshot)
        # Workers claim in order of ids, so the most urgent gets the first.
        new_ids = sorted(self._new_ids(ledger, snapshot, len(choice.plan.proposals)))
        added = tuple(zip(new_ids, choice.plan.proposals, strict=True))
        ledger = transitions.submit(ledger, *(Compaction(new_id, p.spec) for new_id, p in added))
        ledger, refused = self._validate(ledger, snapshot)
        return self._claim(ledger, set(new_ids), snapshot), TickOutcome(choice, added, tuple(refused))

    def _new_ids(self, ledger: AnyLedger, snapshot: object, count: int) -> list[Ulid]:
        if not count:
            return []
        now_ms = self._dataset.new_id_ms(snapshot, self._clock.now_ms())
        id_ms = transitions.next_id_ms(ledger, now_ms)
        return [self._ids.ulid(id_ms) for _ in range(count)]

    def goes_on(self, choice: Choice) -> None:
        """Confirm that the choice has been carried out."""
        self._admission = choice.admission

    def conflicted(self, spec: Any) -> None:
        """Note that a compaction failed because another writer changed its inputs."""
        self._admission.conflicted(spec)

    def forget_all_but(self, ledger: AnyLedger) -> None:
        """Forget compactions that are not in the ledger."""
        self._validated.intersection_update(c.id for c in ledger.compactions)

    def _validate(
        self, ledger: AnyLedger, snapshot: object
    ) -> tuple[AnyLedger, list[tuple[AnyCompaction, str]]]:
        """Schedule or refuse waiting compactions. Of two that exclude each other, keep the older one."""
        waiting = [
            c for c in ledger.compactions if c.state is CompactionState.SUBMITTED or self._is_strange(c)
        ]
        # Compare with active compactions only, not with waiting ones: there may be thousands.
        left = {c.id for c in waiting}
        under_way = replace(ledger, compactions=tuple(c for c in ledger.active() if c.id not in left))
        refused: list[tuple[AnyCompaction, str]] = []
        for compaction in sorted(waiting, key=lambda c: c.state is CompactionState.SUBMITTED):
            refusal = self._dataset.validate(compaction, snapshot, under_way)
            if refusal is not None:
                refused.append((compaction, refusal))
                ledger = transitions.fail(ledger, compaction.id)
                continue
            if compaction.state is CompactionState.SUBMITTED and self._dataset.needs_worker(
                compaction, snapshot
            ):
                ledger = transitions.schedule(ledger, compaction.id)
            under_way = under_way.add(ledger.get(compaction.id) or compaction)
            self._validated.add(compaction.id)
        return ledger, refused

    def _is_strange(self, compaction: AnyCompaction) -> bool:
        """Return whether it is Scheduled but was not validated here."""
        is_free = compaction.state is CompactionState.SCHEDULED and compaction.worker is None
        return is_free and compaction.id not in self._validated

    def _claim(self, ledger: AnyLedger, new: set[Ulid], snapshot: object) -> AnyLedger:
        """Claim new compactions for the embedded worker."""
        free = transitions.claimable(ledger)
        if self._companion is None or not new.issuperset(c.id for c in free):
            return ledger
        for compaction_id in self._companion.chooses(free, snapshot):
            ledger = transitions.claim(ledger, compaction_id, self._companion.id, self._clock.now_ms())
        return ledger

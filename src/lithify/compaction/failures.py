"""What failed for good, and what is left alone because of it.

1. Before a compaction is marked Failed, the reason goes into the journal, with its spec.
2. A proposal that shares a source with one that was tried and failed is held back for a pause that grows
   with the number of such failures. So one poisoned input neither keeps workers busy for ever nor stops
   what has nothing to do with it.
3. When the pause is over, or somebody removes the failure from the journal, the planner's proposal passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lithify.clock import Clock
from lithify.compaction.contract import Dataset, Plan, Proposal
from lithify.compaction.journal import Failure
from lithify.compaction.model import State
from lithify.compaction.pauses import GrowingPause
from lithify.compaction.protocol import AnyCompaction, AnyLedger
from lithify.errors import CorruptObject
from lithify.ids import Ulid

FAILURE_PAUSE = GrowingPause(first_ms=60_000, max_ms=3_600_000)

Planner = Callable[[object, AnyLedger], Plan]


class Failures:
    """The failures of one dataset, as its coordinator sees them."""

    def __init__(self, dataset: Dataset, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock
        self._known: tuple[Failure, ...] = ()
        self._sources: dict[Ulid, frozenset[str]] = {}
        self._failed: frozenset[Ulid] = frozenset()
        """What the ledger last called Failed."""
        self._is_due = True
        """Whether the journal has to be read before the next plan."""

    def note(self, compaction: AnyCompaction, attempts: int, reason: str) -> None:
        """Remember that a compaction is, or is about to be, Failed."""
        spec = self._dataset.encode_spec(compaction.spec)
        self._dataset.journal.add_failure(
            Failure(compaction.id, reason, attempts, self._clock.now_ms(), spec)
        )
        self._is_due = True

    def forget(self, compaction_id: Ulid) -> None:
        """It did not fail after all."""
        self._dataset.journal.forgive(compaction_id)
        self._is_due = True

    def refresh(self, ledger: AnyLedger) -> None:
        """Read the journal again where that can change the next plan. Others may have marked something
        Failed: a person who cancels."""
        failed = frozenset(c.id for c in ledger.compactions if c.state is State.FAILED)
        is_news, self._failed = not failed <= self._failed, failed
        if self._is_due or is_news:
            self._known = tuple(f for f in self._dataset.journal.failures() if f.attempts)
            before, self._sources = self._sources, {}
            for failure in self._known:
                known = before.get(failure.compaction)
                self._sources[failure.compaction] = self._sources_of(failure) if known is None else known
            self._is_due = False

    def held_back(self, planner: Planner) -> Planner:
        """`planner` without what is to be left alone for now; its notes say so."""

        def plan(snapshot: object, ledger: AnyLedger) -> Plan:
            found = planner(snapshot, ledger)
            reasons = [self._reason(proposal) for proposal in found.proposals]
            if not any(reasons):
                return found
            self._is_due = True
            passed = (p for p, reason in zip(found.proposals, reasons, strict=True) if reason is None)
            notes = (reason for reason in reasons if reason is not None)
            return replace(found, proposals=tuple(passed), notes=(*found.notes, *notes))

        return plan

    def _reason(self, proposal: Proposal) -> str | None:
        """Why a proposal is held back, if it is."""
        sources = self._dataset.sources(proposal.spec)
        alike = [f for f in self._known if sources & self._sources[f.compaction]]
        now_ms = self._clock.now_ms()
        if not alike or not FAILURE_PAUSE.lasts(len(alike), alike[-1].at_ms, now_ms):
            return None
        last = alike[-1]
        left_s = (last.at_ms + FAILURE_PAUSE.after_ms(len(alike)) - now_ms) // 1000
        return (
            f"{self._dataset.unit(proposal.spec)} is left alone for {left_s} s more: compaction "
            f"{last.compaction} of the same sources failed {last.attempts} times, last because: {last.reason}"
        )

    def _sources_of(self, failure: Failure) -> frozenset[str]:
        try:
            return self._dataset.sources(self._dataset.decode_spec(failure.spec))
        except CorruptObject:
            return frozenset()

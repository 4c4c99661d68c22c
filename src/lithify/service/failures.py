"""Compactions that failed for good, and backing off from their sources.

1. Before a compaction is marked Failed, the reason goes into the journal, with its spec. A crash between the
   two leaves a note about a compaction that is still active: the ledger contradicts it, so it does not count
   (`given_up`).
2. Sources of a compaction that was tried and failed are held back, for a pause that grows with the number of
   failures of the same source. The planner knows this before it chooses: held sources use none of its slots,
   and it proposes something else. So one poisoned input neither occupies workers forever nor stops unrelated
   work.
3. After a cancellation the pause never grows: the operator did not want it now, which is no evidence against
   the compaction, and the writer must not wait for long.
4. When the pause is over, or an operator deletes the failure from the journal, nothing is held any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lithify.base.backoff import GrowingPause
from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Held, Plan, Planner
from lithify.protocol.transitions import AnyCompaction, AnyLedger

FAILURE_PAUSE = GrowingPause(first_ms=60_000, max_ms=3_600_000)
CANCEL_PAUSE = GrowingPause(first_ms=60_000, max_ms=60_000)


def given_up(failures: Iterable[FailedAttempt], ledger: AnyLedger) -> tuple[FailedAttempt, ...]:
    """Return the failures that the ledger does not contradict (pure)."""
    others = {c.id for c in ledger.compactions if c.state is not CompactionState.FAILED}
    return tuple(failure for failure in failures if failure.compaction not in others)


class Failures:
    """The failures of one dataset, for its coordinator."""

    def __init__(self, dataset: DatasetPort, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock
        self._known: tuple[FailedAttempt, ...] = ()
        self._sources: dict[Ulid, frozenset[str]] = {}
        self._failed: frozenset[Ulid] = frozenset()
        """Compactions that are Failed in the last ledger."""
        self._is_due = True
        """Whether the journal must be read before the next plan."""

    def note(self, compaction: AnyCompaction, attempts: int, reason: str) -> None:
        """Record that a compaction is, or is about to be, Failed."""
        spec, unit = self._dataset.encode_spec(compaction.spec), self._dataset.identify(compaction.spec).unit
        self._dataset.journal.add_failure(
            FailedAttempt(compaction.id, reason, attempts, self._clock.now_ms(), spec, unit=unit)
        )
        self._is_due = True

    def forget(self, compaction_id: Ulid) -> None:
        """Delete a failure that did not happen after all."""
        self._dataset.journal.forgive(compaction_id)
        self._is_due = True

    def refresh(self, ledger: AnyLedger) -> None:
        """Read the journal again if that can change the next plan. Other processes may mark compactions
        Failed: commands that cancel."""
        failed = frozenset(c.id for c in ledger.compactions if c.state is CompactionState.FAILED)
        is_news, self._failed = not failed <= self._failed, failed
        if self._is_due or is_news:
            noted = self._dataset.journal.failures()
            self._known = tuple(f for f in noted if f.attempts or f.is_cancelled)
            before, self._sources = self._sources, {}
            for failure in self._known:
                known = before.get(failure.compaction)
                self._sources[failure.compaction] = self._sources_of(failure) if known is None else known
            self._is_due = False

    def held_back(self, planner: Planner) -> Callable[[object, AnyLedger], Plan]:
        """Return `planner`, called with the sources that are held back now."""

        def plan(snapshot: object, ledger: AnyLedger) -> Plan:
            held = self._held(given_up(self._known, ledger))
            found = without(planner(snapshot, ledger, held), held, self._dataset)
            reasons = set(held.values())
            # A command may forgive it, which no ledger shows.
            self._is_due = self._is_due or any(reason in note for reason in reasons for note in found.notes)
            return found

        return plan

    def _held(self, known: Iterable[FailedAttempt]) -> Held:
        """Return the sources of failures whose pause is not over."""
        alike: dict[str, list[FailedAttempt]] = {}
        for failure in known:
            for source in self._sources[failure.compaction]:
                alike.setdefault(source, []).append(failure)
        reasons: dict[tuple[Ulid, ...], str | None] = {}
        for failures in alike.values():
            key = tuple(failure.compaction for failure in failures)
            if key not in reasons:
                reasons[key] = self._reason(failures)
        found = {source: reasons[tuple(f.compaction for f in failures)] for source, failures in alike.items()}
        return {source: reason for source, reason in found.items() if reason is not None}

    def _reason(self, alike: Sequence[FailedAttempt]) -> str | None:
        """Return why the common source of these failures is held back; `None` if it is not."""
        failed = [f for f in alike if not f.is_cancelled]
        cancelled = [f for f in alike if f.is_cancelled][-1:]
        for pause, causes in ((FAILURE_PAUSE, failed), (CANCEL_PAUSE, cancelled)):
            now_ms = self._clock.now_ms()
            if causes and pause.lasts(len(causes), causes[-1].at_ms, now_ms):
                last = causes[-1]
                left_s = (last.at_ms + pause.after_ms(len(causes)) - now_ms) // 1000
                unit = self._dataset.identify(self._dataset.decode_spec(last.spec)).unit
                return (
                    f"{unit} backs off for {left_s} more s: compaction {last.compaction} of the same "
                    f"sources {_what_happened(last)}"
                )
        return None

    def _sources_of(self, failure: FailedAttempt) -> frozenset[str]:
        try:
            return self._dataset.identify(self._dataset.decode_spec(failure.spec)).inputs
        except (CorruptObject, Unsupported):
            return frozenset()


def without(plan: Plan, held: Held, dataset: DatasetPort) -> Plan:
    """Return the plan without proposals that use held sources: a planner that ignores `held` would otherwise
    be retried forever."""
    if not held:
        return plan
    reasons = [
        next((held[source] for source in dataset.identify(proposal.spec).inputs if source in held), None)
        for proposal in plan.proposals
    ]
    passed = (p for p, reason in zip(plan.proposals, reasons, strict=True) if reason is None)
    notes = (reason for reason in reasons if reason is not None)
    return replace(plan, proposals=tuple(passed), notes=(*plan.notes, *notes))


def _what_happened(failure: FailedAttempt) -> str:
    if failure.is_cancelled:
        return failure.reason
    return f"failed {failure.attempts} times; last failure: {failure.reason}"

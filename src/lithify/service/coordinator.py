"""The coordinator of one dataset: schedules, reclaims and commits compactions.

Each `tick` is one pass over ledger and snapshot and publishes at most one version of the ledger; the steps
and the proof that a crash at any point loses nothing are in docs/protocol.md (*The coordinator's tick*). The
coordinator has no durable state of its own: the ledger has the compactions, the journal has attempts and
failures, and the epoch fences older coordinators (`lithify.coordination.leadership`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lithify.base import events
from lithify.base.clock import Clock, monotonic_ms
from lithify.base.errors import Replaced
from lithify.base.events import Observer
from lithify.base.ids import Ids, Ulid
from lithify.coordination.leadership import Term
from lithify.datasets.kind import DatasetPort
from lithify.protocol import transitions
from lithify.protocol.attempts import MAX_FAILURES, Attempt, recorded_ranges
from lithify.protocol.commit_batches import CommitBatches
from lithify.protocol.heartbeat_gate import SilenceWatch
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service.coordinator_view import CoordinatorView, EmbeddedWorker
from lithify.service.failures import Failures
from lithify.service.options import CoordinatorOptions
from lithify.service.scheduler import Scheduler, TickOutcome
from lithify.store.versions import PendingVersion


@dataclass(frozen=True, slots=True)
class TickResult:
    """What the dataset looks like after a tick."""

    seen: CoordinatorView
    plan: Plan
    committed: tuple[Ulid, ...] = ()
    dropped: tuple[tuple[Ulid, str], ...] = ()
    """Of these, what was committed without a part that did not hold any more, with the reason."""
    refused: tuple[tuple[AnyCompaction, str], ...] = ()
    """Compactions found invalid in this tick, with the reason."""
    failed: tuple[tuple[AnyCompaction, str], ...] = ()
    """Compactions that failed for good in this tick, as they were before, with the reason."""

    @property
    def ledger(self) -> AnyLedger:
        return self.seen.ledger

    @property
    def is_idle(self) -> bool:
        """Whether nothing is active, proposed, refused or failed. A failure counts as work, because it frees
        its sources only after the planner has run."""
        return not (self.ledger.active() or self.plan.proposals or self.refused or self.failed)


CountAttempts = Callable[[AnyCompaction, Sequence[Attempt]], int]
"""Return how many of these attempts (oldest first) to hold against the compaction."""


def _count_all(compaction: AnyCompaction, attempts: Sequence[Attempt]) -> int:
    return len(attempts)


class Coordinator:
    """Schedules, reclaims and commits the compactions of one dataset.

    `plan` replaces the dataset's own planner, for runs that compact what an operator requested; earlier
    failures then do not delay anything. `admit(plan)` filters the plan; fleets use it, because they decide
    about admission across datasets. Rejected proposals are planned again in the next tick.
    `counts(compaction, attempts)` returns how many failed attempts to hold against a compaction; fleets use
    it to ignore failures of a bad worker. `companion` is the embedded worker, whose ticks alternate with this
    coordinator's.
    """

    def __init__(
        self,
        dataset: DatasetPort,
        clock: Clock,
        ids: Ids,
        *,
        plan: Callable[[object, AnyLedger], Plan] | None = None,
        admit: Callable[[Plan], Plan] | None = None,
        counts: CountAttempts | None = None,
        options: CoordinatorOptions | None = None,
        companion: EmbeddedWorker | None = None,
        observer: Observer = events.ignore,
    ) -> None:
        self._dataset = dataset
        self._companion = companion
        self._clock = clock
        self._failures = Failures(dataset, clock)
        self._heeds_failures = plan is None
        self._counts = counts if counts is not None else _count_all
        planned = plan if plan is not None else self._failures.held_back(self._propose)
        chosen = planned if admit is None else lambda snapshot, ledger: admit(planned(snapshot, ledger))
        self._scheduler = Scheduler(dataset, clock, ids, chosen, companion)
        self.options = options if options is not None else CoordinatorOptions()
        self._silence = SilenceWatch(self.options.worker_heartbeat_timeout_ms)
        self._observe = observer
        self._term: Term | None = None
        self._has_taken_up = False
        """Whether the ledger carries this coordinator's epoch."""
        self._unproved: tuple[PendingVersion, Callable[[], object]] | None = None
        """The last version published, until it is known to be valid, and what to do if it is not."""
        self._unnoted: list[tuple[AnyCompaction, Attempt]] = []
        """Attempts that ended in a reclaim and are not in the journal yet."""
        self._batches = CommitBatches(self.options.max_commit_wait_ms)
        self._is_holding = False
        """Whether a finished compaction waits to be committed together with others."""
        self._may_hold = True
        self._refusal = ""
        """Why the dataset cannot be compacted, as reported last."""
        self._looked_at: AnyLedger | None = None
        """The ledger for which attempts were counted last."""

    @property
    def epoch(self) -> int:
        """The epoch of the term given to `start`."""
        return self._led.epoch

    @property
    def _led(self) -> Term:
        if self._term is None:
            raise AssertionError("the coordinator has not been started")
        return self._term

    def _propose(self, snapshot: object, ledger: AnyLedger, held: Held = NOTHING_HELD, /) -> Plan:
        plan = self._dataset.propose(snapshot, ledger, held)
        self._dataset.observers.tell(lambda observer: observer.saw_plan(plan))
        return plan

    def start(self, term: Term) -> None:
        """Coordinate for this term, from the first tick on."""
        self._term, self._has_taken_up = term, False
        self._observe(events.EpochTaken(self._dataset.url, term.epoch))

    def take_up(self) -> AnyLedger:
        """Put the epoch into the ledger, and reclaim what the embedded worker of the dead predecessor was
        running. The first tick does this, in a version of its own or with the first changes."""
        predecessor = self._led.predecessor or ""
        held: list[AnyCompaction] = []

        def change(latest: AnyLedger) -> AnyLedger:
            latest = transitions.recover(latest, self.epoch)
            held[:] = [c for c in latest.active() if transitions.owns(latest, c.id, predecessor)]
            return transitions.reclaim(latest, [c.id for c in held])

        ledger = self._dataset.update_ledger(change, self._empty)
        self._has_taken_up = True
        now_ms = self._clock.now_ms()
        reason = f"the process of {predecessor} ended without releasing it"
        self._unnoted += [(c, Attempt(predecessor, reason, now_ms, recorded_ranges(c))) for c in held]
        return ledger

    def tick(self, *, is_known: bool = False) -> TickResult:
        """Run one pass. `Fenced` ends this coordinator for good. `is_known` skips reading the dataset,
        because the same thread has just read it or is about to publish."""
        self.settle()
        found, snapshot = self._dataset.known() if is_known else self._dataset.glance()
        if not self._has_taken_up and found is not None and found.active():
            found = self.take_up()
        ledger = self._own(found)
        self._scheduler.forget_all_but(ledger)
        ids = self._silence.silent(ledger, self._clock.monotonic_s())
        silent = [compaction for compaction in map(ledger.get, ids) if compaction is not None]
        self._note_attempts()
        commits = self._commit(ledger, snapshot)
        if commits.are_any:
            found, snapshot = self._dataset.known()
            ledger = self._own(found)
        exhausted = self._exhausted(ledger)
        if self._heeds_failures:
            self._failures.refresh(ledger)
        is_latest = False
        outcome: TickOutcome | None = None

        def change(latest: AnyLedger) -> AnyLedger:
            nonlocal outcome, snapshot, is_latest
            if not self._has_taken_up and latest.active():
                raise _OthersAtWork  # they have begun since this tick looked
            latest = self._own(latest)
            # Only those that have not moved since this tick looked.
            reclaimed = [c for c in silent if c == latest.get(c.id)]
            latest = transitions.reclaim(latest, [c.id for c in reclaimed])
            failed = [c for c, _ in exhausted if latest.get(c.id) == c]
            for compaction in failed:
                latest = transitions.fail(latest, compaction.id)
            scheduled, outcome = self._scheduler.schedule(latest, snapshot)
            if outcome.refused and not is_latest:
                snapshot, is_latest = self._dataset.snapshot(), True
                scheduled, outcome = self._scheduler.schedule(latest, snapshot)
            outcome = replace(outcome, reclaimed=tuple(reclaimed), failed=tuple(failed))
            return transitions.trim(scheduled) if failed or outcome.refused else scheduled

        first = None if self._has_taken_up else self._empty
        known = found if found is not None else self._empty
        planned = change(known)
        if planned != known or found is None:
            try:
                ledger = self._publish(
                    lambda latest: planned if latest == known else change(latest),
                    first,
                    is_harmless=lambda: outcome is not None and outcome.only_adds,
                    # The next tick sees what is there instead, and takes it up if this one was to.
                    otherwise=partial(self._take_up_anew, self._has_taken_up),
                )
            except _OthersAtWork:
                self.take_up()
                return self.tick(is_known=True)
        self._has_taken_up = True
        assert outcome is not None, "planned above, or in the publication"
        choice = outcome.choice
        self._scheduler.goes_on(choice)
        self._dataset.save_planner_state(choice.plan, choice.shed, is_queue_empty=choice.is_queue_empty)
        given_up = {c.id for c, _ in outcome.refused}
        self._unnoted += [(c, self._silent(c)) for c in outcome.reclaimed if c.id not in given_up]
        self._report(outcome)
        self._refusal = report_refusal(self._dataset.url, choice.plan, self._refusal, self._observe)
        self._note_attempts()
        failed = self._settle(exhausted, outcome.failed)
        self._note_refused(outcome.refused)
        self._batches.saw(self._cost_bytes(ledger.active(), snapshot) + choice.waiting_bytes)
        if self._is_holding and self._nothing_else_starts(ledger, outcome):
            self._may_hold = False
            return self.tick(is_known=True)
        refused = (*commits.refused, *outcome.refused)
        seen = CoordinatorView(
            ledger, snapshot, frozenset(compaction_id for compaction_id, _ in outcome.added)
        )
        return TickResult(seen, choice.plan, commits.committed, commits.dropped, refused, failed)

    def fail(self, compaction_id: Ulid, reason: str) -> None:
        """Mark a compaction as Failed."""
        self.settle()
        compaction = self._own(self._dataset.ledger()).get(compaction_id)

        def change(latest: AnyLedger) -> AnyLedger:
            transitions.check_epoch(latest, self.epoch)
            return transitions.trim(transitions.fail(latest, compaction_id))

        if compaction is not None:
            attempts = len(self._dataset.journal.attempts().get(compaction_id, ()))
            self._failures.note(compaction, attempts, reason)
        self._dataset.update_ledger(change)
        self._dataset.journal.clear(compaction_id)

    def settle(self) -> None:
        """Wait until the last published version is known to be valid, and undo its consequences if it is not.
        Call this once more at the end: a tick leaves it to the next tick."""
        if self._unproved is None:
            return
        counts, otherwise = self._unproved
        if not counts():
            otherwise()
        self._unproved = None

    def _publish(
        self,
        change: Callable[[AnyLedger], AnyLedger],
        first: AnyLedger | None = None,
        *,
        is_harmless: Callable[[], bool],
        otherwise: Callable[[], object],
    ) -> AnyLedger:
        """Publish the next version of the ledger. If an invalid version would be harmless, the check runs
        while the caller goes on, and calls `otherwise` if it fails."""
        self.settle()
        ledger, counts = self._dataset.write_ledger(change, first)
        if is_harmless():
            self._unproved = counts, otherwise
        elif not counts():
            ledger = self._dataset.update_ledger(change, first)
        return ledger

    def _take_up_anew(self, had_taken_up: bool) -> None:
        """Undo the take-over of the ledger, because its version is not valid."""
        self._has_taken_up = had_taken_up

    @property
    def _empty(self) -> AnyLedger:
        """The ledger to start from if the dataset has none."""
        return Ledger(self.epoch)

    def _own(self, ledger: AnyLedger | None) -> AnyLedger:
        """Return a ledger that was read, with this coordinator's epoch in it."""
        if not self._has_taken_up:
            return transitions.recover(ledger if ledger is not None else self._empty, self.epoch)
        if ledger is None:
            raise Replaced("the ledger of this coordinator is gone: the dataset was created again")
        transitions.check_epoch(ledger, self.epoch)
        return ledger

    def _commit(self, ledger: AnyLedger, snapshot: object) -> _Commits:
        self._is_holding = False
        finished = {c.id: c for c in self._companion.finished(ledger)} if self._companion is not None else {}
        found_now = (finished.get(c.id, c) for c in ledger.compactions)
        waiting = [c for c in found_now if c.state in (CompactionState.COMPACTED, CompactionState.SUBMITTED)]
        if not waiting:
            return _Commits()
        under_way = replace(
            ledger, compactions=tuple(c for c in ledger.active() if c.state is not CompactionState.SUBMITTED)
        )
        ready = tuple(
            c
            for c in waiting
            if c.state is CompactionState.COMPACTED
            or (
                not self._dataset.needs_worker(c, snapshot)
                and self._dataset.validate(c, snapshot, under_way) is None
            )
        )
        if not ready:
            return _Commits()
        self._is_holding = not self._is_due(ready, ledger, snapshot)
        if self._is_holding:
            return _Commits()
        dropped: list[tuple[Ulid, str]] = []
        verdicts = self._dataset.commit(ready, self.epoch, lambda of, reason: dropped.append((of, reason)))

        def change(latest: AnyLedger) -> AnyLedger:
            transitions.check_epoch(latest, self.epoch)
            for compaction_id, refusal in verdicts.items():
                own = finished.get(compaction_id)
                if own is not None and own.worker is not None:
                    owner = own.worker
                    if transitions.owns(latest, compaction_id, owner.id):
                        latest = transitions.finish(
                            latest, compaction_id, owner.id, owner.last_heartbeat_ms, own.outputs
                        )
                compaction = latest.get(compaction_id)
                # Somebody may have cancelled it meanwhile; that stays, the snapshot has the outputs.
                if compaction is not None and not compaction.state.is_terminal:
                    settle = transitions.complete if refusal is None else transitions.fail
                    latest = settle(latest, compaction_id)
            return transitions.trim(latest, verdicts.keys())

        self._publish(change, is_harmless=lambda: True, otherwise=lambda: self._dataset.update_ledger(change))
        if self._companion is not None:
            self._companion.settled(finished)
        self._batches.published(self._cost_bytes(ready, snapshot))
        committed = tuple(c for c, refusal in verdicts.items() if refusal is None)
        units = {compaction.id: self._dataset.identify(compaction.spec).unit for compaction in ready}
        for compaction_id in committed:
            self._observe(events.Committed(self._dataset.url, compaction_id, units[compaction_id]))
        for compaction_id, reason in dropped:
            self._observe(events.Dropped(self._dataset.url, compaction_id, reason))
        found = ((compaction, verdicts[compaction.id]) for compaction in ready)
        in_vain = tuple((compaction, reason) for compaction, reason in found if reason is not None)
        for compaction, reason in in_vain:
            self._scheduler.conflicted(compaction.spec)
            self._observe(events.CompactionRefused(self._dataset.url, compaction.id, reason))
        self._note_refused(in_vain)
        return _Commits(committed, in_vain, tuple(dropped))

    def _is_due(self, ready: Sequence[AnyCompaction], ledger: AnyLedger, snapshot: object) -> bool:
        """Whether these, which are finished, are to be committed now."""
        most = self._dataset.max_commits(snapshot)
        may_hold, self._may_hold = self._may_hold, True
        if most is None or not may_hold:
            return True
        return self._batches.is_due(
            self._cost_bytes(ready, snapshot),
            sum(len(compaction.outputs) for compaction in ready),
            most,
            monotonic_ms(self._clock),
        )

    def _nothing_else_starts(self, ledger: AnyLedger, outcome: TickOutcome) -> bool:
        """Whether what is finished has nothing to wait for: nothing else is under way, and of what is planned
        nothing could start before the commit."""
        if outcome.added or not outcome.only_adds:
            return False
        finished = self._companion.finished(ledger) if self._companion is not None else ()
        ended = {compaction.id for compaction in finished}
        return all(c.state is CompactionState.COMPACTED or c.id in ended for c in ledger.active())

    def _cost_bytes(self, compactions: Iterable[AnyCompaction], snapshot: object) -> int:
        return sum(self._dataset.cost_bytes(c.spec, snapshot) for c in compactions)

    def _note_refused(self, refused: Sequence[tuple[AnyCompaction, str]]) -> None:
        """Put into the journal why. Of many, only the last would be kept."""
        for compaction, reason in refused[-MAX_FAILURES:]:
            self._failures.note(compaction, 0, reason)

    # Attempts

    def _note_attempts(self) -> None:
        """Put into the journal what could not be put there before. Who noted why an attempt failed and died
        before it was free again has made one attempt, not two."""
        known = self._dataset.journal.attempts() if self._unnoted else {}
        while self._unnoted:
            compaction, attempt = self._unnoted[0]
            if not _is_noted(compaction, known.get(compaction.id, ())):
                self._dataset.journal.add_attempt(compaction.id, attempt)
            del self._unnoted[0]

    def _silent(self, compaction: AnyCompaction) -> Attempt:
        owner = compaction.worker.id if compaction.worker is not None else ""
        silence_s = self.options.worker_heartbeat_timeout_ms / 1000
        reason = f"worker {owner or 'unknown'} sent no heartbeat for {silence_s:g} s"
        return Attempt(owner, reason, self._clock.now_ms(), recorded_ranges(compaction))

    def _exhausted(self, ledger: AnyLedger) -> list[tuple[AnyCompaction, Attempt]]:
        """Return the compactions that wait to be retried after too many attempts, each with its last attempt.
        The reason is recorded in the journal before anything becomes Failed."""
        waiting = transitions.claimable(ledger)
        # Attempts are recorded before their compaction becomes claimable: an unchanged ledger has no new one.
        if not waiting or ledger is self._looked_at:
            return []
        attempts = self._dataset.journal.attempts()
        tried = [(c, attempts[c.id]) for c in waiting if attempts.get(c.id)]
        found = [c for c, tries in tried if self._counts(c, tries) >= self.options.max_attempts]
        for compaction in found[-MAX_FAILURES:]:
            tries = attempts[compaction.id]
            self._failures.note(compaction, len(tries), tries[-1].reason)
        self._looked_at = None if found else ledger
        return [(c, attempts[c.id][-1]) for c in found]

    def _settle(
        self, exhausted: list[tuple[AnyCompaction, Attempt]], failed: tuple[AnyCompaction, ...]
    ) -> tuple[tuple[AnyCompaction, str], ...]:
        """Report the compactions that are Failed now; withdraw the records of those that a worker has claimed
        at the last moment."""
        ids = {compaction.id for compaction in failed}
        for compaction, last in exhausted:
            if compaction.id not in ids:
                self._failures.forget(compaction.id)
                continue
            url, tries = self._dataset.url, self.options.max_attempts
            self._observe(events.Failed(url, compaction.id, tries, last.reason))
            self._dataset.journal.clear(compaction.id)
        return tuple((c, last.reason) for c, last in exhausted if c.id in ids)

    def _report(self, outcome: TickOutcome) -> None:
        url = self._dataset.url
        for compaction in outcome.reclaimed:
            owner = compaction.worker.id if compaction.worker is not None else "unknown"
            self._observe(events.Reclaimed(url, compaction.id, owner))
        for compaction_id, proposal in outcome.added:
            unit = self._dataset.identify(proposal.spec).unit
            self._observe(events.Submitted(url, compaction_id, proposal.reason, proposal.cost_bytes, unit))
        for compaction, reason in outcome.refused:
            self._observe(events.CompactionRefused(url, compaction.id, reason))


def _is_noted(compaction: AnyCompaction, attempts: Iterable[Attempt]) -> bool:
    """Return whether the worker has recorded the end of this attempt, after its last heartbeat by its own
    clock."""
    owner = compaction.worker
    return owner is not None and any(
        a.worker == owner.id and a.at_ms >= owner.last_heartbeat_ms for a in attempts
    )


@dataclass(frozen=True, slots=True)
class _Commits:
    """The result of one publication of outputs; see `TickResult`."""

    committed: tuple[Ulid, ...] = ()
    refused: tuple[tuple[AnyCompaction, str], ...] = ()
    dropped: tuple[tuple[Ulid, str], ...] = ()

    @property
    def are_any(self) -> bool:
        return bool(self.committed or self.refused)


def report_refusal(url: str, plan: Plan, before: str, observe: Observer) -> str:
    """Report that a part of a dataset cannot be compacted until an operator acts, or that it can again,
    unless that is unchanged since `before`. Return the value for the next call's `before`."""
    now = plan.refusal or ("stuck" if plan.stuck else "")
    if now and now != before:
        observe(events.CannotCompact(url, plan.refusal or "; ".join(plan.stuck)))
    elif before and not now:
        observe(events.CanCompact(url))
    return now


class _OthersAtWork(Exception):
    """The ledger has active compactions and has not been taken over yet."""

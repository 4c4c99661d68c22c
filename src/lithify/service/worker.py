"""A worker of one dataset: claims compactions and runs their ranges on the engine. One tick.

Each `tick`:

1. collects the ranges that have finished since the last tick;
2. reads the ledger, and cancels compactions that the worker does not own any more because they were
   reclaimed. If a dataset is made anew, its ledger may lie in the same place; so a worker without a
   coordinator in its process confirms before its first claim, and every `CONFIRM_EVERY_S`, that the dataset
   is the one that was opened (`Replaced`);
3. publishes Compacted for finished compactions and heartbeats with progress for running ones, in one version
   of the ledger; a heartbeat is due if enough time has passed and bytes have moved
   (`lithify.service.heartbeats`);
4. returns a compaction to Scheduled, with its progress, if a range has failed for good, and records the
   attempt; a lost engine or an unreachable store is not an attempt;
5. claims Scheduled compactions that need not wait (`lithify.service.claimable`) while slots are free
   (`lithify.service.slots`), cuts them into ranges and starts the unfinished ones. The most urgent one is
   claimed first, with ageing (`lithify.planning.turns`): an L0 merge whose writer is about to stall does not
   wait for older merges. After a failed attempt all workers back off from the compaction, longer after each
   attempt, and then prefer those that failed less often.

The embedded worker of a coordinator reuses what the coordinator has just read (`CoordinatorView`), and offers
it the compactions that it could commit at once (`finished`) before step 3; the ledger then goes from Running
to Completed.

`look` does steps 1 to 4. `offer` and `claim` do step 5 for one compaction at a time, so that workers of
several datasets can take turns (`lithify.service.worker_pool`).

Of N waiting compactions, each is claimed after at most AGEING_TURNS + N - 1 claims of others by this worker,
with AGEING_TURNS more for each failed attempt.

The worker has no durable state of its own: if it is killed, its compactions are reclaimed and resumed from
the ranges recorded in the ledger. Its id must be new for each process, because the id in the ledger is all
that distinguishes an owner from a zombie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lithify.base import events
from lithify.base.clock import Clock, monotonic_ms
from lithify.base.defects import contained
from lithify.base.errors import EngineDown, LithifyError, LostOwnership, StoreError, StoreUnavailable
from lithify.base.events import Observer
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort
from lithify.engine.ports import Engine
from lithify.planning.turns import Turns
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt
from lithify.protocol.heartbeat_gate import ProgressGate
from lithify.protocol.running import Claim
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service.claimable import ClaimableCompactions
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.heartbeats import Heartbeats
from lithify.service.options import WorkerOptions
from lithify.service.slots import Preparations, WorkerSlots

__all__ = ["Worker", "WorkerOptions"]

CONFIRM_EVERY_S = 60.0
MAX_STORE_LOSSES = 5
"""Maximum per compaction. A worker that can claim a compaction again can reach the store; if only its tasks
cannot, that is a fault to be reported."""


@dataclass(slots=True)
class _Free:
    """Claimable compactions, as of the last read of the ledger; the other fields are read on demand."""

    compactions: dict[Ulid, AnyCompaction] = field(default_factory=dict)
    seen: CoordinatorView | None = None
    """The view of the coordinator that read the ledger, if the worker did not."""
    attempts: Mapping[Ulid, tuple[Attempt, ...]] | None = None
    priorities: dict[Ulid, float] | None = None


class Worker:
    """A worker of one dataset, with an id of its own. It may share `room` with workers of other datasets; by
    default it has its own.

    Data needed before a claim can run are read in parallel with the ticks
    (`lithify.service.slots`)."""

    def __init__(
        self,
        dataset: DatasetPort,
        engine: Engine,
        clock: Clock,
        worker_id: str,
        *,
        options: WorkerOptions | None = None,
        room: WorkerSlots | None = None,
        observer: Observer = events.ignore,
    ) -> None:
        self._dataset = dataset
        self._engine = engine
        self._clock = clock
        self._id = worker_id
        assert options is None or room is None, "the room has the options"
        self._room = room if room is not None else WorkerSlots(engine, options or WorkerOptions())
        self._observe = observer
        self._preparations = Preparations(dataset, engine, self._room)
        self._heartbeats = Heartbeats(dataset, worker_id, self._room.options, observer)
        self._running: dict[Ulid, Claim] = {}
        self._claimable = ClaimableCompactions(dataset, worker_id, observer)
        self._free = _Free()
        self._free_since_ms: dict[Ulid, int] = {}
        """When this worker first saw each claimable compaction."""
        self._turns: Turns[Ulid] = Turns()
        self._failures: list[tuple[Ulid, Exception]] = []
        self._store_losses: Counter[Ulid] = Counter()
        self._is_there = False
        """Whether the dataset is known to exist, although it has no ledger."""
        self._is_beside_coordinator = False
        self._confirmed_s = float("-inf")

    @property
    def id(self) -> str:
        return self._id

    @property
    def url(self) -> str:
        return self._dataset.url

    @property
    def room(self) -> WorkerSlots:
        return self._room

    @property
    def is_busy(self) -> bool:
        """Return whether any compaction is running here."""
        return bool(self._running)

    @property
    def held(self) -> int:
        """Return the number of compactions that are running here."""
        return len(self._running)

    def tick(self, seen: CoordinatorView | None = None) -> bool:
        """Do one round of the algorithm above. Return whether any compaction changed its owner or was
        finished. `seen` is what the coordinator in this process has just read."""
        changed = self.look(seen)
        while self.offer() is not None:
            changed = self.claim() or changed
        return changed

    def look(self, seen: CoordinatorView | None = None) -> bool:
        """Do steps 1 to 4 and find the claimable compactions. Return whether any compaction was lost,
        finished or released."""
        for running in self._running.values():
            self._take_in(running)
        self._free = _Free()
        self._is_beside_coordinator = seen is not None
        if seen is None:
            self._confirm()
        ledger = self._dataset.ledger() if seen is None else seen.ledger
        if ledger is None:
            if not self._is_there:
                self._dataset.snapshot()  # raises unless there is a dataset
                self._is_there = True
            return False
        before = set(self._running)
        self._drop_lost(ledger)
        self._publish()
        self._give_back_failed()
        # Claims known when the ledger was read may have been finished or released since.
        self._adopt(ledger, before, seen)
        self._see_free(ledger, seen)
        return set(self._running) != before

    def _confirm(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._confirmed_s >= CONFIRM_EVERY_S:
            self._dataset.confirm()
            self._confirmed_s = now_s

    @property
    def has_work(self) -> bool:
        """Return whether there was something to claim at the last poll, now or after a pause."""
        return bool(self._free.compactions)

    def offer(self, *, is_contested: bool = False) -> float | None:
        """Return the urgency of the next claim; `None` if there is nothing to claim now. Callers that choose
        between datasets set `is_contested`; otherwise priorities are computed only if needed."""
        candidates = self._candidates()
        if not candidates:
            return None
        return max(0.0, *self._ranks(candidates, is_contested=is_contested).values())

    def chooses(self, new: Sequence[AnyCompaction], snapshot: Any) -> tuple[Ulid, ...]:
        """Return those of these new compactions for which the worker has idle slots, the most urgent
        first."""
        if self._room.rests(self.url, monotonic_ms(self._clock)):
            return ()
        by_urgency = sorted(new, key=lambda c: (-self._dataset.priority(c.spec, snapshot), c.id))
        return tuple(c.id for c in by_urgency[: self._room.idle_slots])

    def finished(self, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
        """Return, as Compacted, the compactions that are finished here and still owned in `ledger`, so that
        the coordinator in this process commits them. Includes only those claimed less than a heartbeat
        interval ago and without recorded progress: longer work deserves a version of its own before anything
        else can go wrong."""
        now_ms, at_ms = self._clock.now_ms(), monotonic_ms(self._clock)
        found: list[AnyCompaction] = []
        for compaction_id, running in self._running.items():
            self._take_in_results(running)
            entry = ledger.get(compaction_id)
            if entry is None or entry.progress is not None or not running.is_finished:
                continue
            if not self._heartbeats.is_short(running, at_ms):
                continue
            if transitions.owns(ledger, compaction_id, self._id):
                found.append(transitions.compacted(entry, self._id, now_ms, running.outputs()))
        return tuple(found)

    def settled(self, compaction_ids: Iterable[Ulid]) -> None:
        """Note that the coordinator has committed or refused these, as the ledger shows."""
        for compaction_id in compaction_ids:
            if compaction_id in self._running:
                self._has_finished(self._running[compaction_id])

    @property
    def holding(self) -> frozenset[Ulid]:
        """Return the compactions that are running here."""
        return frozenset(self._running)

    def claim(self) -> bool:
        """Do step 5 for the one compaction whose turn it is. Return whether this worker owns it now."""
        candidates = self._candidates()
        if not candidates:
            return False  # time has passed since the offer, and the clock may have been set back
        return self._take(self._turns.order(self._ranks(candidates))[0], candidates)

    def claim_only(self, compaction_id: Ulid, *, is_sharing: bool = False, is_untried: bool = False) -> bool:
        """Claim exactly this compaction, like `claim`. With `is_sharing`, it shares a slot with others and
        needs none of its own. `is_untried` says that no attempt at it has failed, and saves reading the
        attempts."""
        if is_untried:
            self._free.attempts = {}
        candidates = self._candidates(is_sharing=is_sharing)
        return compaction_id in candidates and self._take(compaction_id, candidates)

    def _take(self, compaction_id: Ulid, candidates: tuple[Ulid, ...]) -> bool:
        del self._free.compactions[compaction_id]
        if not self._claim_one(compaction_id):
            return False
        self._turns.had(compaction_id, candidates)
        return True

    def take_failures(self) -> tuple[tuple[Ulid, Exception], ...]:
        """Return the compactions released since the last call because a range failed for good."""
        failures, self._failures = tuple(self._failures), []
        return failures

    @property
    def pending(self) -> tuple[Future[Any], ...]:
        """Return the futures that this worker waits for."""
        found: list[Future[Any]] = []
        for running in self._running.values():
            found += running.pending.values()
            found += [running.preparation] if running.preparation is not None else []
        return tuple(found)

    def wait(self, timeout_s: float) -> None:
        """Return when a range finishes, or after `timeout_s`."""
        pending = self.pending
        if pending:
            wait(pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
        else:
            self._clock.sleep_s(timeout_s)

    def release(self) -> None:
        """Stop all tasks and release every compaction, keeping finished ranges; a compaction that is
        completely finished becomes Compacted."""
        for running in self._running.values():
            self._take_in(running)
            self._engine.cancel(running.compaction.id)
        mine = dict(self._running)
        for compaction_id in mine:
            self._let_go(compaction_id)
        ledger = self._dataset.ledger()
        # Compactions that a coordinator has claimed for this worker may not run yet.
        owned = [c.id for c in ledger.active() if transitions.owns(ledger, c.id, self._id)] if ledger else []

        given_back: list[Ulid] = []

        def change(latest: AnyLedger) -> AnyLedger:
            given_back.clear()
            for compaction_id in owned:
                if not transitions.owns(latest, compaction_id, self._id):
                    continue
                running = mine.get(compaction_id)
                if running is not None and running.is_finished:
                    now_ms, outputs = self._clock.now_ms(), running.outputs()
                    latest = transitions.finish(latest, compaction_id, self._id, now_ms, outputs)
                    continue
                if running is not None:
                    latest = self._beat(latest, running)
                latest = transitions.release(latest, compaction_id, self._id)
                given_back.append(compaction_id)
            return latest

        for running in mine.values():
            self._note_finished(running)
        if owned:
            self._dataset.update_ledger(change)
        for compaction_id in given_back:
            claim = mine.get(compaction_id)
            is_cut = claim is not None and claim.job is not None
            left = len(claim.works) - len(claim.outcomes) if claim is not None and is_cut else None
            self._observe(events.GivenBack(self.url, compaction_id, self._id, left))

    def abandon(self) -> None:
        """Drop all running compactions without releasing them: their dataset no longer exists."""
        for compaction_id in list(self._running):
            self._drop(compaction_id)

    def _take_in(self, running: Claim) -> None:
        self._begin(running)
        self._take_in_results(running)
        if not running.is_running:
            # Even if the ledger cannot be updated: an unused slot must not be withheld from other datasets.
            self._room.leave(self.url, running.compaction.id)

    def _take_in_results(self, running: Claim) -> None:
        for index, future in list(running.pending.items()):
            if not future.done():
                continue
            del running.pending[index]
            error = future.exception()
            if error is None:
                running.finish(index, self._dataset.outcome(future.result()), monotonic_ms(self._clock))
                self._report_range(running, index)
                self._heartbeats.report_movement(running)
            elif running.error is None:
                if not isinstance(error, Exception):
                    raise error
                running.error = error

    def _drop_lost(self, ledger: AnyLedger) -> None:
        for compaction_id in list(self._running):
            if not transitions.owns(ledger, compaction_id, self._id):
                self._drop(compaction_id)

    def _drop(self, compaction_id: Ulid) -> None:
        self._let_go(compaction_id)
        self._engine.cancel(compaction_id)
        self._observe(events.Lost(self._dataset.url, compaction_id, self._id))

    def _publish(self) -> None:
        now_ms, at_ms = self._clock.now_ms(), monotonic_ms(self._clock)
        finished = [r for r in self._running.values() if r.is_finished]
        going_on = [r for r in self._running.values() if not r.is_finished]
        is_beside = self._is_beside_coordinator
        beating = [
            r for r in going_on if self._heartbeats.deserves(r, at_ms, is_beside_coordinator=is_beside)
        ]
        for running in going_on:
            self._heartbeats.watch(running, at_ms)
        if not finished and not beating:
            return
        lost: set[Ulid] = set()

        def change(latest: AnyLedger) -> AnyLedger:
            lost.clear()
            for running in (*finished, *beating):
                if not transitions.owns(latest, running.compaction.id, self._id):
                    lost.add(running.compaction.id)
                elif running.is_finished:
                    latest = transitions.finish(
                        latest, running.compaction.id, self._id, now_ms, running.outputs()
                    )
                else:
                    latest = self._beat(latest, running)
            return latest

        for running in beating:
            self._note_finished(running)
        self._dataset.update_ledger(change)
        for compaction_id in lost:
            self._drop(compaction_id)
        for running in beating:
            self._heartbeats.has_beaten(running, at_ms)
        for running in finished:
            if running.compaction.id not in lost:
                self._has_finished(running)

    def _beat(self, ledger: AnyLedger, running: Claim) -> AnyLedger:
        return transitions.heartbeat(
            ledger,
            running.compaction.id,
            self._id,
            self._clock.now_ms(),
            running.progress(),
        )

    def _note_finished(self, running: Claim) -> None:
        """Note in the journal which of the ranges that are about to be recorded are finished."""
        running.is_noted = True
        last = [outcome.outputs[-1] for outcome in running.outcomes.values() if outcome.outputs]
        if not last:
            return
        # Without the note, these ranges may run again; nothing worse.
        with suppress(StoreError):
            names = map(self._dataset.output_name, last)
            self._dataset.journal.note_finished(running.compaction.id, self._id, names)

    def _has_finished(self, running: Claim) -> None:
        compaction_id = running.compaction.id
        self._let_go(compaction_id)
        self._room.succeeded(self.url)
        self._observe(events.Compacted(self._dataset.url, compaction_id, len(running.outputs())))
        # Entries left in the journal are garbage.
        if running.is_noted:
            with suppress(StoreError):
                self._dataset.journal.clear(compaction_id)

    def _give_back_failed(self) -> None:
        for running in [r for r in self._running.values() if r.error is not None]:
            assert running.error is not None
            self._give_back(running, running.error)

    def _give_back(self, running: Claim, error: Exception) -> None:
        compaction_id, now_ms = running.compaction.id, self._clock.now_ms()
        self._engine.cancel(compaction_id)

        def change(latest: AnyLedger) -> AnyLedger:
            if not transitions.owns(latest, compaction_id, self._id):
                return latest
            return transitions.release(self._beat(latest, running), compaction_id, self._id)

        self._note_finished(running)
        if isinstance(error, EngineDown) or self._engine.failure is not None:
            # The compaction is not to blame, so this is not an attempt.
            self._dataset.update_ledger(change)
            self._let_go(compaction_id)
            self._observe(events.EngineLost(self.url, compaction_id, str(error)))
            return
        if isinstance(error, StoreUnavailable) and self._store_losses[compaction_id] < MAX_STORE_LOSSES:
            self._dataset.update_ledger(change)
            self._store_losses[compaction_id] += 1
            self._let_go(compaction_id)
            self._observe(events.StoreLost(self.url, compaction_id, str(error)))
            return
        # Before the release, so that workers that see it free see the attempt; once, if the release fails.
        if running.attempt is None:
            running.attempt = Attempt(self._id, str(error), now_ms, len(running.outcomes))
        if not running.is_attempt_noted:
            self._dataset.journal.add_attempt(compaction_id, running.attempt)
            running.is_attempt_noted = True
        self._dataset.update_ledger(change)
        self._let_go(compaction_id)
        self._failures.append((compaction_id, error))
        self._room.failed(self.url, monotonic_ms(self._clock))
        self._observe(events.AttemptFailed(self._dataset.url, compaction_id, str(error)))

    def _adopt(self, ledger: AnyLedger, known: set[Ulid], seen: CoordinatorView | None) -> None:
        """Run compactions that this worker owns but does not run: the coordinator has claimed them for this
        worker, or the publication of a claim only seemed to fail."""
        for compaction in ledger.compactions:
            if compaction.id in known or not transitions.owns(ledger, compaction.id, self._id):
                continue
            if seen is not None and compaction.id in seen.new:
                self._observe(events.Claimed(self._dataset.url, compaction.id, self._id))
                self._start(compaction, seen)
            else:
                self._start(compaction)

    def _see_free(self, ledger: AnyLedger, seen: CoordinatorView | None) -> None:
        free = self._claimable(ledger)
        now_ms = monotonic_ms(self._clock)
        self._free_since_ms = {c.id: self._free_since_ms.get(c.id, now_ms) for c in free}
        self._free = _Free({c.id: c for c in free}, seen)
        self._turns.keep(self._free_since_ms.keys())

    def _candidates(self, *, is_sharing: bool = False) -> tuple[Ulid, ...]:
        """Return the compactions that may be claimed now, oldest first."""
        at_ms = monotonic_ms(self._clock)
        if not self._free.compactions or self._room.rests(self.url, at_ms):
            return ()
        found = [
            i
            for i in self._free.compactions
            if is_sharing or self._room.has_slot(at_ms - self._free_since_ms[i])
        ]
        if not found:
            return ()
        if self._free.attempts is None:
            is_known = all(map(self._is_new, found))
            self._free.attempts = {} if is_known else self._dataset.journal.attempts()
        attempts = self._free.attempts
        now_ms = self._clock.now_ms()  # attempts of other processes carry the times of their clocks
        return tuple(i for i in found if not self._is_paused(attempts.get(i, ()), now_ms))

    def _is_new(self, compaction_id: Ulid) -> bool:
        """Return whether no other worker can have claimed it before."""
        return self._free.seen is not None and compaction_id in self._free.seen.new

    def _ranks(self, candidates: tuple[Ulid, ...], *, is_contested: bool = False) -> dict[Ulid, float]:
        """Return the current priorities. Each failed attempt subtracts the full range of priorities, so
        untried compactions come first."""
        attempts = self._free.attempts or {}
        if self._free.priorities is None and (is_contested or len(candidates) > 1):
            snapshot = self._dataset.snapshot()
            specs = {i: c.spec for i, c in self._free.compactions.items()}
            self._free.priorities = {i: self._dataset.priority(spec, snapshot) for i, spec in specs.items()}
        priorities = self._free.priorities or {}
        return {i: priorities.get(i, 0.0) - len(attempts.get(i, ())) for i in candidates}

    def _is_paused(self, attempts: tuple[Attempt, ...], now_ms: int) -> bool:
        return bool(attempts) and self._room.options.retry_pause.lasts(
            len(attempts), attempts[-1].at_ms, now_ms
        )

    def _claim_one(self, compaction_id: Ulid) -> bool:
        now_ms = self._clock.now_ms()
        try:
            ledger = self._dataset.update_ledger(
                lambda latest: transitions.claim(latest, compaction_id, self._id, now_ms)
            )
        except LostOwnership:
            return False
        compaction = ledger.get(compaction_id)
        assert compaction is not None
        self._observe(events.Claimed(self._dataset.url, compaction_id, self._id))
        self._start(compaction, self._free.seen if self._is_new(compaction_id) else None)
        return True

    def _start(self, compaction: AnyCompaction, seen: CoordinatorView | None = None) -> None:
        """Prepare a compaction that this worker has claimed, and run its unfinished ranges. `seen` is the
        view in which it was new, if any."""
        at_ms, owner = monotonic_ms(self._clock), compaction.worker
        claimed_at_ms = self._clock.now_ms() if owner is None else owner.last_heartbeat_ms
        running = Claim(
            compaction, claimed_at_ms, at_ms, at_ms, at_ms, ProgressGate(at_ms), is_noted=seen is None
        )
        self._running[compaction.id] = running
        self._room.take(self.url, compaction.id)
        try:
            # Read after the claim, so that the snapshot is at least as new as the compaction.
            with contained(f"reading {self.url}"):
                snapshot = self._dataset.snapshot() if seen is None else seen.snapshot
        except LithifyError as error:
            running.error = error
            return
        self._engine.start()
        running.preparation = self._preparations.begin(compaction, snapshot)
        self._begin(running)

    def _let_go(self, compaction_id: Ulid) -> None:
        del self._running[compaction_id]
        self._room.leave(self.url, compaction_id)

    def _begin(self, running: Claim) -> None:
        """Submit the open ranges, once they are known."""
        if running.preparation is None or not running.preparation.done():
            return
        compaction, url = running.compaction, self._dataset.url
        try:
            prepared = running.preparation.result()
            with contained(f"claiming compaction {compaction.id} of {url}"):
                works = running.begin(prepared, self._dataset.output_name)
        except LithifyError as error:
            running.preparation, running.error = None, error
            return
        if compaction.progress is not None:
            done = len(running.outcomes)
            self._observe(events.Resumed(url, compaction.id, done, len(works)))
        self._observe(events.Prepared(url, compaction.id, len(works), running.cost_bytes))
        for index, work in works.items():
            running.pending[index] = self._engine.submit(compaction.id, work.function, work.argument)

    def _report_range(self, running: Claim, index: int) -> None:
        outcome = running.outcomes[index]
        self._observe(
            events.RangeFinished(
                self._dataset.url,
                running.compaction.id,
                index,
                running.works[index].cost_bytes,
                outcome.bytes_read,
                outcome.bytes_written,
                len(outcome.outputs),
                outcome.peak_memory_bytes,
                outcome.cpu_s,
                outcome.rows,
            )
        )

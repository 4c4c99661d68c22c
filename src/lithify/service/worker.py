"""A worker of one dataset: claims compactions and runs their ranges on the engine. One tick.

Each `tick`:

1. takes in the ranges that finished since the last one;
2. reads the ledger; what is no longer its own is cancelled and dropped (it was reclaimed);
3. in one publication writes Compacted for what is finished, and a heartbeat with the progress for
   what goes on, when one is due and enough bytes have moved (`lithify.compaction.heartbeat_gate`);
4. gives a compaction back (Scheduled, progress kept) when a range failed for good, and notes the attempt;
5. claims Scheduled compactions while it has room, cuts them into ranges and starts those that are not
   finished. What its slots cannot run at once it leaves to workers with idle ones for a while, and takes
   when none did, so that a small compaction need not wait for the end of a large one. After a failed
   attempt a compaction is left alone by all workers for a pause that grows with each, and then stands
   behind those that failed less often; a worker whose attempts all fail, whatever it claims, rests in
   between.

The worker owns no state that matters: killed at any point, its compaction is reclaimed and resumed
from the ranges recorded in the ledger. Its id must be new for each process, since the id in the
ledger is all that tells an owner from a zombie.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lithify import events
from lithify.backoff import GrowingPause
from lithify.clock import Clock
from lithify.compaction import transitions
from lithify.compaction.attempts import Attempt
from lithify.compaction.heartbeat_gate import Pulse
from lithify.compaction.running import Claim, Prepared
from lithify.compaction.transitions import AnyCompaction, AnyLedger
from lithify.datasets.kind import Dataset
from lithify.defects import contained
from lithify.engine.ports import Engine
from lithify.errors import LithifyError, LostOwnership, StoreError
from lithify.events import Observer
from lithify.ids import Ulid

MAX_REST_MS = 30_000
"""Longest rest of a worker whose attempts all fail; new work may be urgent."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Names are SlateDB's where it has the option."""

    max_concurrent_compactions: int = 4
    heartbeat_interval_ms: int = 10_000
    heartbeat_min_interval_ms: int = 2_000
    """Newly finished ranges are recorded at once, but not more often than this."""
    heartbeat_bytes: int = 100_000
    """A heartbeat is written only if at least so many bytes were read and written since the last one;
    slower than that is silent. 0: always."""
    spare_claim_delay_ms: int = 5_000
    """How long a compaction must have been free before a worker without idle slots claims it: time for
    others to look, so their poll interval."""
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


class Worker:
    """Executes compactions of one dataset under one identity.

    Before a large compaction can run, many block indexes have to be read. `executor` does that beside the
    ticks, so that heartbeats go on meanwhile; without one, the tick that claims does it.
    """

    def __init__(
        self,
        dataset: Dataset,
        engine: Engine,
        clock: Clock,
        worker_id: str,
        *,
        options: WorkerOptions | None = None,
        executor: Executor | None = None,
        observer: Observer = events.ignore,
    ) -> None:
        self._dataset = dataset
        self._engine = engine
        self._clock = clock
        self._id = worker_id
        self._options = options if options is not None else WorkerOptions()
        self._executor = executor
        self._observe = observer
        self._running: dict[Ulid, Claim] = {}
        self._free_since_ms: dict[Ulid, int] = {}
        """When this worker first saw what is free now."""
        self._failures: list[tuple[Ulid, Exception]] = []
        self._failures_in_row = 0
        self._failed_at_ms = 0

    @property
    def id(self) -> str:
        return self._id

    @property
    def url(self) -> str:
        """The dataset it works on."""
        return self._dataset.url

    @property
    def is_busy(self) -> bool:
        """Whether any compaction is running here."""
        return bool(self._running)

    @property
    def held(self) -> int:
        """How many compactions are running here."""
        return len(self._running)

    def tick(self, held_elsewhere: int = 0) -> bool:
        """One round of the algorithm above; whether any compaction changed hands or was finished.

        `held_elsewhere` compactions of other datasets run on the same engine and count towards the limit.
        """
        for running in self._running.values():
            self._take_in(running)
        ledger = self._dataset.ledger()
        if ledger is None:
            return False
        before = set(self._running)
        self._drop_lost(ledger)
        self._publish()
        self._give_back_failed()
        self._claim(ledger, before, held_elsewhere)
        return set(self._running) != before

    def take_failures(self) -> tuple[tuple[Ulid, Exception], ...]:
        """Compactions given back since the last call because a range of theirs failed for good."""
        failures, self._failures = tuple(self._failures), []
        return failures

    def wait(self, timeout_s: float) -> None:
        """Return when a range finishes, or after `timeout_s`."""
        pending: list[Future[Any]] = []
        for running in self._running.values():
            pending += running.pending.values()
            pending += [running.preparation] if running.preparation is not None else []
        if pending:
            wait(pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
        else:
            self._clock.sleep_s(timeout_s)

    def release(self) -> None:
        """Stop all tasks and give every compaction back, keeping what is finished."""
        for running in self._running.values():
            self._take_in(running)
            self._engine.cancel(running.compaction.id)
        mine, self._running = self._running, {}

        def change(latest: AnyLedger) -> AnyLedger:
            for compaction_id, running in mine.items():
                if transitions.owns(latest, compaction_id, self._id):
                    latest = self._beat(latest, running)
                    latest = transitions.release(latest, compaction_id, self._id)
            return latest

        for running in mine.values():
            self._note_finished(running)
        if mine:
            self._dataset.update_ledger(change)

    def _take_in(self, running: Claim) -> None:
        self._begin(running)
        for index, future in list(running.pending.items()):
            if not future.done():
                continue
            del running.pending[index]
            error = future.exception()
            if error is None:
                outcome = running.outcomes[index] = self._dataset.outcome(future.result())
                running.pulse.finish(index, outcome.bytes_read + outcome.bytes_written, self._clock.now_ms())
                self._report_range(running, index)
            elif running.error is None:
                if not isinstance(error, Exception):
                    raise error
                running.error = error

    def _drop_lost(self, ledger: AnyLedger) -> None:
        for compaction_id in list(self._running):
            if not transitions.owns(ledger, compaction_id, self._id):
                self._drop(compaction_id)

    def _drop(self, compaction_id: Ulid) -> None:
        del self._running[compaction_id]
        self._engine.cancel(compaction_id)
        self._observe(events.Lost(self._dataset.url, compaction_id, self._id))

    def _publish(self) -> None:
        now_ms = self._clock.now_ms()
        finished = [r for r in self._running.values() if r.is_finished]
        beating = [r for r in self._running.values() if not r.is_finished and self._deserves(r, now_ms)]
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
            self._has_beaten(running, now_ms)
        for running in finished:
            if running.compaction.id not in lost:
                self._has_finished(running)

    def _deserves(self, running: Claim, now_ms: int) -> bool:
        """Whether a heartbeat is due and deserved."""
        options, pulse = self._options, running.pulse
        if running.error is not None:
            return False
        since_ms = now_ms - running.last_heartbeat_ms
        if pulse.has_news:
            return since_ms >= options.heartbeat_min_interval_ms
        looked_ms = now_ms - running.looked_at_ms
        if since_ms < options.heartbeat_interval_ms or looked_ms < options.heartbeat_min_interval_ms:
            return False
        running.looked_at_ms = now_ms
        reported = self._dataset.journal.movements(running.compaction.id)
        mine = {
            name: movement
            for name, movement in reported.items()
            if (movement.worker, movement.claimed_at_ms) == (self._id, running.claimed_at_ms)
        }
        pulse.look(mine, now_ms)
        return pulse.deserves_heartbeat(now_ms, options.heartbeat_bytes, options.range_start_timeout_ms)

    def _beat(self, ledger: AnyLedger, running: Claim) -> AnyLedger:
        return transitions.heartbeat(
            ledger,
            running.compaction.id,
            self._id,
            self._clock.now_ms(),
            running.progress(),
        )

    def _note_finished(self, running: Claim) -> None:
        """Note which of the ranges that are about to be recorded are finished."""
        last = [outcome.outputs[-1] for outcome in running.outcomes.values() if outcome.outputs]
        if not last:
            return
        # Without the note these ranges may only run again.
        with suppress(StoreError):
            names = map(self._dataset.output_name, last)
            self._dataset.journal.note_finished(running.compaction.id, self._id, names)

    def _has_beaten(self, running: Claim, now_ms: int) -> None:
        running.last_heartbeat_ms = now_ms
        running.pulse.beat()
        self._observe(
            events.Heartbeat(self._dataset.url, running.compaction.id, self._id, running.pulse.moved_bytes)
        )

    def _has_finished(self, running: Claim) -> None:
        compaction_id = running.compaction.id
        del self._running[compaction_id]
        self._failures_in_row = 0
        self._observe(events.Compacted(self._dataset.url, compaction_id, len(running.outputs())))
        # What is left there is garbage.
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
        # Before the release, so that whoever sees it free sees the attempt too.
        attempt = Attempt(self._id, str(error), now_ms, len(running.outcomes))
        self._dataset.journal.add_attempt(compaction_id, attempt)
        self._dataset.update_ledger(change)
        del self._running[compaction_id]
        self._failures.append((compaction_id, error))
        self._failures_in_row += 1
        self._failed_at_ms = now_ms
        self._observe(events.AttemptFailed(self._dataset.url, compaction_id, str(error)))

    def _claim(self, ledger: AnyLedger, known: set[Ulid], held_elsewhere: int) -> None:
        # A claim of ours that does not run here: its publication had seemed to fail. What was `known`
        # when the ledger was read may have been finished or given back since.
        for compaction in ledger.compactions:
            if compaction.id not in known and transitions.owns(ledger, compaction.id, self._id):
                self._start(compaction)
        free = transitions.claimable(ledger)
        now_ms = self._clock.now_ms()
        self._free_since_ms = {c.id: self._free_since_ms.get(c.id, now_ms) for c in free}
        if not free or self._options.rest.lasts(self._failures_in_row, self._failed_at_ms, now_ms):
            return
        if not any(self._may_claim(c.id, held_elsewhere, now_ms) for c in free):
            return
        attempts = self._dataset.journal.attempts()
        # What has failed before does not stand before what has not been tried.
        for compaction in sorted(free, key=lambda c: len(attempts.get(c.id, ()))):
            if self._may_claim(compaction.id, held_elsewhere, now_ms) and not self._is_paused(
                attempts.get(compaction.id, ()), now_ms
            ):
                self._claim_one(compaction.id)

    def _may_claim(self, compaction_id: Ulid, held_elsewhere: int, now_ms: int) -> bool:
        held = len(self._running) + held_elsewhere
        if held >= self._options.max_concurrent_compactions:
            return False
        is_spare = held > 0 and held >= self._engine.slots
        free_ms = now_ms - self._free_since_ms[compaction_id]
        return not is_spare or free_ms >= self._options.spare_claim_delay_ms

    def _is_paused(self, attempts: tuple[Attempt, ...], now_ms: int) -> bool:
        return bool(attempts) and self._options.retry_pause.lasts(len(attempts), attempts[-1].at_ms, now_ms)

    def _claim_one(self, compaction_id: Ulid) -> None:
        now_ms = self._clock.now_ms()
        try:
            ledger = self._dataset.update_ledger(
                lambda latest: transitions.claim(latest, compaction_id, self._id, now_ms)
            )
        except LostOwnership:
            return
        compaction = ledger.get(compaction_id)
        assert compaction is not None
        self._observe(events.Claimed(self._dataset.url, compaction_id, self._id))
        self._start(compaction)

    def _start(self, compaction: AnyCompaction) -> None:
        """Find out what is left of a compaction that this worker has claimed, and run that."""
        now_ms = self._clock.now_ms()
        owner = compaction.worker
        claimed_at_ms = now_ms if owner is None else owner.last_heartbeat_ms
        running = Claim(compaction, claimed_at_ms, now_ms, now_ms, Pulse(now_ms))
        self._running[compaction.id] = running
        try:
            # Read after the claim, so that the snapshot is at least as new as the compaction.
            with contained(f"reading {self.url}"):
                snapshot = self._dataset.snapshot()
        except LithifyError as error:
            running.error = error
            return
        self._engine.start()
        running.preparation = self._beside(lambda: self._prepare(compaction, snapshot))
        self._begin(running)

    def _beside(self, function: Callable[[], Prepared]) -> Future[Prepared]:
        if self._executor is not None:
            return self._executor.submit(function)
        future: Future[Prepared] = Future()
        try:
            future.set_result(function())
        except LithifyError as error:
            future.set_exception(error)
        return future

    def _prepare(self, compaction: AnyCompaction, snapshot: object) -> Prepared:
        with contained(f"preparing compaction {compaction.id} of {self.url}"):
            job = self._dataset.prepare(compaction, snapshot)
            if compaction.progress is None:
                return Prepared(job)
            return Prepared(job, self._dataset.journal.finished(compaction.id))

    def _begin(self, running: Claim) -> None:
        """Run the open ranges, once they are known."""
        if running.preparation is None or not running.preparation.done():
            return
        compaction, url = running.compaction, self._dataset.url
        try:
            prepared = running.preparation.result()
            with contained(f"taking up compaction {compaction.id} of {url}"):
                works = running.begin(prepared, self._dataset.output_name)
        except LithifyError as error:
            running.preparation, running.error = None, error
            return
        if compaction.progress is not None:
            done = len(running.outcomes)
            self._observe(events.Resumed(url, compaction.id, done, len(works)))
        cost_bytes = sum(work.cost_bytes for work in works.values())
        self._observe(events.Prepared(url, compaction.id, len(works), cost_bytes))
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

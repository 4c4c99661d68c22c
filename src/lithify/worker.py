"""A worker of one dataset: claims compactions and runs their ranges on the engine. One tick.

Each `tick`:

1. takes in the ranges that finished since the last one;
2. reads the ledger; what is no longer its own is cancelled and dropped (it was reclaimed);
3. in one publication writes Compacted for what is finished, and a heartbeat with the progress for
   what goes on, when one is due and enough bytes have moved (`lithify.compaction.pulse`);
4. gives a compaction back (Scheduled, progress kept) when a range failed for good, and notes the attempt;
5. claims Scheduled compactions while it has room, cuts them into ranges and starts those that are not
   finished. After a failed attempt a compaction is left alone by all workers for a pause that grows with
   each; a worker whose attempts all fail, whatever it claims, rests in between.

The worker owns no state that matters: killed at any point, its compaction is reclaimed and resumed
from the ranges recorded in the ledger. Its id must be new for each process, since the id in the
ledger is all that tells an owner from a zombie.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lithify import telemetry
from lithify.clock import Clock
from lithify.compaction import protocol
from lithify.compaction.contract import Dataset, Job, RangeOutcome
from lithify.compaction.journal import Attempt
from lithify.compaction.model import Progress, RangeProgress
from lithify.compaction.pauses import GrowingPause
from lithify.compaction.protocol import AnyCompaction, AnyLedger, AnyProgress
from lithify.compaction.pulse import Pulse
from lithify.engine.ports import Engine
from lithify.errors import LithifyError, LostOwnership, StoreError
from lithify.ids import Ulid
from lithify.telemetry import Observer

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


@dataclass(slots=True)
class _Running:
    """A claimed compaction and the ranges of it."""

    compaction: AnyCompaction
    job: Job
    claimed_at_ms: int
    last_heartbeat_ms: int
    looked_at_ms: int
    """When the movements were read last."""
    pulse: Pulse
    pending: dict[int, Future[Any]] = field(default_factory=dict)
    outcomes: dict[int, RangeOutcome] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def is_finished(self) -> bool:
        return self.error is None and len(self.outcomes) == len(self.job.works)

    def outputs(self) -> tuple[Any, ...]:
        return tuple(o for index in sorted(self.outcomes) for o in self.outcomes[index].outputs)

    def progress(self) -> AnyProgress:
        """What is finished now; ranges still running keep what was recorded before."""
        recorded = self.compaction.progress
        return Progress(
            tuple(
                RangeProgress(
                    work.range,
                    self.outcomes[index].outputs
                    if index in self.outcomes
                    else (recorded.ranges[index].outputs if recorded is not None else ()),
                )
                for index, work in enumerate(self.job.works)
            ),
            self.job.retention_min_seq,
        )


class Worker:
    """Executes compactions of one dataset under one identity."""

    def __init__(
        self,
        dataset: Dataset,
        engine: Engine,
        clock: Clock,
        worker_id: str,
        *,
        options: WorkerOptions | None = None,
        observer: Observer = telemetry.ignore,
    ) -> None:
        self._dataset = dataset
        self._engine = engine
        self._clock = clock
        self._id = worker_id
        self._options = options if options is not None else WorkerOptions()
        self._observe = observer
        self._running: dict[Ulid, _Running] = {}
        self._failures: list[tuple[Ulid, Exception]] = []
        self._failures_in_row = 0
        self._failed_at_ms = 0

    @property
    def id(self) -> str:
        return self._id

    @property
    def is_busy(self) -> bool:
        """Whether any compaction is running here."""
        return bool(self._running)

    def tick(self) -> bool:
        """One round of the algorithm above; whether any compaction changed hands or was finished."""
        for running in self._running.values():
            self._take_in(running)
        ledger = self._dataset.ledger()
        if ledger is None:
            return False
        before = set(self._running)
        self._drop_lost(ledger)
        self._publish()
        self._give_back_failed()
        self._claim(ledger, before)
        return set(self._running) != before

    def take_failures(self) -> tuple[tuple[Ulid, Exception], ...]:
        """Compactions given back since the last call because a range of theirs failed for good."""
        failures, self._failures = tuple(self._failures), []
        return failures

    def wait(self, timeout_s: float) -> None:
        """Return when a range finishes, or after `timeout_s`."""
        pending = [f for running in self._running.values() for f in running.pending.values()]
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
                if protocol.owns(latest, compaction_id, self._id):
                    latest = self._beat(latest, running)
                    latest = protocol.release(latest, compaction_id, self._id)
            return latest

        for running in mine.values():
            self._note_finished(running)
        if mine:
            self._dataset.update_ledger(change)

    def _take_in(self, running: _Running) -> None:
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
            if not protocol.owns(ledger, compaction_id, self._id):
                self._drop(compaction_id)

    def _drop(self, compaction_id: Ulid) -> None:
        del self._running[compaction_id]
        self._engine.cancel(compaction_id)
        self._observe(telemetry.Lost(self._dataset.url, compaction_id, self._id))

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
                if not protocol.owns(latest, running.compaction.id, self._id):
                    lost.add(running.compaction.id)
                elif running.is_finished:
                    latest = protocol.finish(
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

    def _deserves(self, running: _Running, now_ms: int) -> bool:
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

    def _beat(self, ledger: AnyLedger, running: _Running) -> AnyLedger:
        return protocol.heartbeat(
            ledger,
            running.compaction.id,
            self._id,
            self._clock.now_ms(),
            running.progress() if running.outcomes else None,
        )

    def _note_finished(self, running: _Running) -> None:
        """Note which of the ranges that are about to be recorded are finished."""
        last = [outcome.outputs[-1] for outcome in running.outcomes.values() if outcome.outputs]
        if not last:
            return
        # Without the note these ranges may only run again.
        with suppress(StoreError):
            names = map(self._dataset.output_name, last)
            self._dataset.journal.note_finished(running.compaction.id, self._id, names)

    def _has_beaten(self, running: _Running, now_ms: int) -> None:
        running.last_heartbeat_ms = now_ms
        running.pulse.beat()
        self._observe(
            telemetry.Heartbeat(self._dataset.url, running.compaction.id, self._id, running.pulse.moved_bytes)
        )

    def _has_finished(self, running: _Running) -> None:
        compaction_id = running.compaction.id
        del self._running[compaction_id]
        self._failures_in_row = 0
        self._observe(telemetry.Compacted(self._dataset.url, compaction_id, len(running.outputs())))
        # What is left there is garbage.
        with suppress(StoreError):
            self._dataset.journal.clear(compaction_id)

    def _give_back_failed(self) -> None:
        for running in [r for r in self._running.values() if r.error is not None]:
            assert running.error is not None
            self._give_back(running, running.error)

    def _give_back(self, running: _Running, error: Exception) -> None:
        compaction_id, now_ms = running.compaction.id, self._clock.now_ms()
        self._engine.cancel(compaction_id)

        def change(latest: AnyLedger) -> AnyLedger:
            if not protocol.owns(latest, compaction_id, self._id):
                return latest
            return protocol.release(self._beat(latest, running), compaction_id, self._id)

        self._note_finished(running)
        # Before the release, so that whoever sees it free sees the attempt too.
        self._dataset.journal.add_attempt(compaction_id, Attempt(self._id, str(error), now_ms))
        self._dataset.update_ledger(change)
        del self._running[compaction_id]
        self._failures.append((compaction_id, error))
        self._failures_in_row += 1
        self._failed_at_ms = now_ms
        self._observe(telemetry.AttemptFailed(self._dataset.url, compaction_id, str(error)))

    def _claim(self, ledger: AnyLedger, known: set[Ulid]) -> None:
        # A claim of ours that does not run here: its publication had seemed to fail. What was `known`
        # when the ledger was read may have been finished or given back since.
        for compaction in ledger.compactions:
            if compaction.id not in known and protocol.owns(ledger, compaction.id, self._id):
                self._start(compaction)
        room = self._options.max_concurrent_compactions - len(self._running)
        free = protocol.claimable(ledger)
        now_ms = self._clock.now_ms()
        if (
            room <= 0
            or not free
            or self._options.rest.lasts(self._failures_in_row, self._failed_at_ms, now_ms)
        ):
            return
        attempts = self._dataset.journal.attempts()
        for compaction in [c for c in free if not self._is_paused(attempts.get(c.id, ()), now_ms)][:room]:
            self._claim_one(compaction.id)

    def _is_paused(self, attempts: tuple[Attempt, ...], now_ms: int) -> bool:
        return bool(attempts) and self._options.retry_pause.lasts(len(attempts), attempts[-1].at_ms, now_ms)

    def _claim_one(self, compaction_id: Ulid) -> None:
        now_ms = self._clock.now_ms()
        try:
            ledger = self._dataset.update_ledger(
                lambda latest: protocol.claim(latest, compaction_id, self._id, now_ms)
            )
        except LostOwnership:
            return
        compaction = ledger.get(compaction_id)
        assert compaction is not None
        self._observe(telemetry.Claimed(self._dataset.url, compaction_id, self._id))
        self._start(compaction)

    def _start(self, compaction: AnyCompaction) -> None:
        """Run what is left of a compaction that this worker has claimed."""
        now_ms = self._clock.now_ms()
        owner = compaction.worker
        claimed_at_ms = now_ms if owner is None else owner.last_heartbeat_ms
        running = _Running(compaction, Job(()), claimed_at_ms, now_ms, now_ms, Pulse(now_ms))
        self._running[compaction.id] = running
        try:
            # Read after the claim, so that the snapshot is at least as new as the compaction.
            running.job = self._dataset.prepare(compaction, self._dataset.snapshot())
            self._take_up(running)
        except LithifyError as error:
            running.error = error
            self._give_back(running, error)
            return
        works = {i: work for i, work in enumerate(running.job.works) if i not in running.outcomes}
        cost_bytes = sum(work.cost_bytes for work in works.values())
        self._observe(telemetry.Prepared(self._dataset.url, compaction.id, len(works), cost_bytes))
        for index, work in works.items():
            running.pending[index] = self._engine.submit(compaction.id, work.function, work.argument)

    def _take_up(self, running: _Running) -> None:
        """Take over the ranges that an earlier claim has finished and recorded."""
        compaction = running.compaction
        if compaction.progress is None:
            return
        finished = self._dataset.journal.finished(compaction.id)
        for index, recorded in enumerate(compaction.progress.ranges):
            if recorded.outputs and self._dataset.output_name(recorded.outputs[-1]) in finished:
                running.outcomes[index] = RangeOutcome(recorded.outputs, 0, 0, {}, 0.0, 0)
                running.pulse.finish(index, 0, running.claimed_at_ms)
        running.pulse.beat()
        done = len(running.outcomes)
        left = len(compaction.progress.ranges) - done
        self._observe(telemetry.Resumed(self._dataset.url, compaction.id, done, left))

    def _report_range(self, running: _Running, index: int) -> None:
        outcome = running.outcomes[index]
        self._observe(
            telemetry.RangeFinished(
                self._dataset.url,
                running.compaction.id,
                index,
                running.job.works[index].cost_bytes,
                outcome.bytes_read,
                outcome.bytes_written,
                len(outcome.outputs),
                outcome.peak_memory_bytes,
                outcome.cpu_s,
                outcome.rows,
            )
        )

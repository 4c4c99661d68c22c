"""A worker of one dataset: claims compactions and runs their ranges on the engine. One tick.

Each `tick`:

1. takes in the ranges that finished since the last one;
2. reads the ledger; what is no longer its own is cancelled and dropped (it was reclaimed);
3. in one publication writes Compacted for what is finished, and a heartbeat with the progress for
   what goes on, when one is due;
4. gives a compaction back (Scheduled, progress kept) when a range failed for good, and leaves it alone
   for a pause that grows with each failure;
5. claims Scheduled compactions while it has room, cuts them into ranges and starts these.

The worker owns no state that matters: killed at any point, its compaction is reclaimed and resumed
from the ranges recorded in the ledger. Its id must be new for each process, since the id in the
ledger is all that tells an owner from a zombie.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from lithify import telemetry
from lithify.clock import Clock
from lithify.compaction import protocol
from lithify.compaction.contract import Dataset, Job, RangeOutcome
from lithify.compaction.model import Progress, RangeProgress
from lithify.compaction.protocol import AnyCompaction, AnyLedger, AnyProgress
from lithify.engine.ports import Engine
from lithify.errors import LithifyError, LostOwnership
from lithify.ids import Ulid
from lithify.telemetry import Observer


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Names are SlateDB's."""

    max_concurrent_compactions: int = 4
    heartbeat_interval_ms: int = 10_000
    heartbeat_min_interval_ms: int = 2_000
    """Newly finished ranges are recorded at once, but not more often than this."""
    first_retry_pause_ms: int = 1_000
    """Pause before this worker claims again what it failed on; doubles with each failure."""
    max_retry_pause_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class _Pause:
    """How long to leave alone a compaction this worker failed on."""

    failures: int = 0
    until_ms: int = 0

    def after_failure(self, now_ms: int, options: WorkerOptions) -> _Pause:
        pause_ms = min(options.first_retry_pause_ms << min(self.failures, 32), options.max_retry_pause_ms)
        return _Pause(self.failures + 1, now_ms + pause_ms)


@dataclass(slots=True)
class _Running:
    """A claimed compaction and the ranges of it."""

    compaction: AnyCompaction
    job: Job
    last_heartbeat_ms: int
    pending: dict[int, Future[Any]] = field(default_factory=dict)
    outcomes: dict[int, RangeOutcome] = field(default_factory=dict)
    recorded: int = 0
    """How many outcomes the last heartbeat contained."""
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
        self._pauses: dict[Ulid, _Pause] = {}

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
        self._claim(ledger)
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

        if mine:
            self._dataset.update_ledger(change)

    def _take_in(self, running: _Running) -> None:
        for index, future in list(running.pending.items()):
            if not future.done():
                continue
            del running.pending[index]
            error = future.exception()
            if error is None:
                running.outcomes[index] = self._dataset.outcome(future.result())
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
        self._engine.cancel(compaction_id)
        del self._running[compaction_id]
        self._observe(telemetry.Lost(self._dataset.url, compaction_id, self._id))

    def _publish(self) -> None:
        now_ms = self._clock.now_ms()
        finished = [r for r in self._running.values() if r.is_finished]
        beating = [r for r in self._running.values() if not r.is_finished and self._is_due(r, now_ms)]
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

        self._dataset.update_ledger(change)
        for running in beating:
            running.last_heartbeat_ms = now_ms
            running.recorded = len(running.outcomes)
        for compaction_id in lost:
            self._drop(compaction_id)
        for running in finished:
            if running.compaction.id not in lost:
                del self._running[running.compaction.id]
                self._observe(
                    telemetry.Compacted(self._dataset.url, running.compaction.id, len(running.outputs()))
                )

    def _is_due(self, running: _Running, now_ms: int) -> bool:
        since_ms = now_ms - running.last_heartbeat_ms
        if len(running.outcomes) > running.recorded:
            return since_ms >= self._options.heartbeat_min_interval_ms
        return since_ms >= self._options.heartbeat_interval_ms

    def _beat(self, ledger: AnyLedger, running: _Running) -> AnyLedger:
        return protocol.heartbeat(
            ledger,
            running.compaction.id,
            self._id,
            self._clock.now_ms(),
            running.progress() if running.outcomes else None,
        )

    def _give_back_failed(self) -> None:
        failed = [r for r in self._running.values() if r.error is not None]
        for running in failed:
            assert running.error is not None
            self._engine.cancel(running.compaction.id)
            del self._running[running.compaction.id]
            self._give_back(running.compaction.id, running.error, running)

    def _give_back(self, compaction_id: Ulid, error: Exception, running: _Running | None = None) -> None:
        def change(latest: AnyLedger) -> AnyLedger:
            if not protocol.owns(latest, compaction_id, self._id):
                return latest
            if running is not None:
                latest = self._beat(latest, running)
            return protocol.release(latest, compaction_id, self._id)

        self._dataset.update_ledger(change)
        self._failures.append((compaction_id, error))
        self._pauses[compaction_id] = self._pauses.get(compaction_id, _Pause()).after_failure(
            self._clock.now_ms(), self._options
        )
        self._observe(telemetry.AttemptFailed(self._dataset.url, compaction_id, str(error)))

    def _claim(self, ledger: AnyLedger) -> None:
        room = self._options.max_concurrent_compactions - len(self._running)
        now_ms = self._clock.now_ms()
        self._pauses = {i: pause for i, pause in self._pauses.items() if ledger.get(i) is not None}
        paused = {i for i, pause in self._pauses.items() if now_ms < pause.until_ms}
        wanted = [c.id for c in protocol.claimable(ledger) if c.id not in paused][: max(room, 0)]
        for compaction_id in wanted:
            self._claim_one(compaction_id)

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
        try:
            # Read after the claim, so that the snapshot is at least as new as the compaction.
            job = self._dataset.prepare(compaction, self._dataset.snapshot())
        except LithifyError as error:
            self._give_back(compaction_id, error)
            return
        running = _Running(compaction, job, now_ms)
        self._running[compaction_id] = running
        self._observe(
            telemetry.Prepared(
                self._dataset.url,
                compaction_id,
                len(job.works),
                sum(work.cost_bytes for work in job.works),
            )
        )
        for index, work in enumerate(job.works):
            running.pending[index] = self._engine.submit(compaction_id, work.function, work.argument)

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

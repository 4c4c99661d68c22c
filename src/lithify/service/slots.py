"""The worker slots of a process, shared by its workers, with their backing off and their executor.

1. *Slots*: at most `max_concurrent_compactions` run in all workers together. An ended compaction takes no
   slot, even while the ledger cannot be updated, because its store is away for example. A compaction beyond
   the engine's parallelism is *spare*: it is left to others for `spare_claim_delay_ms`, then claimed.
   So a small compaction need not wait for the end of a large one. A caller that lets several share a slot
   (`lithify.fleet.worker`) counts them itself.
2. *Rest*: after repeated failures of a dataset, workers back off from it (`Rest`).
3. *Executor*: runs preparations, so that heartbeats continue meanwhile. `None`: in the tick that claims.

Used only by the thread of the ticks; only jobs of the executor run in other threads.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from lithify.base.backoff import GrowingPause
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.base.ids import Ulid
from lithify.datasets.kind import DatasetPort
from lithify.engine.ports import Engine
from lithify.protocol.running import Preparation
from lithify.protocol.transitions import AnyCompaction
from lithify.service.options import WorkerOptions


class Rest:
    """The backoff after failures, for a dataset or for the whole process. Pure.

    1. A dataset whose attempts all fail, whichever compaction is claimed, is backed off from, for a pause
       that grows with each failure in a row.
    2. When failures of several datasets follow each other without a success, the process itself is at fault
       (its engine, its connection to the store): then all datasets back off.

    So one dataset that always fails does not slow the others, and a broken process does not use up the
    attempts of all datasets.
    """

    def __init__(self, pause: GrowingPause) -> None:
        self._pause = pause
        self._of_dataset: dict[str, tuple[int, int]] = {}
        """Per dataset: the number of failures in a row, and the time of the last one."""
        self._of_process = (0, 0)
        self._failing: set[str] = set()
        """Datasets with a failure since the last success of any dataset."""

    def failed(self, url: str, now_ms: int) -> None:
        self._of_dataset[url] = self._of_dataset.get(url, (0, 0))[0] + 1, now_ms
        self._of_process = self._of_process[0] + 1, now_ms
        self._failing.add(url)

    def succeeded(self, url: str) -> None:
        self._of_dataset.pop(url, None)
        self._of_process = (0, 0)
        self._failing.clear()

    def lasts(self, url: str, now_ms: int) -> bool:
        if len(self._failing) > 1 and self._pause.lasts(*self._of_process, now_ms):
            return True
        return self._pause.lasts(*self._of_dataset.get(url, (0, 0)), now_ms)


class WorkerSlots:
    """The worker slots of one process."""

    def __init__(self, engine: Engine, options: WorkerOptions, executor: Executor | None = None) -> None:
        self.executor = executor
        self._engine = engine
        self.options = options
        self._held: set[tuple[str, Ulid]] = set()
        self._rest = Rest(options.rest)

    @property
    def held(self) -> int:
        """Return the number of compactions that run in this process."""
        return len(self._held)

    def take(self, url: str, compaction_id: Ulid) -> None:
        """Note that a compaction of that dataset runs from now on."""
        self._held.add((url, compaction_id))

    def leave(self, url: str, compaction_id: Ulid) -> None:
        """Note that it does not run any more."""
        self._held.discard((url, compaction_id))

    def has_slot(self, free_ms: int) -> bool:
        """Return whether a compaction that has been claimable for `free_ms` may be claimed."""
        held, options = self.held, self.options
        if held >= options.max_concurrent_compactions:
            return False
        is_spare = held > 0 and held >= self._engine.slots
        return not is_spare or free_ms >= options.spare_claim_delay_ms

    @property
    def slots(self) -> int:
        """Return the number of compactions that run at once without being spare and without sharing a
        slot."""
        return min(self.options.max_concurrent_compactions, max(1, self._engine.slots))

    @property
    def idle_slots(self) -> int:
        """Return how many of these slots are free now."""
        return max(0, self.slots - self.held)

    def check_engine(self) -> None:
        """Raise the engine's failure, if it has failed for good."""
        if self._engine.failure is not None:
            raise self._engine.failure

    def check_master(self) -> None:
        """Raise `EngineDown` when something that the engine needs is plainly missing. Called before the first
        write."""
        self._engine.check()

    def failed(self, url: str, now_ms: int) -> None:
        """Note that an attempt at a compaction of that dataset has failed."""
        self._rest.failed(url, now_ms)

    def succeeded(self, url: str) -> None:
        """Note that a compaction of that dataset has succeeded."""
        self._rest.succeeded(url)

    def rests(self, url: str, now_ms: int) -> bool:
        """Return whether to back off from that dataset now."""
        return self._rest.lasts(url, now_ms)

    def close(self) -> None:
        """Prepare nothing any more."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)


class Preparations:
    """Prepares claimed compactions of one dataset to run, in parallel with the ticks.

    1. A large compaction needs many block indexes before it can run. The slots' executor reads them, so that
       heartbeats continue meanwhile; without an executor, the tick that claims does.
    2. The compaction is cut into ranges for as many tasks as the engine runs at once.
    3. If the ledger records progress, the journal's notes about finished ranges are read too.

    All errors of the dataset are raised by the future, none by `begin`.
    """

    def __init__(self, dataset: DatasetPort, engine: Engine, room: WorkerSlots) -> None:
        self._dataset = dataset
        self._engine = engine
        self._room = room

    def begin(self, compaction: AnyCompaction, snapshot: object) -> Future[Preparation]:
        """Start preparing this compaction; `snapshot` must be at least as new."""
        if self._room.executor is not None:
            return self._room.executor.submit(self._prepare, compaction, snapshot)
        future: Future[Preparation] = Future()
        try:
            future.set_result(self._prepare(compaction, snapshot))
        except LithifyError as error:
            future.set_exception(error)
        return future

    def _prepare(self, compaction: AnyCompaction, snapshot: object) -> Preparation:
        with contained(f"preparing compaction {compaction.id} of {self._dataset.url}"):
            job = self._dataset.prepare(compaction, snapshot, self._engine.slots)
            if compaction.progress is None:
                return Preparation(job)
            return Preparation(job, self._dataset.journal.finished(compaction.id))

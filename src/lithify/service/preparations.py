"""Preparing claimed compactions to run, in parallel with the ticks.

1. A large compaction needs many block indexes before it can run. The slots' executor reads them, so that
   heartbeats continue meanwhile; without an executor, the tick that claims does.
2. The compaction is cut into ranges for as many tasks as the engine runs at once.
3. If the ledger records progress, the journal's notes about finished ranges are read too.

All errors of the dataset are raised by the future, none by `begin`.
"""

from __future__ import annotations

from concurrent.futures import Future

from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.datasets.kind import DatasetPort
from lithify.engine.ports import Engine
from lithify.protocol.running import Preparation
from lithify.protocol.transitions import AnyCompaction
from lithify.service.slots import WorkerSlots


class Preparations:
    """The preparations for one dataset."""

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

"""What has to be known before a claimed compaction can run, found out beside the ticks.

1. Before a large compaction can run, many block indexes have to be read. The room's executor does that, so
   that heartbeats go on meanwhile; without one, the tick that claims does it.
2. The compaction is cut into ranges for as many tasks as the engine runs at once.
3. If the ledger records progress, what the journal notes about finished ranges is read too.

Whatever goes wrong is the future's: beginning one raises nothing of the dataset's.
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
    """Prepares compactions of one dataset, in a room."""

    def __init__(self, dataset: DatasetPort, engine: Engine, room: WorkerSlots) -> None:
        self._dataset = dataset
        self._engine = engine
        self._room = room

    def begin(self, compaction: AnyCompaction, snapshot: object) -> Future[Preparation]:
        """Prepare this one, of which `snapshot` is at least as new."""
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

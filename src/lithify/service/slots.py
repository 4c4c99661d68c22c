"""What the workers of a process share: slots, rest, and who prepares compactions beside the ticks.

1. *Slots*: of all workers together at most `max_concurrent_compactions` run. What has ended takes no slot,
   even while its dataset cannot be told so, because its store is away for example. A compaction beyond what
   the engine runs at once is *spare*: it is left to other processes for `spare_claim_delay_ms`, and taken
   when none came. So a small compaction need not wait for the end of a large one. Who says that several
   share a slot (`lithify.fleet.worker`) counts them itself.
2. *Rest*: what fails again and again is left alone in between (`lithify.planning.rest`).
3. *Executor*: where preparations run, so that heartbeats go on meanwhile. None: in the tick that claims.

A room is used by one thread, that of the ticks; only what the executor is given runs elsewhere.
"""

from __future__ import annotations

from concurrent.futures import Executor

from lithify.base.ids import Ulid
from lithify.engine.ports import Engine
from lithify.planning.rest import Rest
from lithify.service.options import WorkerOptions


class WorkerSlots:
    """The room of one process."""

    def __init__(self, engine: Engine, options: WorkerOptions, executor: Executor | None = None) -> None:
        self.executor = executor
        self._engine = engine
        self.options = options
        self._held: set[tuple[str, Ulid]] = set()
        self._rest = Rest(options.rest)

    @property
    def held(self) -> int:
        """How many compactions run in this process."""
        return len(self._held)

    def take(self, url: str, compaction_id: Ulid) -> None:
        """A compaction of that dataset is held from here on."""
        self._held.add((url, compaction_id))

    def leave(self, url: str, compaction_id: Ulid) -> None:
        """It is not held any more."""
        self._held.discard((url, compaction_id))

    def has_slot(self, free_ms: int) -> bool:
        """Whether something that has been free for `free_ms` may be claimed."""
        held, options = self.held, self.options
        if held >= options.max_concurrent_compactions:
            return False
        is_spare = held > 0 and held >= self._engine.slots
        return not is_spare or free_ms >= options.spare_claim_delay_ms

    @property
    def slots(self) -> int:
        """How many compactions run at once that are no spare ones and share no slot."""
        return min(self.options.max_concurrent_compactions, max(1, self._engine.slots))

    @property
    def idle_slots(self) -> int:
        """How many of these can be taken now."""
        return max(0, self.slots - self.held)

    def check_engine(self) -> None:
        """Raises when nothing will ever run here again."""
        if self._engine.failure is not None:
            raise self._engine.failure

    def check_master(self) -> None:
        """`EngineDown` when what the engine needs is plainly not there. Asked before the first write."""
        self._engine.check()

    def failed(self, url: str, now_ms: int) -> None:
        """An attempt at a compaction of that dataset came to nothing."""
        self._rest.failed(url, now_ms)

    def succeeded(self, url: str) -> None:
        """A compaction of that dataset was carried out."""
        self._rest.succeeded(url)

    def rests(self, url: str, now_ms: int) -> bool:
        """Whether nothing of that dataset is to be claimed now."""
        return self._rest.lasts(url, now_ms)

    def close(self) -> None:
        """Nothing is prepared any more."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)

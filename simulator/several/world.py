"""What the processes of one run share, and how each of them reaches the stores of the datasets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeVar

from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from simulator.codecs import REAL_SHARE, Codecs
from simulator.core.fibers import FiberClock, Killed, Scheduler
from simulator.core.recording import RecordedWorld
from simulator.several.lake import Lake
from simulator.several.scenario import MAX_LATENCY_MS, Scenario, Trouble

ResultT = TypeVar("ResultT")


class Written(Protocol):
    """Is told of what happens to datasets."""

    def wrote(self, who: str, place: str, key: str, data: bytes) -> None:
        """A process has written an object to the store of a dataset."""

    def changed(self, place: str) -> None:
        """What the dataset consists of has changed."""

    def hindered(self, place: str) -> None:
        """A write of the ledger of a dataset was made to fail."""


class World(RecordedWorld):
    """All that the processes of one run share."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(trace)
        self.seed = seed
        self.rng = random.Random(f"several {seed}")
        self.scenario = Scenario.draw(self.rng)
        self.scheduler = Scheduler(self.rng)
        self.clock = FiberClock(self.scheduler)
        self.ids = RandomIds(self.rng)
        self.codecs = Codecs(real=self.rng.random() < REAL_SHARE)
        self.lake = Lake()
        self.is_calm = False
        """Nothing goes wrong any more, and nothing arrives."""
        self.killed: set[str] = set()
        """Processes that end at their next call of a store."""
        self.is_over = False
        """What still runs ends at its next call of a store."""
        self.watcher: Written | None = None

    def end(self) -> None:
        self.is_over = True


class PlaceStore(WrappedStore):
    """The store of one dataset as one process reaches it.

    Every call takes a while. While the store is away nothing answers. Where the seed says so, the answer to
    the note of an attempt is lost, or the ledger cannot be written right after it, once for each compaction.
    """

    def __init__(
        self,
        world: World,
        inner: ObjectStore,
        who: str,
        place: str,
        is_ledger: Callable[[str], bool],
        trouble: Callable[[], Trouble | None],
    ) -> None:
        super().__init__(inner)
        self._world = world
        self._who = who
        self._place = place
        self._is_ledger = is_ledger
        self._trouble = trouble
        self._fails_ledger = False
        self._disturbed: set[str] = set()
        """Compactions one note of which was disturbed. More of that and they count as silent."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if self._world.is_over:
            raise self._world.violation or Killed
        self._world.scheduler.sleep_ms(self._world.rng.randint(1, MAX_LATENCY_MS))
        if self._who in self._world.killed:
            raise Killed
        where = f"{call.method} {call.key} of {self._place}"
        if self._trouble() is Trouble.AWAY:
            raise StoreError(f"{where}: the store is away")
        if call.method == "create" and self._fails_ledger and self._is_ledger(call.key):
            self._fails_ledger = False
            self._world.count("fault: ledger write fails after the note of a failure")
            if self._world.watcher is not None:
                self._world.watcher.hindered(self._place)
            raise StoreError(f"{where}: injected failure")
        return action()

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        etag = super().create(key, data, put_id)
        self._wrote(key, data)
        return etag

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._wrote(key, data)
        scenario, world = self._world.scenario, self._world
        compaction = key.split("/")[-2]
        if "/attempts/" not in key or world.is_calm or compaction in self._disturbed:
            return
        if world.rng.random() < scenario.failed_notes:
            self._disturbed.add(compaction)
            world.count("fault: answer to the note of a failure lost")
            raise StoreError(f"put {key} of {self._place}: injected failure, the answer is lost")
        if world.rng.random() < scenario.failed_returns:
            self._disturbed.add(compaction)
            self._fails_ledger = True

    def _wrote(self, key: str, data: bytes) -> None:
        if self._world.watcher is not None:
            self._world.watcher.wrote(self._who, self._place, key, data)

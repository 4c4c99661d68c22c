"""What the processes of one run share, and how each of them reaches the store.

1. What goes wrong with a call stands in `core.processes`.
2. There is one store for the fleet and all datasets. Its clock is right, those of processes are off.
3. A process may be frozen for a time that is known; then its calls wait for the end of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from lithify.base.errors import StoreError
from lithify.fleet.files import FleetFiles
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.memory import MemoryStore
from simulator.core.fibers import FiberClock
from simulator.core.processes import (
    CallFaults,
    FaultyProcess,
    ProcessStore,
    SharedWorld,
)
from simulator.fleet.scenario import Scenario, Trouble
from simulator.fleet.shelves import FOLDER, Place, is_own

ResultT = TypeVar("ResultT")

FLEET = "fleet"


class Watcher(Protocol):
    """Is told of all changes: of a write once it is done, of a deletion before."""

    def wrote(self, process: Process | None, key: str, data: bytes) -> None: ...

    def deletes(self, process: Process | None, key: str) -> None: ...

    def failed(self, process: Process, place: Place) -> None:
        """A look at a dataset fails, since something is wrong with it."""

    def looked(self, process: Process, place: Place) -> None:
        """A process has read a dataset."""

    def strayed(self, process: Process, key: str) -> None:
        """A process that has opened a dataset which is gone has written this in the place of it."""


class World(SharedWorld[Scenario, Watcher]):
    """All that the processes of one run share."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__("fleet", seed, Scenario.draw, trace)
        self.faults = self.scenario.faults
        self.told_objects = _ToldStore(self)
        self.files = self.fleet_files(self.objects, self.clock)
        """The fleet for who makes no mistakes."""
        self.places: dict[str, Place] = {}
        self.by_url: dict[str, Place] = {}

    def make_places(self) -> None:
        """Make the datasets."""
        self.places = {plan.name: Place(self, plan) for plan in self.scenario.shelves}
        self.by_url = {place.url: place for place in self.places.values()}

    def fleet_files(self, store: MemoryStore | ProcessStore, clock: FiberClock) -> FleetFiles:
        return FleetFiles(f"memory://{FLEET}", store, FLEET, clock, self.ids, self.rng)

    def process_of(self, kind: str) -> Process:
        """A new process with a name of its own."""
        return Process(self, kind)

    def calm(self) -> None:
        """From now on nothing goes wrong any more; clocks stay as they are."""
        self.faults = CallFaults()
        self.is_calm = True
        self.log("world", "from now on nothing goes wrong")


class Process(FaultyProcess):
    """One process: its view of store and time, and whether it lives."""

    def __init__(self, world: World, kind: str) -> None:
        super().__init__(world, world.objects, kind, world.faults.skew_ms)
        self.world = world
        self.store = _Store(world.objects, self)
        self.files = world.fleet_files(self.store, self.clock)
        self.member = ""
        """Its name in the fleet."""
        self.frozen_until_ms = 0
        if world.is_traced:
            self.log(f"starts, its clock is {self.clock.skew_ms:+d} ms off")

    def store_of(self, place: Place) -> ProcessStore:
        """The store for what this process does with a dataset that it opens now."""
        return _Opened(self.world.objects, self, place)

    def begin(self, what: str) -> CallFaults:
        if self.world.is_over and self.world.watcher is None:
            raise StoreError("what a process had left open is closed when all is over")
        faults = super().begin(what)
        while self.now_ms < self.frozen_until_ms:
            self.sleep_ms(self.frozen_until_ms - self.now_ms)
            faults = super().begin(what)
        return faults

    def deletes(self, key: str) -> None:
        if self.world.watcher is not None:
            self.world.watcher.deletes(self, key)


class _ToldStore(WrappedStore):
    """The store for who makes no mistakes; what is created is told."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects)
        self._world = world

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        return action()

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        etag = super().create(key, data, put_id)
        if self._world.watcher is not None:
            self._world.watcher.wrote(None, key, data)
        return etag


class _Store(ProcessStore):
    """The store as one process reaches it; everything written or deleted is told."""

    def __init__(self, inner: MemoryStore, process: Process) -> None:
        super().__init__(inner, process)
        self._of = process

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        name = call.key.split("/")[1] if call.key.startswith(f"{FOLDER}/") else ""
        place = self._of.world.places.get(name)
        if place is not None and place.trouble is Trouble.AWAY:
            self._of.begin(f"{call.method} {call.key}")
            raise StoreError(f"{call.method} {call.key}: the store is away")
        return super().around(call, action)

    def delete(self, key: str) -> None:
        self.around(Call("delete", key), lambda: self._delete(key))

    def _delete(self, key: str) -> None:
        self._of.deletes(key)
        self.inner.delete(key)


class _Opened(_Store):
    """The store for what a process does with a dataset, of which it is known which one that was."""

    def __init__(self, inner: MemoryStore, process: Process, place: Place) -> None:
        super().__init__(inner, process)
        self._place, self._incarnations = place, dict(place.incarnations)

    def _create(self, key: str, data: bytes, put_id: str | None) -> str | None:
        self._place.asks_before_version(key)
        if self._is_there(key):
            return super()._create(key, data, put_id)
        etag = self.inner.create(key, data, put_id)
        self._strayed(key)
        return etag

    def _put(self, key: str, data: bytes) -> None:
        if self._is_there(key):
            super()._put(key, data)
        else:
            self.inner.put(key, data)
            self._strayed(key)

    def _replace(self, key: str, data: bytes, etag: str) -> str | None:
        if self._is_there(key):
            return super()._replace(key, data, etag)
        written = self.inner.replace(key, data, etag)
        self._strayed(key)
        return written

    def _is_there(self, key: str) -> bool:
        """Whether what was opened is what this object is of."""
        part = is_own(key)
        return self._place.incarnations[part] == self._incarnations[part]

    def _strayed(self, key: str) -> None:
        if self._of.world.watcher is not None:
            self._of.world.watcher.strayed(self._of, key)

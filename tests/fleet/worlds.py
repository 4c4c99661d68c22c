"""A fleet in memory, on a manual clock, with counted requests."""

from __future__ import annotations

import random

from lithify.base.ids import RandomIds
from lithify.fleet.catalog.changes import first_catalog
from lithify.fleet.files import FleetFiles
from lithify.store.objects import ObjectStore
from lithify.testing import CountingStore, ManualClock, MemoryStore


class World:
    """One store, and any number of processes that share it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.store = CountingStore(self.memory)
        self.ids = RandomIds(random.Random(1))
        self.files = self.process()

    def process(self, store: ObjectStore | None = None) -> FleetFiles:
        """The fleet as a process of its own sees it, through its own way to the store if it has one."""
        store = store if store is not None else self.store
        return FleetFiles("memory://fleet", store, "fleet", self.clock, self.ids, random.Random(2))

    def init(self) -> None:
        self.files.catalog.create(first_catalog("Q0"))

    def requests(self) -> dict[str, int]:
        """Since the last call, by verb."""
        found = {str(verb): count for verb, count in self.store.requests.items()}
        self.store.reset()
        return found

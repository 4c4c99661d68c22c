"""What the processes of one run share, and how each of them reaches the store, the catalog and the files.

1. What goes wrong with a call stands in `core.processes`.
2. A commit whose answer is lost may have taken effect, or do so later.
3. The store's clock is right. Those of processes are off, and jump.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate

from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl
from simulator.core.processes import FaultyProcess, SharedWorld
from simulator.history.lake import IDENTIFIER, ROOT, CatalogView, FilesView, Lake, catalog_of
from simulator.history.scenario import MAX_LATE_MS, Faults, Scenario

ResultT = TypeVar("ResultT")


class Watcher(Protocol):
    """Is told of all changes: of a write and a commit once it is done, of a deletion before."""

    def wrote(self, process: Process, key: str, data: bytes) -> None: ...

    def deletes(self, process: Process, path: str) -> None: ...

    def committed(
        self,
        process: Process,
        began_ms: int,
        before: TableMetadata,
        after: TableMetadata,
        updates: tuple[TableUpdate, ...],
    ) -> None:
        """`began_ms`: when the run began that asked for it; when it was asked where no run did."""


class World(SharedWorld[Scenario, Watcher]):
    """All that the processes of one run share."""

    faults: Faults

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__("history", seed, Scenario.draw, trace)
        self.faults = self.scenario.faults
        self.lake = Lake(self.ids)
        self.has_late_record = False
        """Whether the catalog wrote table properties long after the request: the table may record a reader or
        a hold that was given up meanwhile, and then expiry refuses until a person accepts it."""

    def process(self, kind: str) -> Process:
        """A new process with a name of its own."""
        return Process(self, kind)

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.faults = Faults(skew_ms=self.faults.skew_ms)
        self.is_calm = True
        self.log("world", "from now on nothing goes wrong, and everybody ends what is begun")


class Process(FaultyProcess):
    """One process: its view of store, catalog, files and time, and whether it lives."""

    def __init__(self, world: World, kind: str) -> None:
        is_writer = kind == "writer"
        skew_ms = world.scenario.writer_skew_ms if is_writer else world.faults.skew_ms
        super().__init__(world, world.objects, kind, skew_ms, has_jumping_clock=not is_writer)
        self.world = world
        self.run_began_ms: int | None = None
        """When the run of expiry began that is under way."""
        self.files = FilesView(world.lake.files, self)
        self.catalog: CatalogView = catalog_of(world.lake, self, is_exact=world.scenario.is_exact)
        if world.is_traced:
            self.log(f"starts, its clock is {self.clock.skew_ms:+d} ms off")

    def dataset(self) -> IcebergDataset:
        """The table as this process opens it."""
        return IcebergDataset(
            self.catalog,
            TableUrl("lake", IDENTIFIER),
            self.clock,
            self.ids,
            rng=self.rng,
            open_place=lambda table: (self.store, ROOT),
        )

    @property
    def began_ms(self) -> int:
        return self.world.now_ms if self.run_began_ms is None else self.run_began_ms

    def deletes(self, path: str) -> None:
        if self.world.watcher is not None:
            self.world.watcher.deletes(self, path)

    def has_committed(
        self, began_ms: int, before: TableMetadata, after: TableMetadata, updates: tuple[TableUpdate, ...]
    ) -> None:
        if self.world.watcher is not None:
            self.world.watcher.committed(self, began_ms, before, after, updates)

    def commit(self, what: str, action: Callable[[], ResultT]) -> ResultT:
        """A commit, which is sent once."""
        world, rng, faults = self.world, self.rng, self.world.faults
        self.begin(what)
        if rng.random() >= faults.trouble_per_commit:
            return action()
        fault = rng.choice(("crash", "fails", "answer lost", "late"))
        if fault == "crash":
            self.crash(what, action)
        world.count(f"fault: commit {fault}")
        self.log(f"{what}: {fault}")
        if fault == "answer lost":
            action()
        elif fault == "late":
            world.scheduler.spawn(lambda: self._late(what, action), rng.randint(1, MAX_LATE_MS))
        raise CommitStateUnknownException(f"{what}: no answer")

    def _late(self, what: str, action: Callable[[], object]) -> None:
        if not self.world.is_over:
            self.log(f"{what}: comes late")
            try:
                action()
                self.world.has_late_record |= "set-properties" in what
            except Exception as error:
                self.log(f"{what}: {error}")

"""A database and a table as small as can be, on stores in memory, for tests of leadership."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.lease import FoundLease, Lease
from lithify.protocol.model import Ledger
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock
from lithify.testing.memory import MemoryStore
from tests.datasets.iceberg.tables import new_catalog, new_table
from tests.datasets.slatedb.trees import EMPTY

Wrap = Callable[[ObjectStore], ObjectStore]
LEASE_KEY = "db/lithify/coordinator.json"


def unwrapped(store: ObjectStore) -> ObjectStore:
    return store


@dataclass
class Database:
    """A database without rows, whose clocks and numbered files the test sets."""

    clock: ManualClock = field(default_factory=ManualClock)
    keeps_put_ids: bool = True

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.clock, keeps_put_ids=self.keeps_put_ids)
        self.publish(replace(EMPTY, compactor_epoch=0))

    @property
    def numbers(self) -> list[int]:
        return [int(meta.key[-29:-9]) for meta in self.memory.list("db/manifest")]

    @property
    def manifest(self) -> Manifest:
        return decode_manifest(self.memory.get(_manifest(self.numbers[-1])), "manifest")

    def publish(self, manifest: Manifest) -> None:
        """As a program does that knows no marks."""
        number = self.numbers[-1] + 1 if self.numbers else 1
        self.memory.create(_manifest(number), encode_manifest(manifest))

    def open_with_coordinator(self) -> int:
        """What SlateDB does that has a coordinator inside; its epoch."""
        epoch = self.manifest.compactor_epoch + 1
        self.publish(replace(self.manifest, compactor_epoch=epoch))
        ledgers = len(list(self.memory.list("db/compactions")))
        self.memory.create(f"db/compactions/{ledgers + 1:020}.compactions", encode_ledger(Ledger(epoch)))
        return epoch

    def flush(self) -> None:
        """What a writer does."""
        self.publish(replace(self.manifest, last_l0_seq=self.manifest.last_l0_seq + 1))

    def dataset(self, wrap: Wrap = unwrapped, clock: Clock | None = None) -> SlateDataset:
        return SlateDataset(wrap(self.memory), "db", clock or self.clock, RandomIds())

    def leadership(self, wrap: Wrap = unwrapped, clock: Clock | None = None) -> Leadership:
        return Leadership(self.dataset(wrap, clock), clock or self.clock, RandomIds())

    def copy(self) -> Database:
        """The same, to play another story."""
        made = Database(ManualClock(self.clock.now_ms()), self.keeps_put_ids)
        for meta in list(made.memory.list("")):
            made.memory.delete(meta.key)
        for meta in self.memory.list(""):
            made.memory.create(meta.key, self.memory.get(meta.key))
        return made


def _manifest(number: int) -> str:
    return f"db/manifest/{number:020}.manifest"


class TableWorld:
    """A table whose sidecar lies in memory."""

    def __init__(self, folder: Path, *, keeps_put_ids: bool = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock, keeps_put_ids=keeps_put_ids)
        self.table: Table = new_table(new_catalog(folder), **options)

    @property
    def lease_key(self) -> str:
        return self.dataset().lease.key

    def publish(self, epoch: int) -> None:
        self.publish_bytes(LEDGERS.encode(Ledger(epoch)))

    def publish_bytes(self, ledger: bytes) -> None:
        self.memory.create(f"{self.dataset().own_folder}/ledger/{1:020}.json", ledger)

    def dataset(self, wrap: Wrap = unwrapped) -> IcebergDataset:
        url = TableUrl("test", self.table.name())
        place = (wrap(self.memory), "db")
        return IcebergDataset(self.table.catalog, url, self.clock, RandomIds(), open_place=lambda _: place)

    def leadership(self, wrap: Wrap = unwrapped) -> Leadership:
        return Leadership(self.dataset(wrap), self.clock, RandomIds())


def lead(leadership: Leadership, **options: Any) -> int:
    """Be the coordinator for a moment; the epoch."""
    with leadership.acquire(**options) as term:
        return term.epoch


def lease_of(world: Database) -> Lease:
    return found_in(world).lease or Lease("not to be read")


def found_in(world: Database) -> FoundLease:
    found = world.dataset().lease.read()
    assert found is not None
    return found

"""One pool of workers serves two databases and a table, and the newest ledger of one of them is junk: the
other two are compacted and committed as if nothing had happened, and this one too once its ledger is
restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table

from lithify.base import events
from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.service.coordinator import Coordinator
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.service.worker_pool import UrlList, WorkerPool
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import append, files_of, fresh, make_rows, new_catalog, new_table
from tests.processes.databases import Model, check_rows, make_database
from tests.processes.ledgers import damage, restore, take_away

NAMES = ("db", "other", "table")


class Three:
    """Two databases and a table with coordinators and something to compact, and a pool of workers."""

    def __init__(self, folder: Path, order: tuple[str, ...]) -> None:
        self.clock: ManualClock = a_clock()
        self.events: list[Event] = []
        self.paths = {name: folder / name for name in ("db", "other")}
        self.models: dict[str, Model] = {
            name: make_database(path, keys=100, value_bytes=50) for name, path in self.paths.items()
        }
        self.table: Table = new_table(new_catalog(folder / "lake"))
        for _ in range(4):
            append(self.table, make_rows(10))
        self.rows = self.rows_of_the_table()
        self.urls = {name: self.open(name).url for name in NAMES}
        self.coordinators = {name: Coordinator(self.open(name), self.clock, RandomIds()) for name in NAMES}
        for name, coordinator in self.coordinators.items():
            coordinator.start(Term(self.open(name).take_epoch()))
        self.engine = InlineEngine(slots=10, stepped=True)
        # As users write them; what is told of a dataset has the URL that the dataset itself has.
        self.given = {name: str(self.paths.get(name, self.urls[name])) for name in order}
        names = {self.given[name]: name for name in order}
        self.pool = WorkerPool(
            UrlList(list(names)),
            lambda url, room: self._worker(names[url], room),
            WorkerSlots(self.engine, WorkerOptions()),
            self.clock,
            observer=self.events.append,
        )

    def open(self, name: str) -> SlateDataset | IcebergDataset:
        """As another process has it, with nothing cached."""
        if name == "table":
            return dataset_of(self.table, clock=self.clock)
        return dataset_at(self.paths[name], clock=self.clock)

    def _worker(self, name: str, room: WorkerSlots) -> Worker:
        return Worker(
            self.open(name), self.engine, self.clock, "worker", room=room, observer=self.events.append
        )

    def rows_of_the_table(self) -> list[dict[str, object]]:
        return sorted(fresh(self.table).scan().to_arrow().to_pylist(), key=lambda row: str(row["id"]))

    def ledgers(self, name: str) -> Path:
        """The folder of its ledger."""
        if name != "table":
            return self.paths[name] / "compactions"
        (folder,) = Path(self.table.location().removeprefix("file://")).glob("**/ledger")
        return folder

    def tick(self, name: str) -> None:
        """A round of its coordinator, which may meet a damaged ledger."""
        try:
            self.coordinators[name].tick()
        except (CorruptObject, Unsupported):
            assert self.is_quarantined(name)

    def rounds(self, count: int) -> None:
        """So many rounds of everybody, a second each; tasks run in between."""
        for _ in range(count):
            self.pool.round()
            self.engine.run_all()
            for name in NAMES:
                self.tick(name)
            self.clock.advance_s(1)

    def committed(self, name: str) -> bool:
        if name == "table":
            return len(files_of(self.table)) == 1
        ledger = self.open(name).ledger()
        return ledger is not None and not ledger.active()

    def is_quarantined(self, name: str) -> bool:
        return any(self.given[name] in finding.says for finding in self.pool.findings())

    def seen(self, kind: type[Event]) -> list[str]:
        """The datasets of these events."""
        return [event.dataset for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("damaged", "place", "is_running", "cure"),
    [
        ("db", 0, True, restore),
        ("db", 2, False, take_away),
        ("table", 0, False, restore),
        ("table", 2, True, take_away),
    ],
    ids=[
        "first, a database while it runs",
        "last, a database from the start",
        "first, a table from the start",
        "last, a table while it runs",
    ],
)
def test_a_damaged_ledger_hurts_its_own_dataset_and_no_longer_than_it_is_damaged(
    tmp_path: Path, damaged: str, place: int, is_running: bool, cure: Callable[[Path], None]
) -> None:
    order = [name for name in NAMES if name != damaged]
    order.insert(place, damaged)
    three = Three(tmp_path, tuple(order))
    for name in NAMES:
        three.tick(name)
    three.pool.start()
    if is_running:
        three.pool.round()
        assert len(three.seen(events.Claimed)) == 3
    junk = damage(three.ledgers(damaged))
    three.rounds(30)
    assert three.seen(events.Quarantined) == [three.urls[damaged]], "said once"
    assert three.is_quarantined(damaged)
    assert [three.committed(name) for name in order if name != damaged] == [True, True]
    cure(junk)
    three.rounds(130)
    assert three.seen(events.Recovered) == [three.urls[damaged]]
    assert not three.pool.findings()
    assert all(three.committed(name) for name in NAMES)
    assert not three.seen(events.AttemptFailed)
    for name, model in three.models.items():
        check_rows(three.paths[name], model)
    assert three.rows_of_the_table() == three.rows

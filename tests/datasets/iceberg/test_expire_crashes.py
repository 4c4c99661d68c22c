"""An expiry that dies at any call of the store, the files and the catalog: nobody loses what is needed, and
the next run finds all that is left to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl, store_of
from lithify.datasets.iceberg.maintenance import pending
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.maintenance import HoldRequest
from lithify.testing.faulty import Crash, StoreFault
from tests.datasets.iceberg.faults import IO_PROPERTY, Faults, FaultyCatalog, faulty, install
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    NAME,
    append,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
)

EVERYTHING = ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0)
READING = ("read", "load", "get", "get_with_meta", "list", "head")


class Template:
    """A table of a few snapshots, one of which is held, put back in place as often as needed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copy = folder / "table", folder / "copy"
        self.folder.mkdir()
        table = new_table(new_catalog(self.folder))
        for _ in range(2):
            append(table, make_rows(2))
            fresh(table).overwrite(fresh(table).scan().to_arrow())
        table = fresh(table)
        self.held = table.snapshots()[3].snapshot_id
        clock = a_clock()
        holds = TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())
        holds.hold(HoldRequest(version=self.held), 10**10, "h", "me")
        self.contents = {s.snapshot_id: read(table, s.snapshot_id) for s in table.snapshots()}
        table.catalog.close()
        shutil.copytree(self.folder, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._copy, self.folder)

    def run(self) -> None:
        """Expire, with the faults that are installed."""
        self.with_dataset(lambda dataset, clock: Expirer(dataset, clock, RandomIds()).run(EVERYTHING))

    def with_dataset(self, act: Callable[[IcebergDataset, Clock], object]) -> None:
        """Do something with the table as a process opens it anew, with the faults that are installed."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", (self.folder / "warehouse").as_uri()
        catalog = FaultyCatalog("test", uri=uri, warehouse=warehouse, **IO_PROPERTY)
        try:
            clock = a_clock()
            url = TableUrl("test", NAME)
            dataset = IcebergDataset(catalog, url, clock, RandomIds(), open_place=faulty(store_of))
            act(dataset, clock)
        finally:
            catalog.close()

    def judge(self, site: str) -> None:
        """What is left reads as before, and so it does after the next run, which leaves nothing behind."""
        catalog = new_catalog(self.folder)
        try:
            table = catalog.load_table(NAME)
            self._read(table, site)
            clock = a_clock()
            found = Expirer(dataset_of(table, clock=clock), clock, RandomIds()).run(EVERYTHING)
            self._read(table, site)
            ids = [s.snapshot_id for s in fresh(table).snapshots()]
            assert ids == list(self.contents)[3:], site
            assert found.pending == (), site
            root = Path(table.location().removeprefix("file://"))
            there = {p.as_uri() for p in root.rglob("*") if p.suffix in (".parquet", ".avro")}
            assert there == named_paths(table), site
            left = {path.name.partition("-")[0] for path in root.glob("_lithify/*/pending-files/*.json")}
            assert len(left) <= 1, f"{site}: what is without an entry is swept after a day"
        finally:
            catalog.close()

    def _read(self, table: Table, site: str) -> None:
        now: dict[int, Any] = {s.snapshot_id: read(table, s.snapshot_id) for s in fresh(table).snapshots()}
        assert self.held in now, site
        assert now == {snapshot_id: self.contents[snapshot_id] for snapshot_id in now}, site


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("expiry"))


@pytest.fixture(autouse=True)
def no_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pending, "PART_FILES", 4)
    yield
    install(Faults())


@pytest.mark.parametrize("fault", [StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER])
def test_p13_a_crash_at_any_call(template: Template, fault: StoreFault) -> None:
    template.restore()
    calls = install(Faults()).calls
    template.run()
    install(Faults())
    template.judge("no crash")
    # A read changes nothing, so dying before or after it is the same.
    changing = [n for n, call in enumerate(calls, 1) if call.split()[0] not in READING]
    names = [calls[n - 1].split()[0] for n in changing]
    assert names.count("commit") == 1
    assert names.count("delete") > 5, "files, and what was written down"
    assert names.count("create") >= 4, "the watermark, what is pending, confirmed and dropped"
    assert sum("pending-files/" in call for call in calls if call.startswith("put ")) > 1, "in parts"
    if fault is StoreFault.CRASH_BEFORE:  # else the same as after the one before
        changing = [n for n in changing if calls[n - 1] == "commit"] + changing[:1]
    deletes = [n for n in changing if calls[n - 1].startswith("delete file:")]
    for number in [n for n in changing if n not in deletes[1:-1]]:
        template.restore()
        install(Faults({number: fault}))
        with suppress(Crash):
            template.run()
        install(Faults())
        template.judge(f"{fault.value}: call {number}, {calls[number - 1]}")

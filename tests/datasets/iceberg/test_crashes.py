"""A compaction that dies at any of its calls, or loses any answer: the table reads the same, the next run
finishes what was not done, and what is left behind is listed and removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lithify.base.errors import LithifyError
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.ownership import FILE_PREFIX
from lithify.datasets.iceberg.io.catalogs import TableUrl, store_of
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.testing import ManualClock
from lithify.testing.faulty import Crash, StoreFault
from tests.datasets.iceberg.faults import IO_PROPERTY, Faults, FaultyCatalog, faulty, install
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    Row,
    age_files,
    append,
    by_id,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
)


class Template:
    """A table with two days of small files and deletes by position and by key, put back in place as often as
    needed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copy = folder / "table", folder / "copy"
        self.folder.mkdir()
        # One task after the other, so that there are times at which one of them is done.
        properties = {"lithify.small-task-bytes": "1", "lithify.max-tasks": "1"}
        table = new_table(new_catalog(self.folder), properties=properties)
        self.rows: list[Row] = []
        for n in range(4):
            self.rows += append(table, make_rows(20, START + n * timedelta(hours=12), DAY / 4))
        path = next(iter(files_of(table))).file_path
        gone = read(table)
        delete_positions(table, {path: [2]})
        kept = {row[1] for row in read(table)}
        assert len(kept) == len(gone) - 1
        self.rows = [row for row in self.rows if row[1] in kept]
        delete_equal(table, [self.rows.pop(n)[1] for n in (0, -1)])  # of each day one
        table.catalog.close()
        shutil.copytree(self.folder, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._copy, self.folder)

    def catalog(self) -> SqlCatalog:
        return new_catalog(self.folder)

    def run(self, clock: ManualClock) -> None:
        """Compact, with the faults that are installed."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", (self.folder / "warehouse").as_uri()
        catalog = FaultyCatalog("test", uri=uri, warehouse=warehouse, **IO_PROPERTY)
        try:
            url = TableUrl("test", NAME)
            compact(
                IcebergDataset(catalog, url, clock, RandomIds(), open_place=faulty(store_of)), clock=clock
            )
        finally:
            catalog.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("crashes"))


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    install(Faults())


def rehearse(template: Template) -> list[str]:
    """The calls of a compaction that nothing disturbs."""
    template.restore()
    faults = install(Faults())
    template.run(a_clock())
    install(Faults())
    return faults.calls


def judge(template: Template, site: str) -> None:
    """The rows are right, the next run finishes, and no file is left that nothing names."""
    catalog = template.catalog()
    try:
        table = catalog.load_table(NAME)
        check(table, template.rows, by_pyiceberg=False)
        before = {file.file_path for file in files_of(table)}
        done = {path for path in before if FILE_PREFIX in path}
        result = compact(dataset_of(table))
        assert bool(result.committed) or len(done) == 2, site
        after = {file.file_path for file in files_of(table)}
        assert len(after) == 2, site
        assert done <= after, f"{site}: a day that was done is not done again"
        assert not delete_files_of(table), f"{site}: all deletes were applied"
        check(table, template.rows)
        age_files(template.folder)
        dataset = dataset_of(table)
        report = collect(dataset, a_clock(), GarbageOptions(dry_run=False))
        again = collect(dataset, a_clock())
        assert not again.garbage, site
        assert read(table) == by_id(template.rows), site
        for found in report.garbage:
            assert "lithify" in found.path or found.kind == "notes about ended compactions", site
        assert not unreferenced(template, table.catalog.load_table(NAME).metadata_location), site
    finally:
        catalog.close()


def unreferenced(template: Template, metadata_location: str) -> list[str]:
    """Data files, row maps and manifests on disk that no snapshot names."""
    catalog = template.catalog()
    try:
        table = fresh(catalog.load_table(NAME))
        assert table.metadata_location == metadata_location
        there = {
            p.as_uri() for p in template.folder.rglob("*") if p.suffix in (".parquet", ".avro", ".rowmap")
        }
        return sorted(there - named_paths(table))
    finally:
        catalog.close()


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (StoreFault.CRASH_BEFORE, 0),
        (StoreFault.CRASH_AFTER, 0),
        *(pytest.param(StoreFault.CRASH_AFTER, part, marks=pytest.mark.whole) for part in (1, 2)),
    ],
)
def test_a_crash_at_any_call_loses_nothing(template: Template, fault: StoreFault, part: int) -> None:
    calls = rehearse(template)
    # A read changes nothing, so dying before or after it is the same.
    changing = [
        n
        for n, call in enumerate(calls, 1)
        if call.split()[0] not in ("read", "load", "get", "get_with_meta", "list", "head")
    ]
    commits = [n for n in changing if calls[n - 1] == "commit"]
    assert len(changing) > 25
    assert len(commits) == 2
    if fault is StoreFault.CRASH_BEFORE:  # else the same as after the one before
        changing = [changing[0], *commits]
    else:
        changing = sorted({*changing[part::3], *commits})
    for number in changing:
        template.restore()
        install(Faults({number: fault}))
        with suppress(Crash):
            template.run(a_clock())
        install(Faults())
        judge(template, f"{fault.value}: call {number}, {calls[number - 1]}")


@pytest.mark.parametrize("fault", [StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
def test_a_lost_answer_of_the_catalog_is_recognised(template: Template, fault: StoreFault) -> None:
    calls = rehearse(template)
    number = calls.index("commit") + 1
    template.restore()
    install(Faults({number: fault}))
    with suppress(LithifyError):
        template.run(a_clock())
    install(Faults())
    judge(template, fault.value)
    catalog = template.catalog()
    summaries = [s.summary for s in catalog.load_table(NAME).snapshots()]
    catalog.close()
    published = [s.additional_properties.get(COMPACTIONS_PROPERTY) for s in summaries if s]
    assert len([ids for ids in published if ids]) == 2, "each day once"


class Rewritten(Template):
    """A table with a compaction that is rewritten and not committed, and with later deletes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copy = folder / "table", folder / "copy"
        self.folder.mkdir()
        table = new_table(new_catalog(self.folder), properties={"write.delete.mode": "merge-on-read"})
        for _ in range(3):
            append(table, make_rows(20, START, DAY / 4))
        steps = Steps(dataset_of(table))
        steps.schedule()
        steps.execute()
        for n, file in enumerate(files_of(table)):
            delete_positions(table, {file.file_path: [n, 7]})
        self.rows = [(time, row_id, device) for time, row_id, device in read(table)]
        table.catalog.close()
        shutil.copytree(self.folder, self._copy)


@pytest.mark.parametrize("fault", [StoreFault.CRASH_AFTER, StoreFault.FAIL_AFTER])
def test_deletes_are_moved_once_whatever_dies(tmp_path: Path, fault: StoreFault) -> None:
    template = Rewritten(tmp_path)
    calls = rehearse(template)
    end = calls.index("commit") + 1
    changing = [
        n for n, call in enumerate(calls[:end], 1) if call.split()[0] in ("write", "delete", "commit")
    ]
    assert len(changing) > 4
    for number in changing:
        template.restore()
        install(Faults({number: fault}))
        with suppress(Crash, LithifyError):
            template.run(a_clock())
        install(Faults())
        site = f"{fault.value}: call {number}, {calls[number - 1]}"
        catalog = template.catalog()
        try:
            table = catalog.load_table(NAME)
            assert read(table) == template.rows, site
            compact(dataset_of(table))
            table = fresh(table)
            assert read(table) == template.rows, site
            assert len(files_of(table)) == len(delete_files_of(table)) == 1, site
            age_files(template.folder)
            collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False, max_percent=100))
            assert not unreferenced(template, table.metadata_location), site
            assert read(table) == template.rows, site
        finally:
            catalog.close()

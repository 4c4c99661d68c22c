"""What is the same place, however its path is written: for expiry, garbage, moved tables, readers and the
stores in which files are reached."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.lineage import former_roots
from lithify.datasets.iceberg.format.ownership import mark_of, marks_of
from lithify.datasets.iceberg.io.places import canonical, is_inside, key_of, spellings
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import (
    NAME,
    add_file,
    age_files,
    append,
    as_arrow,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
    orphan_of,
    read,
    s3_catalog,
)
from tests.judge.iceberg_java import IcebergJava
from tests.s3 import S3

FOR_EVER_MS = 4_000_000_000_000
ALL = ExpireOptions(older_than_ms=FOR_EVER_MS, grace_ms=0)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://b/t/x", "s3a://b/t/x", True),
        ("S3N://b/t/x/", "s3://b/t/x", True),
        ("file:///t/x", "file:/t/x", True),
        ("file:///t/x", "/t/x", True),
        ("file:////t/x", "/t/x/", True),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t", True),
        ("memory://lake", "memory://lake/", True),
        ("s3://b/t/x", "s3://c/t/x", False),
        ("s3://b/t/x", "gs://b/t/x", False),
        ("s3://b/t//x", "s3://b/t/x", False),
        ("s3://b/t%20x", "s3://b/t x", False),
        ("s3://b/t/x", "s3://b/t/./x", False),
        ("file://host/t/x", "/host/t/x", False),
        ("file://host/t/x", "/t/x", False),
        ("t/x", "/t/x", False),
        ("abfs://c@a.dfs.core.windows.net/t", "wasbs://c@a.blob.core.windows.net/t", False),
    ],
)
def test_paths_that_surely_are_the_same(one: str, other: str, is_same: bool) -> None:
    assert (canonical(one) == canonical(other)) is is_same
    if is_same:
        assert key_of(one.rstrip("/")) == key_of(other.rstrip("/")), "what surely is may be too"


@pytest.mark.parametrize(
    ("path", "folder", "is_in"),
    [
        ("s3a://b/t/data/x", "s3://b/t", True),
        ("file:/t/data/x", "file:///t", True),
        ("/t/data/x", "file:/t", True),
        ("s3://b/x", "s3a://b", True),
        ("s3a://b/t2/x", "s3://b/t", False),
        ("s3a://b/t/../u/x", "s3://b/t", False),
        ("s3a://b/t/%2e%2e/u/x", "s3://b/t", False),
        ("s3a://c/t/x", "s3://b/t", False),
        ("gs://b/t/x", "s3://b/t", False),
        ("s3://b/t", "s3a://b/t", False),
        ("file://t/x", "/t", False),
    ],
)
def test_what_surely_is_in_a_folder(path: str, folder: str, is_in: bool) -> None:
    assert is_inside(path, folder) is is_in


def test_all_spellings_are_the_same_place() -> None:
    for path in ("s3a://b/t", "file:/t/x", "/t/x", "abfss://c@a.dfs.core.windows.net/t", "gs://b/t"):
        ways = spellings(f"{path}/")
        assert ways[0] == path
        assert {canonical(way) for way in ways} == {canonical(path)}
        assert all(set(spellings(way)) == set(ways) for way in ways)
    assert len(spellings("s3a://b/t")) == len(spellings("file:///t")) == 3


# Expiry


def run(table: Table, options: ExpireOptions = ALL) -> ExpiryOutcome:
    return Expirer(dataset_of(table), a_clock(), RandomIds()).run(options).outcome


def replaced(table: Table, *spelled: str) -> list[Path]:
    """Files of the table under these beginnings of their paths, which no snapshot but old ones names."""
    append(table, make_rows(3))
    (first,) = (file.file_path.removeprefix("file://") for file in files_of(table))
    copies = [Path(first).with_name(f"copy-{n}.parquet") for n in range(len(spelled))]
    for copy, beginning in zip(copies, spelled, strict=True):
        shutil.copy(first, copy)
        add_file(table, f"{beginning}{copy}", 3)
    fresh(table).overwrite(as_arrow(make_rows(1)))
    return [Path(first), *copies]


def test_replaced_files_go_however_their_paths_are_written(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    files = replaced(table, "file:", "", "file://", "file:///")
    rows = read(table)
    assert run(table) is ExpiryOutcome.EXPIRED
    assert [path for path in files if path.exists()] == []
    assert read(table) == rows


@pytest.mark.parametrize("spelling", ["file:", ""])
def test_replaced_files_go_however_the_location_is_written(
    catalog: SqlCatalog, tmp_path: Path, spelling: str
) -> None:
    table = new_table(catalog)
    files = replaced(table, "file://")
    place = f"{spelling}{table.location().removeprefix('file://')}"
    table._do_commit((SetLocationUpdate(location=place),), ())
    assert fresh(table).location() == place
    assert run(fresh(table)) is ExpiryOutcome.EXPIRED
    assert [path for path in files if path.exists()] == []


def test_replaced_files_on_s3_go_whatever_scheme_they_have(s3: S3, tmp_path: Path) -> None:
    table = new_table(s3_catalog(s3, tmp_path))
    append(table, make_rows(3))
    dataset = dataset_of(table)
    data = dataset.store.get(files_of(table)[0].file_path.split("/", 3)[3])
    for scheme in ("s3", "s3a", "s3n"):
        dataset.store.put(f"{dataset.root}/data/{scheme}.parquet", data)
        add_file(table, f"{scheme}{table.location().removeprefix('s3')}/data/{scheme}.parquet", 3)
    fresh(table).overwrite(as_arrow(make_rows(1)))
    clock = a_clock()
    clock.advance_s(10)
    Expirer(dataset_of(table, clock=clock), clock, RandomIds()).run(ALL)
    left = [meta.key for meta in dataset.store.list(f"{dataset.root}/data")]
    assert [key for key in left if key.endswith(("/s3.parquet", "/s3a.parquet", "/s3n.parquet"))] == []


def test_a_file_that_is_needed_under_another_scheme_stays(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(3))
    path = files_of(table)[0].file_path
    fresh(table).overwrite(as_arrow(make_rows(1)))
    add_file(table, path.replace("file://", "file:"), 3)
    rows = read(table)
    assert run(table) is ExpiryOutcome.EXPIRED
    assert read(table) == rows


def test_java_writes_in_one_way_and_the_catalog_says_another(catalog: Catalog, java: IcebergJava) -> None:
    """Java names files as its table's location is written, which is changed then."""
    with serve_rest(catalog) as rest:
        name = java.catalog(str(rest.properties["uri"]))
        place = new_table(catalog, name=("db", "first")).location().removeprefix("file://")
        java.sql(
            f"CREATE TABLE {name}.db.events (event_time TIMESTAMP, id BIGINT, device STRING) USING iceberg "
            f"LOCATION 'file:{place}-java'"
        )
        insert = f"INSERT INTO {name}.db.events VALUES (TIMESTAMP '2025-01-01 00:00:00', %d, 'a')"
        for n in range(4):
            java.sql(insert % n)
        java.sql(f"DELETE FROM {name}.db.events WHERE id < 3")
        table = catalog.load_table(NAME)
        old = [Path(p.removeprefix("file:")) for p in table.inspect.all_files()["file_path"].to_pylist()]
        assert not any(str(path).startswith("//") for path in old), "Java wrote file:/"
        table._do_commit((SetLocationUpdate(location=f"file://{place}-java"),), ())
        live = {Path(file.file_path.removeprefix("file:")) for file in files_of(table)}
        assert run(fresh(table)) is ExpiryOutcome.EXPIRED
        assert {path for path in old if path.exists()} == live
        java.sql(f"REFRESH TABLE {name}.db.events")
        assert [row[1] for row in java.sql(f"SELECT * FROM {name}.db.events").values] == [3]


# What is beside the table


def test_a_table_is_not_moved_when_only_its_scheme_is_written_anew(s3: S3, tmp_path: Path) -> None:
    table = new_table(s3_catalog(s3, tmp_path))
    append(table, make_rows(2))
    assert run(table, ExpireOptions(dry_run=True)) is ExpiryOutcome.NOTHING_TO_DO
    dataset_of(table).take_epoch()
    place = f"s3a{table.location().removeprefix('s3')}"
    table._do_commit((SetLocationUpdate(location=place),), ())
    now = fresh(table)
    assert former_roots(now) == ()
    dataset = dataset_of(now)
    dataset.check_not_moved(now)
    assert dataset.ledger() is not None, "it is in the same place"


def test_files_of_ours_are_known_after_the_scheme_is_written_anew(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(2))
    dataset_of(table).take_epoch()
    orphan, before = orphan_of(table), mark_of(table.metadata)
    place = f"file:{table.location().removeprefix('file://')}"
    table._do_commit((SetLocationUpdate(location=place),), ())
    now = fresh(table)
    assert mark_of(now.metadata) != before
    assert before in marks_of(now.metadata)
    age_files(Path(place.removeprefix("file:")) / "data")
    age_files(Path(place.removeprefix("file:")) / "_lithify", 7203)
    report = collect(dataset_of(now), a_clock(), GarbageOptions(dry_run=True))
    assert [Path(found.path.removeprefix("file://")) for found in report.garbage] == [orphan]


@pytest.mark.parametrize(
    "properties", [{}, {"write.data.path": "s3a://{}/data"}, {"write.data.path": "s3n://{}/data"}]
)
def test_a_place_with_two_names_is_listed_once(s3: S3, tmp_path: Path, properties: Mapping[str, str]) -> None:
    catalog = s3_catalog(s3, tmp_path)
    table = new_table(catalog)
    inside = table.location().removeprefix("s3://")
    if properties:
        given = {key: text.format(inside) for key, text in properties.items()}
        table.transaction().set_properties(given).commit_transaction()
    dataset = dataset_of(table)
    name = f"lithify-{mark_of(table.metadata)}-{'0' * 26}-00000-{'0' * 32}-00000.parquet"
    dataset.store.put(f"{dataset.root}/data/{name}", b"left behind")
    report = collect(dataset_of(table), a_clock(), GarbageOptions(min_age_ms=0))
    assert report.found[GarbageKind.DATA] == 1


def test_a_reader_is_one_however_its_checkpoint_is_written(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    append(table, make_rows(2))
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    checkpoint.begin(fresh(table).snapshots()[0].snapshot_id)
    clock = a_clock()
    maintenance = TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())
    ways = spellings(checkpoint.url)
    for way in ways:
        shown = maintenance.add_reader(way, None, {})
        assert len(maintenance.show_readers().document["readers"]) == 1
    maintenance.add_reader(ways[-1], shown.document["readers"][0]["name"], {})
    maintenance.drop_reader(ways[1])
    assert maintenance.show_readers().document["readers"] == []


def test_rows_are_the_same_for_all_after_an_expiry_of_mixed_paths(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(3))
    replaced_rows = append(table, make_rows(2))
    fresh(table).delete(f"id >= {replaced_rows[0][1]}")
    assert run(table) is ExpiryOutcome.EXPIRED
    check(table, rows)

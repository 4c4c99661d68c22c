"""Orphan files: what is found, what is left alone, and where nothing is deleted since nobody can be sure."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.io.stores import open_place
from lithify.datasets.iceberg.maintenance import deleting
from lithify.datasets.iceberg.maintenance.deleting import ALWAYS_FEW
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions
from lithify.datasets.iceberg.maintenance.orphans import DAY_MS, OrphanOptions, Orphans, remove_orphans
from lithify.store.deleting import Deleting
from lithify.store.local import LocalStore
from lithify.testing.faulty import Crash, StoreFault
from tests.datasets.iceberg.faults import Faults, install
from tests.datasets.iceberg.history_random import PROPERTIES, Life, judge
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    NAME,
    SCHEMA,
    add_file,
    age_files,
    append,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    orphan_of,
    read,
    rewrite_without,
    s3_catalog,
)
from tests.datasets.iceberg.test_expire import run as expire
from tests.datasets.iceberg.test_expire import statistics_of
from tests.datasets.iceberg.test_expire_crashes import Template
from tests.datasets.iceberg.test_locations import SPELLINGS, table_at
from tests.s3 import S3

OLD_S = 4 * 24 * 3600
DELETE = OrphanOptions(dry_run=False, max_percent=100)


def run(table: Table, options: OrphanOptions = DELETE) -> Orphans:
    clock = a_clock()
    return remove_orphans(dataset_of(table, clock=clock), clock, RandomIds(), options)


def root_of(table: Table) -> Path:
    return Path(fresh(table).location().removeprefix("file://"))


def left(table: Table, *names: str) -> list[Path]:
    """Files that writers left behind long ago."""
    found = [root_of(table) / name for name in names]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")
    age_files(root_of(table), OLD_S)
    return found


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table whose history has data files that its head does not have."""
    table = new_table(catalog)
    rows = append(table, make_rows(3)) + append(table, make_rows(3))
    rewrite_without(table, rows[0][1])
    return fresh(table)


# What goes


def test_what_nothing_names_goes(table: Table) -> None:
    before, rows = files_in(root_of(table)), read(table)
    orphans = left(table, "data/a.parquet", "data/x=1/b.parquet", "metadata/c-m0.avro", "d.puffin", "e")
    found = run(table, OrphanOptions(max_percent=100))
    assert (found.found, found.deleted, found.found_bytes) == (5, 0, 55)
    assert found.paths == sorted(found.paths, key=found.paths.index)
    assert {Path(path.removeprefix("file://")) for path in found.paths} == set(orphans)
    assert files_in(root_of(table)) == before | set(orphans), "a dry run writes nothing"
    found = run(table)
    assert (found.found, found.deleted, found.deleted_bytes) == (5, 5, 55)
    assert {path for path in files_in(root_of(table)) if "_lithify" not in path.parts} == before
    assert read(table) == rows
    assert run(table).found == 0


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_however_the_location_is_written(catalog: SqlCatalog, tmp_path: Path, spelling: str) -> None:
    table = table_at(catalog, spelling.format(tmp_path / "events"))
    append(table, make_rows(3))
    (data,) = tmp_path.rglob("data")
    orphan = data / "orphan.parquet"
    orphan.write_bytes(b"left behind")
    age_files(tmp_path, OLD_S)
    before = {path for path in files_in(tmp_path / "events") if "_lithify" not in path.parts}
    found = run(table)
    assert found.deleted == 1
    assert {p for p in files_in(tmp_path / "events") if "_lithify" not in p.parts} == before - {orphan}


def test_how_names_are_written_does_not_matter(table: Table) -> None:
    named = left(table, "data/one.parquet", "data/a b%20c.parquet", "data/x/y.parquet", "data/z.parquet")
    root = str(root_of(table))
    spellings = (
        f"file:{root}/data/one.parquet",
        f"file://{root}/data/a b%20c.parquet",
        f"{root}//data/q/../x/y.parquet",
    )
    source = next(root_of(table).glob("data/00000*.parquet"))
    for path in named:
        shutil.copy(source, path)
    for spelling in spellings:
        add_file(table, spelling, 3)
    age_files(root_of(table), OLD_S)
    assert [Path(path).name for path in run(table, OrphanOptions()).paths] == ["z.parquet"]


# What stays


def test_what_is_left_alone(table: Table) -> None:
    left(
        table,
        "_temporary/0/a.parquet",
        "data/_SUCCESS",
        "data/.a.parquet.crc",
        ".hidden/b",
        "data/a#b.parquet",
        "data/c?.parquet",
        "data/[d].parquet",
        "metadata/version-hint.text",
        "metadata/.00001-x.metadata.json.crc",
        "metadata/00001-x.metadata.json.tmp",
        "metadata/lithify-old.avro",
    )
    own = orphan_of(table)
    age_files(root_of(table), OLD_S)
    assert run(table).found == 0
    assert own.exists()


def test_young_files_stay(table: Table) -> None:
    orphan = root_of(table) / "data/a.parquet"
    orphan.write_bytes(b"just written")
    now_ms = a_clock().now_ms()

    def found(age_ms: float, older_than_ms: int | None = None) -> int:
        os.utime(orphan, ((now_ms - age_ms) / 1000, (now_ms - age_ms) / 1000))
        return run(table, OrphanOptions(older_than_ms)).found

    assert [found(days * DAY_MS) for days in (0, 2.9, 3.1)] == [0, 0, 1]
    two_days_ago = now_ms - 2 * DAY_MS
    assert [found(days * DAY_MS, two_days_ago) for days in (1.9, 2.1)] == [0, 1]
    for dry_run in (True, False):
        with pytest.raises(Refused, match="at least a day"):
            run(table, OrphanOptions(now_ms - DAY_MS + 60_000, dry_run=dry_run))
    assert orphan.exists()


def test_a_table_on_s3(s3: S3, tmp_path: Path) -> None:
    """Names say `s3a` and `s3n` where the location says `s3`."""
    catalog = s3_catalog(s3, tmp_path)
    table = new_table(catalog)
    append(table, make_rows(3))
    store, root = open_place(table.location(), table.io.properties)
    (data,) = [meta.key for meta in store.list(f"{root}/data")]
    for name in ("a", "b", "c", "a b%20c"):
        store.put(f"{root}/data/{name}.parquet", store.get(data))
    for scheme, name in (("s3a", "a"), ("s3n", "b"), ("s3", "a b%20c")):
        add_file(table, f"{scheme}{table.location().removeprefix('s3')}/data/{name}.parquet", 3)
    bucket = table.location().removeprefix("s3://").partition("/")[0]
    s3.client().put_object(Bucket=bucket, Key=f"{root}/tmp/", Body=b"")  # a marker of a folder
    clock = a_clock()
    clock.advance_s(OLD_S)
    found = remove_orphans(dataset_of(table, clock=clock), clock, RandomIds())
    assert found.paths == [f"{table.location()}/data/c.parquet"]
    assert len(read(table)) == 12


def test_what_tags_branches_and_statistics_name_stays(table: Table) -> None:
    ids = [snapshot.snapshot_id for snapshot in fresh(table).snapshots()]
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[0], "t").create_branch(ids[1], "b")
    statistics_of(table, ids[0])
    age_files(root_of(table), OLD_S)
    assert run(table).found == 0


def test_what_an_expiry_has_written_down_stays(table: Table) -> None:
    files = files_in(root_of(table))
    expire(table, ExpireOptions(older_than_ms=4_000_000_000_000))
    age_files(root_of(table), OLD_S)
    assert run(table).found == 0
    assert files <= files_in(root_of(table))


def test_what_a_second_self_of_the_table_names_stays(table: Table, tmp_path: Path) -> None:
    """Registered in a second catalog, or restored: the first does not know what the second commits."""
    other = new_catalog(tmp_path / "second").register_table(NAME, fresh(table).metadata_location)
    rows = append(other, make_rows(2)) + append(other, make_rows(2))
    append(table, make_rows(1))
    (orphan,) = left(table, "data/orphan.parquet")
    expected = read(other)
    assert len(expected) == len(rows) + 5
    found = run(table)
    assert [Path(path).name for path in found.paths] == [orphan.name]
    assert read(other) == expected


def test_what_a_second_self_names_that_has_not_changed_for_long_stays(table: Table, tmp_path: Path) -> None:
    """The log of the table has left that time behind, and goes back to it by the logs of older metadata."""
    with fresh(table).transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    other = new_catalog(tmp_path / "second").register_table(NAME, fresh(table).metadata_location)
    append(other, make_rows(2))
    path = Path(fresh(other).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["last-updated-ms"] -= 10 * DAY_MS
    path.write_text(json.dumps(metadata))
    for _ in range(3):
        append(table, make_rows(1))
    left(table, "data/orphan.parquet")
    expected = read(other)
    found = run(table)
    assert [Path(path).name for path in found.paths] == ["orphan.parquet"]
    assert found.notes[0].startswith("1 metadata files are not in the table's history")
    assert read(other) == expected


def test_metadata_that_cannot_be_read_stop_it(table: Table) -> None:
    (orphan, damaged) = left(table, "data/a.parquet", "metadata/00099-x.metadata.json")
    with pytest.raises(CorruptObject, match="delete it"):
        run(table)
    damaged.write_bytes(gzip.compress(b'{"table-uuid": "x"}'))
    with pytest.raises(Refused, match="to another table"):
        run(table)
    damaged.unlink()
    assert run(table).deleted == 1
    assert not orphan.exists()


def test_links_do_not_lead_out(table: Table, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.parquet").write_bytes(b"somebody's")
    left(table, "data/a.parquet")
    (root_of(table) / "data/link").symlink_to(elsewhere)
    (root_of(table) / "data/file.parquet").symlink_to(elsewhere / "precious.parquet")
    age_files(tmp_path, OLD_S)
    run(table)
    assert (elsewhere / "precious.parquet").exists()
    assert (root_of(table) / "data/file.parquet").is_symlink()
    assert not (root_of(table) / "data/a.parquet").exists()


# Where nobody can be sure


def table_in(catalog: SqlCatalog, location: Path | str, name: str = "other", **properties: str) -> Table:
    """Another table, with a row."""
    location = location.as_uri() if isinstance(location, Path) else location
    properties = {key.replace("_", "-"): text for key, text in properties.items()}
    table = catalog.create_table(
        ("db", name), SCHEMA, location=location, properties={"format-version": "2", **properties}
    )
    append(table, make_rows(2))
    return fresh(table)


def refused(table: Table, match: str, others: Iterable[Table] = ()) -> None:
    """Nothing is deleted, by a dry run neither."""
    left(table, "data/orphan.parquet")
    before = {path for path in files_in(root_of(table)) if "_lithify" not in path.parts}
    for options in (DELETE, OrphanOptions()):
        with pytest.raises(Refused, match=match):
            run(table, options)
    assert {path for path in files_in(root_of(table)) if "_lithify" not in path.parts} == before
    for other in others:
        assert read(other)


def test_a_table_within_the_place_of_another_keeps_its_files(catalog: SqlCatalog, table: Table) -> None:
    other = table_in(catalog, root_of(table) / "inner")
    left(table, "inner/data/orphan-of-other.parquet", "data/orphan.parquet")
    found = run(table)
    assert [Path(path).name for path in found.paths] == ["orphan.parquet"]
    assert len(read(other)) == 2


def test_a_table_that_the_catalog_does_not_know_keeps_its_files(table: Table, tmp_path: Path) -> None:
    other = table_in(new_catalog(tmp_path / "second"), root_of(table) / "deep/inner")
    left(table, "data/orphan.parquet")
    assert run(table).deleted == 1
    assert len(read(other)) == 2


@pytest.mark.parametrize("log", ["_delta_log/0.json", ".hoodie/hoodie.properties"])
def test_tables_of_other_formats_keep_their_files(table: Table, log: str) -> None:
    others = left(table, f"data/inner/{log}", "data/inner/part-0.parquet")
    left(table, "data/orphan.parquet")
    found = run(table)
    assert [Path(path).name for path in found.paths] == ["orphan.parquet"]
    assert all(path.exists() for path in others)
    left(table, log, "part-0.parquet")
    refused(table, "a (Delta Lake|Hudi)")


def test_a_stranger_whose_metadata_are_hidden(table: Table, tmp_path: Path) -> None:
    inner = root_of(table) / "inner"
    other = table_in(
        new_catalog(tmp_path / "second"), inner, **{"write.metadata.path": (inner / "_meta").as_uri()}
    )
    left(table, "data/orphan.parquet")
    assert run(table).deleted == 1
    assert len(read(other)) == 2


def test_two_tables_with_one_folder_for_data(catalog: SqlCatalog, table: Table) -> None:
    other = table_in(
        catalog, root_of(table).parent / "other", **{"write.data.path": f"{table.location()}/data"}
    )
    refused(table, "db.other has its files in", [other])


def test_a_table_that_writes_to_a_folder_above(catalog: SqlCatalog, table: Table) -> None:
    above = root_of(table).parent.as_uri()
    refused(table, "db.other", [table_in(catalog, f"{above}/z", **{"write.data.path": above})])


def test_through_a_rest_catalog(catalog: SqlCatalog, table: Table) -> None:
    other = table_in(catalog, root_of(table) / "inner")
    left(table, "data/orphan.parquet", "inner/data/a.parquet")
    with serve_rest(catalog) as rest:
        assert [Path(path).name for path in run(rest.load_table(NAME)).paths] == ["orphan.parquet"]
        with fresh(other).transaction() as change:
            change.set_properties({"write.data.path": table.location()})
        refused(rest.load_table(NAME), "db.other has its files in", [other])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_neighbour_that_is_renamed_while_it_is_looked_for(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """There and back again, at the worst moment: listed under a name that it does not have any more."""
    (orphan,) = left(table, "data/left.parquet")
    names = [("db", "one"), ("db", "two")]
    new_table(catalog, name=names[0], properties={"write.data.path": f"{table.location()}/data"})
    load, renamed = SqlCatalog.load_table, list[object]()

    def rename_first(self: SqlCatalog, identifier: tuple[str, ...]) -> Table:
        if tuple(identifier) in names and len(renamed) < times:
            renamed.append(identifier)
            (other,) = (name for name in names if name != tuple(identifier))
            with monkeypatch.context() as patched:
                patched.setattr(SqlCatalog, "load_table", load)
                catalog.rename_table(identifier, other)
        return load(self, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", rename_first)
    with pytest.raises(Refused, match=r"db\.(one|two) has its files in"):
        run(table)
    assert len(renamed) == times
    assert orphan.exists()


def test_files_that_are_added_while_others_are_deleted_are_kept(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`add_files` may name files of any age."""
    orphans_ = left(table, *(f"data/{n}.parquet" for n in range(4)))
    source = next(root_of(table).glob("data/00000*.parquet"))
    for path in orphans_:
        shutil.copy(source, path)
    age_files(root_of(table), OLD_S)
    monkeypatch.setattr(deleting, "BATCH_FILES", 1)
    added, delete = list[str](), Deleting.all

    def delete_and_add(*arguments: Any) -> list[bool]:
        gone = delete(*arguments)
        if not added:
            added.append(next(path for path in orphans_ if path.exists()).as_uri())
            add_file(table, added[0], 3)
        return gone

    monkeypatch.setattr(Deleting, "all", delete_and_add)
    found = run(table)
    assert Path(added[0].removeprefix("file://")).exists()
    assert (found.found, found.deleted) == (4, 3)


def test_one_that_may_not_be_deleted_holds_up_none_behind_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans_ = left(table, *(f"data/{n}.parquet" for n in range(4)))
    age_files(root_of(table), OLD_S)
    monkeypatch.setattr(deleting, "BATCH_FILES", 1)
    held, delete = sorted(orphans_)[0], LocalStore.delete

    def hold(store: LocalStore, key: str) -> None:
        if key.endswith(f"/{held.name}"):
            raise StoreError("it is held")
        delete(store, key)

    monkeypatch.setattr(LocalStore, "delete", hold)
    with pytest.raises(StoreError, match="it is held"):
        run(table)
    assert [path for path in orphans_ if path.exists()] == [held]


def test_two_tables_in_one_place(catalog: SqlCatalog, table: Table) -> None:
    other = table_in(catalog, table.location())
    refused(table, "db.other", [other])
    catalog.drop_table(("db", "other"))
    refused(table, "to another table", [])


def test_a_stranger_that_writes_here(table: Table, tmp_path: Path) -> None:
    """Its metadata lie in a folder within the place, and its data among the table's."""
    other = table_in(
        new_catalog(tmp_path / "second"),
        root_of(table) / "inner",
        **{"write.data.path": f"{table.location()}/data"},
    )
    refused(table, "a table whose metadata are in", [other])


def test_a_table_through_a_link(catalog: SqlCatalog, table: Table, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root_of(table))
    refused(table, "db.other", [table_in(catalog, tmp_path / "link")])


def test_a_table_that_cannot_be_read(catalog: SqlCatalog, table: Table) -> None:
    other = table_in(catalog, root_of(table).parent / "other")
    Path(other.metadata_location.removeprefix("file://")).unlink()
    refused(table, "db.other of the same catalog cannot be read")


def test_files_that_others_may_use(table: Table) -> None:
    with fresh(table).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    refused(table, "gc.enabled")


def test_tables_elsewhere_do_not_matter(catalog: SqlCatalog, table: Table) -> None:
    table_in(catalog, root_of(table).parent / f"{root_of(table).name}2")
    table_in(catalog, root_of(table).parent.parent / "above", "above")
    left(table, "data/orphan.parquet")
    assert run(table).deleted == 1


# How much, and what happens meanwhile


def test_more_than_a_share_is_a_mistake(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ALWAYS_FEW >= 100
    monkeypatch.setattr(deleting, "ALWAYS_FEW", 5)
    left(table, *(f"data/{n}.parquet" for n in range(40)))
    found = run(table, OrphanOptions())
    assert (found.found, "--max-percent" in found.notes[0]) == (40, True)
    with pytest.raises(Refused, match=r"40 of \d+ files under the table's location would be deleted"):
        run(table, OrphanOptions(dry_run=False))
    assert run(table).deleted == 40
    with pytest.raises(Refused, match="from 0 to 100"):
        OrphanOptions(max_percent=101)


def test_what_is_named_meanwhile_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "BATCH_FILES", 1)
    named = left(table, *(f"data/{n}.parquet" for n in range(4)))
    source = next(root_of(table).glob("data/00000*.parquet"))
    for path in named:
        shutil.copy(source, path)
    age_files(root_of(table), OLD_S)
    added: list[Path] = []

    def tell(text: str) -> None:
        if text.startswith("deleted") and not added:
            added.extend(path for path in named if path.exists())
            for path in added[:2]:
                add_file(table, path.as_uri(), 3)
            expire(table, ExpireOptions(older_than_ms=4_000_000_000_000))

    clock = a_clock()
    found = remove_orphans(dataset_of(table, clock=clock), clock, RandomIds(), DELETE, tell)
    assert (found.found, found.deleted) == (4, 2)
    assert [path.exists() for path in added] == [True, True, False]
    assert "2 files were kept" in found.notes[0]
    assert read(table)


def test_a_crash_at_any_call(tmp_path: Path) -> None:
    template = Template(tmp_path)
    catalog = new_catalog(template.folder)
    left(catalog.load_table(NAME), *(f"data/{n}.parquet" for n in range(3)))
    catalog.close()
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(template.folder, tmp_path / "copy")

    def attempt(faults: Faults) -> list[str]:
        install(faults)
        try:
            with suppress(Crash):
                template.with_dataset(lambda d, clock: remove_orphans(d, clock, RandomIds(), DELETE))
        finally:
            install(Faults())
        return faults.calls

    template.restore()
    changing = [
        n for n, call in enumerate(attempt(Faults()), 1) if call.split()[0] in ("put", "delete", "create")
    ]
    assert len(changing) == 4, "the time, and each file"
    for number in changing:
        for fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER):
            template.restore()
            attempt(Faults({number: fault}))
            catalog = new_catalog(template.folder)
            table = catalog.load_table(NAME)
            assert {s.snapshot_id: read(table, s.snapshot_id) for s in table.snapshots()} == template.contents
            run(table)
            assert {s.snapshot_id: read(table, s.snapshot_id) for s in table.snapshots()} == template.contents
            assert not list(root_of(table).glob("data/?.parquet"))
            catalog.close()


# Judged


@pytest.mark.parametrize("seed", range(3))
def test_random_histories(catalog: SqlCatalog, seed: int) -> None:
    """Orphans are left all along, and removed: all readers find every snapshot whole, and a program of its
    own finds every needed file and no other that is old."""
    rng = random.Random(seed)
    life = Life(new_table(catalog, properties=PROPERTIES), rng, graces_ms=(0,))
    table = life.table
    life.step()
    for n in range(10):
        life.step()
        if rng.random() < 0.5:
            place = rng.choice(["data", "metadata", "data/day=1", "."])
            left(table, f"{place}/{n}-orphan.{rng.choice(['parquet', 'avro'])}")
        if rng.random() < 0.3:
            age_files(root_of(table), OLD_S)
            run(table)
    compact(dataset_of(table))
    life.note()
    age_files(root_of(table), OLD_S)
    run(table)
    needed = {path.removeprefix("file://") for path in judge(life).all}
    there = {str(path) for path in files_in(root_of(table)) if path.suffix in (".parquet", ".avro", ".stats")}
    assert needed <= there
    assert {path for path in there - needed if "lithify-" not in path} == set()

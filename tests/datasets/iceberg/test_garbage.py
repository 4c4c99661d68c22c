"""What a collection beside a table deletes: what Lithify wrote for this very table and nothing names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from lithify.base.errors import CorruptObject, LithifyError, Refused, Replaced
from lithify.base.ids import RandomIds, Ulid
from lithify.datasets.iceberg.format.ownership import data_prefix, mark_of
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, GarbageReport, collect
from lithify.testing import ManualClock
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    ARROW,
    DAY,
    NAME,
    SCHEMA,
    START,
    age_files,
    append,
    by_id,
    check,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    orphan_of,
    read,
)
from tests.s3 import REGION, S3

DELETE = GarbageOptions(dry_run=False)
BY_DEVICE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
VALUES = (
    "Zürich",
    "a/b",
    "# % & = + ?",
    "..",
    "a//b",
    "%C3%BC",
    "日本",
    " ",
    "e\u0301",
    "lithify-",
    "x" * 60,
)


def fill(table: Table, devices: tuple[str, ...] = ("a",), start: datetime = START) -> list[Any]:
    """Two small files of one day for each device."""
    return [
        row
        for device in devices
        for n in range(2)
        for row in append(table, make_rows(4, start + n * DAY / 2, DAY / 4, device))
    ]


def expire_all_but_the_newest(table: Table) -> None:
    head = fresh(table).metadata.current_snapshot_id
    old = [s.snapshot_id for s in fresh(table).snapshots() if s.snapshot_id != head]
    if old:
        fresh(table).maintenance.expire_snapshots().by_ids(old).commit()


def own_files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.suffix in (".parquet", ".avro") and "lithify-" in p.name}


def on_disk(paths: set[str]) -> set[Path]:
    return {Path(path.removeprefix("file:")).resolve() for path in paths}


def collected(table: Table, options: GarbageOptions = DELETE) -> GarbageReport:
    return collect(dataset_of(table), a_clock(), options)


def gone_from(folder: Path, action: Callable[[], object]) -> set[Path]:
    before = {path for path in folder.rglob("*") if path.is_file()}
    action()
    return {path for path in before if not path.exists()}


# Names of folders


@pytest.mark.parametrize("layout", ["false", "true"])
def test_partition_values_of_every_kind(catalog: SqlCatalog, tmp_path: Path, layout: str) -> None:
    table = new_table(
        catalog,
        spec=BY_DEVICE,
        properties={"write.object-storage.enabled": layout, "lithify.min-saved-files": "1"},
    )
    rows = fill(table, VALUES)
    assert compact(dataset_of(table)).committed
    expire_all_but_the_newest(table)
    assert compact(dataset_of(table)).committed == ()
    rows += append(table, make_rows(4, START + DAY / 8, DAY / 4, VALUES[0]))
    assert compact(dataset_of(table)).committed
    expire_all_but_the_newest(table)
    orphan = orphan_of(table)
    age_files(tmp_path)
    report = collected(table)
    check(table, rows)
    assert not orphan.exists()
    assert report.count(GarbageKind.DATA) == 2, "the orphan, and the file that was compacted once more"
    assert own_files(tmp_path) == own_files(tmp_path) & on_disk(named_paths(table))


@pytest.mark.parametrize("place", ["a//b", "a/../b", "a%20b", "a b", "Zürich", "a/./b/"])
@pytest.mark.parametrize("is_data_path", [False, True])
def test_locations_of_every_kind(catalog: SqlCatalog, tmp_path: Path, place: str, is_data_path: bool) -> None:
    (tmp_path / "a").mkdir()
    where = f"file://{tmp_path}/{place}"
    properties = {"format-version": "2"} | ({"write.data.path": where} if is_data_path else {})
    location = None if is_data_path else where
    table = catalog.create_table(NAME, SCHEMA, location=location, properties=properties)
    rows = fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    report = collected(table)
    assert (report.count(GarbageKind.DATA), report.count(GarbageKind.MANIFEST)) == (1, 0)
    assert not orphan.exists()
    check(table, rows)


def test_on_s3(s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket()
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
        "s3.region": REGION,
    }
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{bucket}/lake %41", **properties
    )
    catalog.create_namespace("db")
    table = new_table(catalog, spec=BY_DEVICE, properties={"lithify.min-saved-files": "1"})
    rows = fill(table, VALUES)
    assert compact(dataset_of(table)).committed
    root = table.location().removeprefix(f"s3://{bucket}/")
    prefix = data_prefix(mark_of(table.metadata), RandomIds().ulid(0), 0)
    orphan = f"{root}/data/device=Z%C3%BCrich/{prefix}-{'0' * 32}-00000.parquet"
    s3.client().put_object(Bucket=bucket, Key=orphan, Body=b"left behind")
    s3.server.age(bucket, timedelta(hours=2).total_seconds())
    report = collected(table)
    assert [g.path for g in report.garbage if g.kind is GarbageKind.DATA] == [f"s3://{bucket}/{orphan}"]
    assert report.count(GarbageKind.MANIFEST) == 0
    assert read(table) == by_id(rows)


# Other owners


def test_two_tables_under_one_data_path(catalog: SqlCatalog, tmp_path: Path) -> None:
    shared = {"write.data.path": f"file://{tmp_path}/shared"}
    tables = [new_table(catalog, properties=shared, name=("db", name)) for name in ("one", "two")]
    rows = [fill(table) for table in tables]
    for table in tables:
        assert compact(dataset_of(table)).committed
    orphans = [orphan_of(table) for table in tables]
    age_files(tmp_path)
    for table, orphan in zip(tables, orphans, strict=True):
        assert gone_from(tmp_path / "shared", lambda table=table: collected(table)) == {orphan}  # type: ignore[misc]
    for table, expected in zip(tables, rows, strict=True):
        check(table, expected)


def test_a_copy_of_a_table_keeps_the_uuid_and_is_another(catalog: SqlCatalog, tmp_path: Path) -> None:
    """What is moved with its metadata, while both go on writing to one data path."""
    table = new_table(catalog, properties={"write.data.path": f"file://{tmp_path}/shared"})
    fill(table)
    copied_rows = read(table)
    original = fresh(table).metadata_location.removeprefix("file://")
    text = Path(original).read_text().replace("warehouse/db", "elsewhere/db")
    shutil.copytree(tmp_path / "warehouse", tmp_path / "elsewhere")
    moved = Path(original.replace("warehouse/db", "elsewhere/db"))
    moved.write_text(text)
    other = new_catalog(tmp_path / "other")
    copy = other.register_table(NAME, f"file://{moved}")
    for each in (table, copy):
        assert compact(dataset_of(each)).committed
    age_files(tmp_path)
    for each in (table, copy):
        expire_all_but_the_newest(each)
        assert collected(each).count(GarbageKind.DATA) == 0
    assert read(copy) == read(table) == copied_rows


def test_names_like_ours_are_no_proof(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    mark = mark_of(fresh(table).metadata)
    names = (
        "lithify-.parquet",
        f"lithify-{RandomIds().ulid(0)}-00000-{'0' * 32}-00000.parquet",
        f"lithify-{'0' * 16}-{RandomIds().ulid(0)}-00000-{'0' * 32}-00000.parquet",
        f"lithify-{mark}-notes.txt",
        f"my-lithify-{mark}.parquet",
    )
    data = Path(table.location().removeprefix("file:")) / "data"
    for name in names:
        (data / name).write_bytes(b"somebody's")
    age_files(tmp_path)
    assert not gone_from(data, lambda: collected(table))


def registered_again(table: Table, folder: Path) -> Table:
    """The same table in a second catalog."""
    return new_catalog(folder).register_table(NAME, fresh(table).metadata_location)


@pytest.mark.parametrize("collects_first", ["the first", "the second"])
def test_a_table_in_two_catalogs(catalog: SqlCatalog, tmp_path: Path, collects_first: str) -> None:
    """Each side's new files are unknown to the other; only the side that Lithify saw last may collect."""
    first = new_table(catalog)
    rows = fill(first)
    second = registered_again(first, tmp_path / "second")
    assert compact(dataset_of(first)).committed
    rows += append(first, make_rows(4, START + 2 * DAY, DAY / 4))
    append(second, make_rows(4, START + 3 * DAY, DAY / 4))
    age_files(tmp_path)
    orphan = orphan_of(first)
    age_files(tmp_path)
    if collects_first == "the first":
        assert collected(first).count(GarbageKind.DATA) == 1
        orphan = orphan_of(first)
        age_files(tmp_path)
    with pytest.raises(Refused, match="second catalog"):
        collected(second)
    check(first, rows)
    assert orphan.exists()


def test_only_one_of_two_catalogs_compacts(catalog: SqlCatalog, tmp_path: Path) -> None:
    """Else what the second wrote would be garbage to the first, which Lithify saw."""
    first = new_table(catalog)
    rows = fill(first)
    second = registered_again(first, tmp_path / "second")
    assert compact(dataset_of(first)).committed
    for day in (1, 2):
        append(second, make_rows(4, START + day * DAY, DAY / 4))
    others, before = read(second), sorted(tmp_path.rglob("*"))
    for ask in (lambda: dataset_of(second).snapshot(), lambda: compact(dataset_of(second))):
        with pytest.raises(
            Refused, match=r"second catalog.*nothing is compacted.*delete file:///.*/lineage\.json"
        ):
            ask()
    assert sorted(tmp_path.rglob("*")) == before
    age_files(tmp_path)
    collected(first)
    check(first, rows)
    assert read(second) == others


def test_the_first_start_puts_a_table_on_record(catalog: SqlCatalog, tmp_path: Path) -> None:
    """Before it has committed anything: it may be killed before it can say what it committed."""
    first = new_table(catalog)
    fill(first)
    dataset = dataset_of(first)
    dataset.take_epoch()
    known = dataset.lineage.read()
    assert known is not None
    assert known.metadata_location == fresh(first).metadata_location


def test_a_catalog_that_is_restored_under_a_coordinator(catalog: SqlCatalog, tmp_path: Path) -> None:
    """What was to be committed to the table is not committed to what it was before."""
    table = new_table(catalog)
    fill(table)
    catalog.close()
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    assert compact(dataset_of(table)).committed
    for _ in range(2):
        append(table, make_rows(4, START + DAY, DAY / 4))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    ledger = steps.dataset.ledger()
    assert ledger is not None
    catalog.close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    restored = new_catalog(tmp_path).load_table(NAME)
    location, rows = restored.metadata_location, read(restored)
    with pytest.raises(Refused, match="was restored"):
        steps.commit()
    with pytest.raises(Refused, match="was restored"):
        steps.dataset.commit(ledger.active(), ledger.epoch)
    assert fresh(restored).metadata_location == location
    assert read(restored) == rows


def test_a_catalog_restored_from_a_backup(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    catalog.close()
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    rows = read(table) + append(table, make_rows(4))
    assert compact(dataset_of(table, clock=a_clock())).committed == ()
    orphan_of(table)
    age_files(tmp_path)
    collected(table)
    orphan = orphan_of(table)
    age_files(tmp_path)
    catalog.close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    restored = new_catalog(tmp_path).load_table(NAME)
    assert len(read(restored)) < len(rows)
    with pytest.raises(Refused, match="was restored"):
        collected(restored)
    assert orphan.exists()


def test_a_table_that_was_dropped_and_made_again(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    dataset = dataset_of(table)
    assert compact(dataset).committed
    catalog.drop_table(NAME)
    table = new_table(catalog)
    with pytest.raises(Replaced, match="dropped"):
        dataset.snapshot()
    rows = fill(table)
    assert compact(dataset_of(table)).committed
    age_files(tmp_path)
    assert collected(table).count(GarbageKind.DATA) == 0, "the files of the old table may be wanted back"
    check(table, rows)


# What the table and the operator say


def test_gc_enabled_false_keeps_data_and_manifests(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog, properties={"gc.enabled": "false"})
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    report = collected(table)
    assert orphan.exists()
    assert report.count(GarbageKind.DATA) == report.count(GarbageKind.MANIFEST) == 0
    assert "gc.enabled" in report.notes[0]


def test_a_dry_run_deletes_nothing_and_finds_the_same(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = collected(table, GarbageOptions())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert found.garbage == collected(table).garbage
    assert not orphan.exists()


def test_only_the_kinds_asked_for(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    assert (
        collected(table, GarbageOptions(dry_run=False, kinds=frozenset({GarbageKind.MANIFEST}))).garbage == ()
    )
    assert orphan.exists()
    found = collected(table, GarbageOptions(dry_run=False, kinds=frozenset({GarbageKind.DATA})))
    assert [g.kind for g in found.garbage] == [GarbageKind.DATA]


def test_too_large_a_share_stops(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    rows = fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    for number in range(1, 150):
        shutil.copy(orphan, orphan.with_name(orphan.name.replace("0" * 32, f"{number:032x}")))
    age_files(tmp_path)
    with pytest.raises(Refused, match="--max-percent"):
        collected(table)
    assert orphan.exists()
    assert collected(table, GarbageOptions(dry_run=False, max_percent=100)).count(GarbageKind.DATA) == 150
    check(table, rows)


def test_options_without_a_meaning_are_refused() -> None:
    with pytest.raises(Refused, match="cannot be negative"):
        GarbageOptions(min_age_ms=-1)
    for percent in (-1, 101):
        with pytest.raises(Refused, match="from 0 to 100"):
            GarbageOptions(max_percent=percent)


# Time


def test_what_is_young_by_the_stores_clock_stays(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    an_hour_ahead = ManualClock(a_clock().now_ms() + 2 * 3_600_000)
    assert not collect(dataset_of(table), an_hour_ahead, DELETE).garbage
    age_files(tmp_path)
    behind = ManualClock(0)
    assert collect(dataset_of(table), behind, DELETE).count(GarbageKind.DATA) == 1
    assert not orphan.exists()


def test_manifests_of_a_commit_under_way_stay_whatever_the_minimum_age(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    own = next(path for path in named_paths(table) if "lithify-" in path and path.endswith(".avro"))
    young = Path(own.removeprefix("file:"))
    young = young.with_name(f"lithify-{mark_of(fresh(table).metadata)}-{'0' * 32}-m0.avro")
    young.write_bytes(b"of a commit under way")
    assert collected(table, GarbageOptions(min_age_ms=0, dry_run=False)).count(GarbageKind.MANIFEST) == 0
    age_files(young.parents[1])
    assert collected(table, GarbageOptions(min_age_ms=0, dry_run=False)).count(GarbageKind.MANIFEST) == 1


def test_outputs_of_a_running_compaction_stay(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    rows = fill(table)
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    age_files(tmp_path)
    assert collected(table).garbage == ()
    assert steps.commit().committed
    check(table, rows)


class MeddlingCatalog(SqlCatalog):
    """Does something when a table is loaded for the nth time."""

    def __init__(self, name: str, at: int, action: Callable[[], None], **properties: Any) -> None:
        super().__init__(name, **properties)
        self._left, self._action = at, action

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        self._left -= 1
        if self._left == 0:
            self._action()
        return super().load_table(identifier)


@pytest.mark.parametrize("load", [3, 4, 5])
def test_a_file_that_is_named_just_before_it_is_deleted(
    catalog: SqlCatalog, tmp_path: Path, load: int
) -> None:
    """Whatever brings it back: a rollback by hand, an import. Seen in time it is kept, seen late it stops
    everything. The first load opens the dataset, the second is checked before the store is asked for its
    time, the third gives the places to list."""
    table = new_table(catalog)
    rows = fill(table)
    assert compact(dataset_of(table)).committed
    back, other = orphan_of(table), orphan_of(table)
    shutil.copy(files_of(table)[0].file_path.removeprefix("file:"), back)
    age_files(tmp_path)

    def bring_back() -> None:
        fresh(table).add_files([back.as_uri()])

    dataset = dataset_of(table, catalog=MeddlingCatalog("test", load, bring_back, **catalog.properties))
    if load < 5:
        assert collect(dataset, a_clock(), DELETE).count(GarbageKind.DATA) == 1
    else:
        with pytest.raises(Refused, match="by no snapshot before but is now"):
            collect(dataset, a_clock(), DELETE)
    assert other.exists() == (load == 5)
    assert read(table) == by_id([*rows, *rows])


# What is damaged


def test_nothing_goes_when_a_manifest_cannot_be_read(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    damaged = next(p for p in own_files(tmp_path) if p.suffix == ".avro" and "snap" not in p.name)
    whole = damaged.read_bytes()
    for broken in (None, b"", whole[: len(whole) // 2], whole[:-1]):
        age_files(tmp_path)
        if broken is None:
            damaged.unlink()
        else:
            damaged.write_bytes(broken)
        with pytest.raises(LithifyError):
            collected(table)
        assert orphan.exists()
    damaged.write_bytes(whole)
    collected(table)
    assert not orphan.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"metadata_location": "x"}', "[" * 100_000, "1e999"]
)
def test_a_damaged_lineage_stops_collections_and_nothing_else(
    catalog: SqlCatalog, tmp_path: Path, text: str
) -> None:
    table = new_table(catalog)
    rows = fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    dataset = dataset_of(table)
    dataset.store.put(dataset.lineage.key, text.encode())
    with pytest.raises(CorruptObject, match="delete it"):
        collected(table)
    assert orphan.exists()
    rows += fill(table, start=START + DAY)
    assert compact(dataset_of(table)).committed
    check(table, rows)
    dataset.store.delete(dataset.lineage.key)
    assert collected(table).count(GarbageKind.DATA) == 1


def test_a_catalog_that_hides_snapshots(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    fill(table)
    assert compact(dataset_of(table)).committed
    orphan = orphan_of(table)
    age_files(tmp_path)
    properties = {**catalog.properties, "snapshot-loading-mode": "refs"}
    with pytest.raises(Refused, match="snapshot-loading-mode"):
        collect(dataset_of(table, catalog=SqlCatalog("test", **properties)), a_clock(), DELETE)
    assert orphan.exists()


# What lies in the table's own folder


def test_half_written_files_and_old_versions_go(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    for _ in range(12):
        fill(table)
        assert compact(dataset_of(table)).committed
    dataset = dataset_of(table)
    ledgers = Path("/") / dataset.numbered_files[0].folder
    staged = ledgers / "00000000000000000099.json#123456"
    staged.write_bytes(b"half")
    dataset.journal.note_finished(Ulid(RandomIds().ulid(0)), "worker", ["x"])
    assert GarbageKind.STAGED not in {g.kind for g in collected(table).garbage}, "its writer may be alive"
    dataset.journal.note_finished(Ulid(RandomIds().ulid(0)), "worker", ["x"])
    age_files(tmp_path)
    report = collected(table)
    assert report.count(GarbageKind.STAGED) == 1
    assert not staged.exists()
    assert report.count(GarbageKind.NOTE) == 1
    assert report.count(GarbageKind.VERSION) > 0
    assert len(list(ledgers.glob("*.json"))) == 10
    assert report.found[GarbageKind.VERSION] >= 20
    append(table, make_rows(4))
    assert fresh(table).scan().to_arrow().schema.names == ARROW.names

"""A table of more entries than are kept is compacted the same as a small one: nothing is listed whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, list_snapshot
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read_by_duckdb,
    read_by_java,
    rewrite_without,
)

AT_ONCE = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0", "lithify.max-deleted-percent": "1"}
BY_DEVICE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))


def very_large(table: Table) -> IcebergDataset:
    """The table as if it had more files than anybody keeps in memory."""
    dataset = dataset_of(table)
    dataset._cache.max_entries = 0
    return dataset


def plain(table: Table) -> None:
    for n in range(4):
        append(table, make_rows(3, START + n % 2 * DAY))
    append(table, make_rows(3, START + 5 * DAY))


def with_position_deletes(table: Table) -> None:
    plain(table)
    delete_positions(table, {files_of(table)[0].file_path: [1, 2]})


def with_equality_deletes(table: Table) -> None:
    plain(table)
    rows = append(table, make_rows(5))
    delete_equal(table, [rows[0][1]], partition=Record("a") if table.spec().fields else None)
    append(table, make_rows(2))


def listed_twice(table: Table) -> None:
    plain(table)
    file = files_of(table)[-1]
    with fresh(table).transaction() as transaction:
        transaction.add_files([file.file_path], check_duplicate_files=False)


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("fill", [plain, with_position_deletes, with_equality_deletes, listed_twice])
def test_a_compaction(catalog: Catalog, fill: Callable[[Table], None], is_partitioned: bool) -> None:
    spec = BY_DEVICE if is_partitioned else UNPARTITIONED_PARTITION_SPEC
    table = new_table(catalog, spec=spec, properties=AT_ONCE)
    fill(table)
    before, files = read_by_java(table), len(files_of(table))
    result = compact(very_large(table))
    assert result.committed
    assert not result.failures
    assert len(files_of(table)) < files
    assert read_by_java(table) == before
    assert read_by_duckdb(table) == before
    head = fresh(table).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert totals(table) == {name: int(head.summary[name] or 0) for name in totals(table)}
    assert not compact(very_large(table)).committed


def totals(table: Table) -> dict[str, int]:
    """What a summary has to say, counted."""
    data, deletes = files_of(table), delete_files_of(table)
    return {
        "total-data-files": len(data),
        "total-delete-files": len(deletes),
        "total-records": sum(file.record_count for file in data),
        "total-files-size": sum(file.file_size_in_bytes for file in (*data, *deletes)),
    }


def test_what_changes_meanwhile(catalog: Catalog) -> None:
    """One day is rewritten by somebody else, and stays as he has it; the other is committed."""
    table = new_table(catalog, properties=AT_ONCE)
    first = append(table, make_rows(3))
    for n in (0, 1, 1):
        append(table, make_rows(3, START + n * DAY))
    steps = Steps(very_large(table))
    steps.until_committed(lambda: rewrite_without(table, first[0][1]))
    names = [file.file_path.rpartition("/")[2].startswith("lithify-") for file in files_of(table)]
    assert (names.count(True), names.count(False)) == (1, 2)
    assert [row[1] for row in read_by_java(table)].count(first[0][1]) == 0


def listing_of(table: Table, find: Any, number: int) -> tuple[Any, list[str]]:
    """The listing for one of the files; the paths of all."""
    paths = sorted(file.file_path for file in files_of(table))
    now = fresh(table)
    head = now.current_snapshot()
    assert head is not None
    return find(list_snapshot(now, head, ManifestCache(0)), {paths[number]}), paths


def test_only_what_is_asked_for_is_kept(catalog: Catalog) -> None:
    table = new_table(catalog)
    plain(table)
    found, paths = listing_of(table, Listing.only, 2)
    assert list(found.data) == [paths[2]]
    around, _ = listing_of(table, Listing.around, 2)
    assert list(around.data) == [paths[2]]
    assert (len(around.manifests), len(around.untouched)) == (1, 4)
    assert sorted(e.data_file.file_path for e in around.entries(DataFileContent.DATA)) == paths


def test_other_manifests_stay_as_they_are(catalog: Catalog) -> None:
    table = new_table(catalog, properties=AT_ONCE)
    plain(table)
    now = fresh(table)
    head = now.current_snapshot()
    assert head is not None
    alone = {m.manifest_path for m in head.manifests(now.io)[:1]}
    assert compact(very_large(table)).committed
    after = fresh(table).current_snapshot()
    assert after is not None
    assert alone <= {m.manifest_path for m in after.manifests(now.io)}


def test_a_damaged_manifest_is_an_error_though_nobody_asks_for_its_files(catalog: Catalog) -> None:
    table = new_table(catalog)
    plain(table)
    now = fresh(table)
    head = now.current_snapshot()
    assert head is not None
    path = Path(head.manifests(now.io)[0].manifest_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptObject, match="does not decode"):
        list_snapshot(now, head, ManifestCache(0)).around({"nobody"})

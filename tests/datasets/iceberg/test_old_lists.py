"""Tables that were upgraded from format version 1, with manifest lists that do not say how many files and
rows a manifest has, as those of version 1 may. Those of version 2 must."""

from __future__ import annotations

import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_LIST_FILE_SCHEMAS, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record

from lithify.datasets.iceberg.maintenance.garbage import collect
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import DAY, START, append, check, fresh, make_rows, new_table

BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
ROWS = (512, 513, 514)
ALL = (504, 505, 506, *ROWS)


def forget_counts(table: Table, counts: tuple[int, ...], *, left_out: bool) -> None:
    """Write the newest manifest list as version 1, with null for these fields or without them."""
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    places = [field.field_id for field in MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION].fields]
    fields = [f for f in MANIFEST_LIST_FILE_SCHEMAS[1].fields if not (left_out and f.field_id in counts)]
    listed = [
        Record(*(None if f.field_id in counts else manifest[places.index(f.field_id)] for f in fields))
        for manifest in snapshot.manifests(now.io)
    ]
    now.io.delete(snapshot.manifest_list)
    output = now.io.new_output(snapshot.manifest_list)
    with AvroOutputFile[Record](output, Schema(*fields), "manifest_file") as file:
        file.write_block(listed)


def manifests_of(table: Table) -> list[ManifestFile]:
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(now.io)


@pytest.fixture(params=[(ALL, False), (ALL, True), (ROWS, True)], ids=["null", "left out", "no rows"])
def upgraded(request: pytest.FixtureRequest, catalog: Catalog) -> tuple[Table, list[tuple[object, ...]]]:
    """Two manifests that overlap, and one that is apart from them; none is small."""
    properties = {"format-version": "1", "commit.manifest.target-size-bytes": "1"}
    table = new_table(catalog, spec=BY_DAY, properties=properties)
    rows = [row for _ in range(2) for row in append(table, make_rows(8, START, 2 * DAY))]
    rows += append(table, make_rows(4, START + 5 * DAY))
    counts, left_out = request.param
    forget_counts(table, counts, left_out=left_out)
    with fresh(table).transaction() as change:
        change.upgrade_table_version(2)
    return table, list(rows)


def is_whole(manifest: ManifestFile) -> bool:
    files = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    rows = manifest.added_rows_count, manifest.existing_rows_count, manifest.deleted_rows_count
    return None not in (*files, *rows)


def test_manifests_are_rewritten(upgraded: tuple[Table, list[tuple[object, ...]]]) -> None:
    table, rows = upgraded
    done = ManifestRewriter(dataset_of(table), a_clock()).run()
    assert (done.outcome, done.rewritten) == (RewriteOutcome.REWRITTEN, 2)
    assert all(map(is_whole, manifests_of(table)))
    assert sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in manifests_of(table)) == 20
    assert ManifestRewriter(dataset_of(table), a_clock()).run().outcome is RewriteOutcome.NOTHING_TO_DO
    check(table, rows)  # type: ignore[arg-type]


def test_data_are_compacted_beside_what_is_kept(upgraded: tuple[Table, list[tuple[object, ...]]]) -> None:
    table, rows = upgraded
    with fresh(table).transaction() as change:
        change.set_properties({"lithify.min-saved-files": "1"})
    assert compact(dataset_of(table)).committed
    assert all(map(is_whole, manifests_of(table)))
    check(table, rows)  # type: ignore[arg-type]
    assert not collect(dataset_of(table), a_clock()).garbage

"""Partitions that are compared with each other: values that are not equal to themselves, values that are
equal and not the same, and values in another order than the spec's."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, ManifestWriterV2
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField

from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    add_file,
    append,
    as_arrow,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_table,
)

WITH_LEVEL = Schema(*SCHEMA.fields, NestedField(4, "level", DoubleType(), required=False))
BY_LEVEL = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "level"))
BY_DEVICE_AND_DAY = PartitionSpec(
    PartitionField(3, 1000, IdentityTransform(), "device"), PartitionField(1, 1001, DayTransform(), "day")
)


PARTITION = [field.field_id for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields].index(102)


def add_level(table: Table, level: float, count: int = 10) -> tuple[str, list[int]]:
    """A data file of that partition; its path, and the ids of its rows."""
    rows = make_rows(count)
    content = as_arrow(rows).append_column(
        pa.field("level", pa.float64(), True), pa.array([level] * count, pa.float64())
    )
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for number, field in enumerate(content.schema, start=1)
    ]
    path = f"{table.location()}/data/level-{uuid.uuid4()}.parquet"
    with fresh(table).io.new_output(path).create() as stream:
        pq.write_table(content.cast(pa.schema(fields)), stream)
    add_file(table, path, count, Record(level))
    return path, [row[1] for row in rows]


def ids_of(table: Table) -> Sequence[int]:
    return sorted(fresh(table).scan().to_arrow()["id"].to_pylist())


def test_position_deletes_of_not_a_number_stay_when_something_else_is_compacted(catalog: Catalog) -> None:
    table = new_table(catalog, schema=WITH_LEVEL, spec=BY_LEVEL)
    path, _ = add_level(table, math.nan)
    delete_positions(table, {path: [0]}, with_bounds=False)
    others = [number for _ in range(6) for number in add_level(table, 1.0)[1]]
    assert compact(dataset_of(table)).committed
    assert len(delete_files_of(table)) == 1
    found = fresh(table).scan(row_filter="level = 1.0").to_arrow()["id"].to_pylist()
    assert sorted(found) == sorted(others)
    assert path in named_paths(table)


def test_files_of_not_a_number_are_rewritten_without_their_deleted_rows(catalog: Catalog) -> None:
    table = new_table(catalog, schema=WITH_LEVEL, spec=BY_LEVEL)
    written = [add_level(table, math.nan) for _ in range(6)]
    delete_positions(table, {written[0][0]: [0], written[1][0]: [0]})
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert ids_of(table) == sorted(ids_[n] for k, (_, ids_) in enumerate(written) for n in range(k < 2, 10))


def test_equality_deletes_of_not_a_number_apply_there(catalog: Catalog) -> None:
    table = new_table(catalog, schema=WITH_LEVEL, spec=BY_LEVEL)
    ids = [number for _ in range(6) for number in add_level(table, math.nan)[1]]
    delete_equal(table, [ids[0]], partition=Record(math.nan))
    assert compact(dataset_of(table)).committed
    assert ids_of(table) == sorted(ids[1:])


def test_the_two_zeros_are_two_partitions(catalog: Catalog) -> None:
    table = new_table(catalog, schema=WITH_LEVEL, spec=BY_LEVEL)
    ids = [number for n in range(12) for number in add_level(table, 0.0 if n % 2 else -0.0)[1]]
    compact(dataset_of(table))
    partitions = [file.partition[0] for file in files_of(table)]
    assert sorted(math.copysign(1, level) for level in partitions) == [-1, 1]
    assert ids_of(table) == sorted(ids)


def swap_partition_fields(table: Table) -> None:
    """Write the manifests anew with the partition fields the other way round, as the specification allows:
    fields are found by their ids."""
    now = fresh(table)
    spec = PartitionSpec(*reversed(now.spec().fields))
    snapshot = now.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(now.io):
        entries = manifest.fetch_manifest_entry(now.io, discard_deleted=False)
        now.io.delete(manifest.manifest_path)
        output = now.io.new_output(manifest.manifest_path)
        with ManifestWriterV2(spec, now.schema(), output, snapshot.snapshot_id, "deflate") as writer:
            for entry in entries:
                values = entry.data_file.partition
                entry.data_file[PARTITION] = Record(*(values[n] for n in reversed(range(len(values)))))
                writer.add_entry(entry)


def test_partition_fields_are_found_by_their_ids(catalog: Catalog) -> None:
    table = new_table(catalog, spec=BY_DEVICE_AND_DAY)
    rows = [row for n in range(6) for row in append(table, make_rows(3, START, DAY, device="ab"[n % 2]))]
    partitions = {repr(file.partition) for file in files_of(table)}
    swap_partition_fields(table)
    assert {repr(file.partition) for file in files_of(table)}.isdisjoint(partitions)
    assert ManifestRewriter(dataset_of(table), a_clock()).run().outcome is RewriteOutcome.REWRITTEN
    assert {repr(file.partition) for file in files_of(table)} == partitions
    swap_partition_fields(table)
    assert compact(dataset_of(table)).committed
    assert {repr(file.partition) for file in files_of(table)} == partitions
    assert len(files_of(table)) == 2
    check(table, rows)


@pytest.mark.parametrize("level", [math.nan, -0.0])
def test_a_table_of_such_partitions_is_the_same_after_its_manifests_are_rewritten(
    catalog: Catalog, level: float
) -> None:
    table = new_table(catalog, schema=WITH_LEVEL, spec=BY_LEVEL)
    ids = [number for n in range(3) for number in add_level(table, level)[1]]
    done = ManifestRewriter(dataset_of(table), a_clock()).run()
    assert (done.outcome, done.entries) == (RewriteOutcome.REWRITTEN, 3)
    assert [repr(file.partition[0]) for file in files_of(table)] == [repr(level)] * 3
    assert ids_of(table) == sorted(ids)

"""Data files without rows, as some writers leave them: they are dropped, and nothing is read or written for
that."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    as_arrow,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
)

WITH_IDS = pa.schema(
    [f.with_metadata({"PARQUET:field_id": str(n)}) for n, f in enumerate(as_arrow([]).schema, start=1)]
)


def add_empty_file(table: Table, counts: dict[int, int] | None, rows: Sequence[Row] = ()) -> str:
    """Append a Parquet file that has no rows by its manifest, with these numbers of nulls; its path."""
    now = fresh(table)
    path = f"{now.location()}/data/{uuid.uuid4()}.parquet"
    output = now.io.new_output(path)
    with output.create() as stream:
        pq.write_table(as_arrow(rows).cast(WITH_IDS), stream)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=0,
        file_size_in_bytes=len(output),
        null_value_counts=counts,
    )
    file.spec_id = 0
    with now.transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(file)
    return path


@pytest.mark.parametrize("counts", [None, {1: 0}], ids=["no counts", "counts"])
def test_a_file_without_rows_is_dropped(catalog: Catalog, counts: dict[int, int] | None) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(10, START + DAY))
    add_empty_file(table, counts)
    engine = InlineEngine()
    done = compact(dataset_of(table), engine=engine)
    assert len(done.committed) == 1
    assert done.plan.left_alone == ()
    assert len(files_of(table)) == 1
    assert engine.submitted == [], "nothing has to be read for that"
    assert not compact(dataset_of(table)).started
    check(table, rows)


def test_only_files_without_rows_are_left_of_a_table(catalog: Catalog) -> None:
    table = new_table(catalog)
    for _ in range(3):
        add_empty_file(table, {1: 0})
    assert compact(dataset_of(table)).committed
    assert files_of(table) == []
    check(table, [])


def test_good_files_of_null_times_are_not_rewritten_for_it(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"write.target-file-size-bytes": "1200"})
    rows = append(table, [(None, n, "a") for n in range(10)])
    (good,) = files_of(table)
    with fresh(table).transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(good.file_size_in_bytes)})
    gone = add_empty_file(table, {1: 0})
    assert compact(dataset_of(table)).committed
    assert [file.file_path for file in files_of(table)] == [good.file_path]
    assert gone != good.file_path
    check(table, rows)


def test_a_file_whose_manifest_is_wrong_loses_no_rows(catalog: Catalog) -> None:
    table = new_table(catalog)
    add_empty_file(table, {1: 0}, make_rows(3))
    done = compact(dataset_of(table))
    assert not done.started
    (left,) = done.plan.left_alone
    assert "have rows, although their manifest states that they have none" in left
    assert len(files_of(table)) == 1

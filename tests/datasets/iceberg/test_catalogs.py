"""Other catalogs and other stores than SQLite and the local disk."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from lithify.datasets.iceberg.catalogs import store_options
from lithify.store.urls import open_store
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    append,
    by_id,
    check,
    delete_positions,
    files_of,
    make_rows,
    new_table,
    read,
)
from tests.s3 import REGION, S3


def test_a_rest_catalog(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    with serve_rest(catalog) as rest:
        steps = Steps(dataset_of(table, catalog=rest))
        steps.schedule()
        steps.execute()
        rows += append(table, make_rows(10))  # the commit has to try again
        assert steps.commit().committed
        check(table, rows)

        steps.schedule()
        steps.execute()
        path = files_of(table)[0].file_path
        gone = read(table)
        delete_positions(table, {path: [1]})
        kept = read(table)
        assert len(kept) == len(gone) - 1
        tick = steps.commit()
        assert not tick.committed
        assert "deleted meanwhile" in tick.refused[0][1]
        assert read(table) == kept
        assert compact(dataset_of(table, catalog=rest)).committed
        assert len(files_of(table)) == 1
        assert read(table) == kept


def test_a_table_on_s3(s3: S3, tmp_path: Path) -> None:
    """Data, metadata and Lithify's own objects are in the bucket."""
    bucket = s3.bucket()
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
        "s3.region": REGION,
    }
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"s3://{bucket}/lake", **properties
    )
    catalog.create_namespace("db")
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    dataset = dataset_of(table)
    assert compact(dataset).committed
    assert len(files_of(table)) == 1
    assert read(table) == by_id(rows)

    store, root = open_store(table.location(), store_options(table.location(), properties))
    names = {meta.key.removeprefix(f"{root}/").partition("/")[0] for meta in store.list(root)}
    assert names == {"data", "_lithify", "metadata"}

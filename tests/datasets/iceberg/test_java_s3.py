"""Java Iceberg reads tables in an object store that Lithify has compacted, through its own client of S3: it
takes locations apart in its own way, and finds what they name or does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    SCHEMA,
    Row,
    append,
    by_id,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    read,
    s3_catalog,
)
from tests.judge.iceberg_java import IcebergJava, JavaError
from tests.s3 import S3

FAR_FUTURE_MS = 4_000_000_000_000
LOCATIONS = ["{}/lake/db/events", "{}/a b%20c/Zürich+&=", "{}/lake/events/"]
DEVICES = ["a", "b/c d%2F", "Zürich+&=", "q?x#y"]


@pytest.fixture(scope="module")
def java() -> Iterator[IcebergJava]:
    judge = IcebergJava(speaks_s3=True)
    yield judge
    judge.close()


@pytest.fixture
def catalog(s3: S3, tmp_path: Path) -> SqlCatalog:
    return s3_catalog(s3, tmp_path)


def table_at(catalog: Catalog, location: str) -> Table:
    spec = PartitionSpec(
        PartitionField(SCHEMA.find_field("device").field_id, 1000, IdentityTransform(), "device")
    )
    properties = {"format-version": "2"}
    return catalog.create_table(
        ("db", "events"), SCHEMA, location=location, partition_spec=spec, properties=properties
    )


def fill(table: Table) -> list[Row]:
    """Two small files in a partition of every name; one row is deleted by position."""
    (deleted, *rows) = append(table, make_rows(5, device=DEVICES[-1]))
    (first,) = files_of(table)
    delete_positions(table, {first.file_path: [0]})
    for device in DEVICES:
        rows += append(table, make_rows(5, device=device)) + append(table, make_rows(5, device=device))
    assert deleted not in rows
    return rows


def as_java_finds(java: IcebergJava, table: Table) -> list[tuple[object, ...]]:
    """Rows by the judge."""
    given = table.catalog.properties
    properties = {
        **{name: given[name] for name in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")},
        "s3.path-style-access": "true",
        "client.region": given["s3.region"],
    }
    return by_id(java.rows_in_s3(fresh(table).metadata_location, properties).values)


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_java_finds_what_lithify_wrote(
    catalog: SqlCatalog, java: IcebergJava, scheme: str, location: str
) -> None:
    bucket = catalog.properties["warehouse"].removeprefix("s3://").partition("/")[0]
    table = table_at(catalog, location.format(f"{scheme}://{bucket}"))
    rows = fill(table)
    before = {file.file_path for file in files_of(table)}
    assert compact(dataset_of(table)).failures == ()
    assert not before & {file.file_path for file in files_of(table)}
    assert read(table) == as_java_finds(java, table) == by_id(rows)
    expiry = Expirer(dataset_of(table), a_clock(), RandomIds()).run(
        ExpireOptions(older_than_ms=FAR_FUTURE_MS)
    )
    assert expiry.outcome is ExpiryOutcome.EXPIRED
    assert read(table) == as_java_finds(java, table) == by_id(rows)


def test_java_misses_what_is_gone(catalog: SqlCatalog, java: IcebergJava, s3: S3) -> None:
    """It reads where the table says, not a copy."""
    table = table_at(catalog, f"{catalog.properties['warehouse']}/events")
    append(table, make_rows(5))
    (file,) = files_of(table)
    bucket, _, key = file.file_path.removeprefix("s3://").partition("/")
    s3.client().delete_object(Bucket=bucket, Key=key)
    with pytest.raises(JavaError, match="NotFoundException"):
        as_java_finds(java, table)

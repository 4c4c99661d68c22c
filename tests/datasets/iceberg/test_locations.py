"""Where a table lies, as different programs write it: Lithify's own objects are there too, for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.stores import open_place
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import NAME, SCHEMA, append, check, fresh, make_rows


def table_at(catalog: Catalog, location: str) -> Table:
    return catalog.create_table(NAME, SCHEMA, location=location, properties={"format-version": "2"})


SPELLINGS = [
    "file:{}",
    "file://{}",
    "FILE:{}",
    "{}",
    "file:///{}",
    "file://{}/",
    "file:{}/a b%20c/Zürich",
    "file://{}//x",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_process_shares_one_ledger(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Java writes one slash, and some programs none of this."""
    table = table_at(catalog, spelling.format(tmp_path / "events"))
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    first = Steps(dataset_of(table), name="first")
    assert len(first.schedule().ledger.active()) == 1
    monkeypatch.chdir(two)
    second = dataset_of(fresh(table))
    ledger = second.ledger()
    assert ledger is not None
    assert len(ledger.active()) == 1
    first.execute()
    assert first.commit().committed
    compact(second)
    assert sorted(row[1] for row in rows) == sorted(fresh(table).scan().to_arrow()["id"].to_pylist())
    if spelling == "file:{}":
        check(table, rows)
    assert not list(one.iterdir())
    assert not list(two.iterdir())
    (ledgers,) = tmp_path.rglob("ledger")
    (data,) = tmp_path.rglob("data")
    assert ledgers.is_relative_to(data.parent)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("warehouse/db/events", "is relative"),
        ("file:warehouse/events", "no absolute path"),
        ("file://server/warehouse", "contains a host"),
        ("file://localhost/warehouse", "contains a host"),
        ("C:\\warehouse\\events", "Windows path"),
        ("hdfs://name:8020/warehouse", "'hdfs' is not known"),
        ("viewfs:///warehouse", "'viewfs' is not known"),
        ("wasbs://files@account.blob.core.windows.net/w", "'wasbs' is not known"),
        ("oss://bucket/w", "'oss' is not known"),
        ("s3:/bucket/w", "write s3://"),
        ("s3://bucket/w?version=1", "truncates a location"),
        ("file:///w/#1", "truncates a location"),
    ],
)
def test_what_lithify_cannot_reach_as_pyiceberg_does_is_refused(location: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        open_place(location, {})


def test_schemes_of_s3_are_alike() -> None:
    for scheme in ("s3", "s3a", "s3n", "S3"):
        store, root = open_place(f"{scheme}://bucket/a%20b", {"s3.region": "eu-central-1"})
        assert store.url == f"{scheme.lower()}://bucket"
        assert root == "a%20b"

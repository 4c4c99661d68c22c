"""Other catalogs and other stores than SQLite and the local disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from lithify.api import wiring
from lithify.base.errors import Refused
from lithify.config.model import Config
from lithify.datasets.iceberg.io import catalogs
from lithify.datasets.iceberg.io.catalogs import open_catalog
from lithify.datasets.iceberg.io.stores import store_options
from lithify.datasets.iceberg.maintenance.shared_locations import others_in
from lithify.fleet.catalog.model import DatasetRule
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    NAME,
    SCHEMA,
    append,
    by_id,
    check,
    delete_positions,
    files_of,
    make_rows,
    new_table,
    read,
    s3_catalog,
)
from tests.s3 import S3

AnswerT = TypeVar("AnswerT")


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
    catalog = s3_catalog(s3, tmp_path)
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    dataset = dataset_of(table)
    assert compact(dataset).committed
    assert len(files_of(table)) == 1
    assert read(table) == by_id(rows)

    store, root = open_store(table.location(), store_options(table.location(), catalog.properties))
    names = {meta.key.removeprefix(f"{root}/").partition("/")[0] for meta in store.list(root)}
    assert names == {"data", "_lithify", "metadata"}


S3_PROPERTIES = {"s3.endpoint": "http://host:9000", "s3.access-key-id": "id", "s3.secret-access-key": "key"}


@pytest.mark.parametrize(
    ("location", "properties", "expected"),
    [
        (
            "s3://bucket/t",
            {**S3_PROPERTIES, "s3.session-token": "token", "s3.region": "r", "gcs.service.host": "no"},
            {
                "aws_endpoint": "http://host:9000",
                "aws_access_key_id": "id",
                "aws_secret_access_key": "key",
                "aws_session_token": "token",
                "aws_region": "r",
            },
        ),
        ("s3a://bucket/t", {"s3.endpoint": "host:9000"}, {"aws_endpoint": "https://host:9000"}),
        (
            "s3://bucket/t",
            {"client.access-key-id": "id", "client.secret-access-key": "key", "client.region": "r"},
            {"aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_region": "r"},
        ),
        ("s3://bucket/t", {"s3.region": "one", "client.region": "other"}, {"aws_region": "one"}),
        (
            "s3://bucket/t",
            {"s3.anonymous": "true", "s3.force-virtual-addressing": "true", "s3.proxy-uri": "http://proxy"},
            {
                "aws_skip_signature": "true",
                "aws_virtual_hosted_style_request": "true",
                "proxy_url": "http://proxy",
            },
        ),
        (
            "s3://bucket/t",
            {"s3.connect-timeout": "1.5", "s3.request-timeout": "20"},
            {"connect_timeout": "1500ms", "timeout": "20000ms"},
        ),
        ("s3://bucket/t", {"allow_http": "false"}, {"allow_http": "false"}),
        ("gs://bucket/t", {"gcs.service.host": "http://gcs"}, {"google_base_url": "http://gcs"}),
        (
            "abfss://container@account.dfs.core.windows.net/t",
            {
                "adls.account-name": "account",
                "adls.account-key": "a2V5",
                "adls.blob-storage-authority": "127.0.0.1:10000",
                "adls.blob-storage-scheme": "http",
            },
            {
                "azure_storage_account_name": "account",
                "azure_storage_account_key": "a2V5",
                "azure_storage_endpoint": "http://127.0.0.1:10000/account",
            },
        ),
        (
            "abfss://container@account.dfs.core.windows.net/t",
            {"adls.account-name": "account", "adls.blob-storage-authority": ".blob.local"},
            {
                "azure_storage_account_name": "account",
                "azure_storage_endpoint": "https://account.blob.local",
            },
        ),
        ("file:///t", S3_PROPERTIES, {}),
    ],
)
def test_settings_of_file_access_reach_lithifys_own_store(
    location: str, properties: dict[str, str], expected: dict[str, str]
) -> None:
    assert store_options(location, properties) == expected
    open_store(location, expected)  # the store knows all these names


def test_options_of_databases_are_properties_of_catalogs_too(tmp_path: Path) -> None:
    """One process may work for databases and tables, with one set of options."""
    options = {
        "aws_endpoint": "http://127.0.0.1:9000",
        "AWS_SECRET_ACCESS_KEY": "key",
        "google_base_url": "http://127.0.0.1:4443",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
    }
    catalog = open_catalog("some", options)
    expected = {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.secret-access-key": "key",
        "gcs.service.host": "http://127.0.0.1:4443",
    }
    assert expected.items() <= catalog.properties.items()


@pytest.mark.parametrize(
    "endpoint",
    [
        {"s3.endpoint": "http://127.0.0.1:1"},
        {"aws_endpoint": "http://127.0.0.1:1"},
        {"gcs.service.host": "http://127.0.0.1:1"},
        {
            "adls.account-name": "a",
            "adls.blob-storage-authority": "127.0.0.1:1",
            "adls.blob-storage-scheme": "http",
        },
    ],
)
def test_an_explicit_no_to_http_is_refused_before_the_table_is_read(
    tmp_path: Path, endpoint: dict[str, str]
) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", **endpoint}
    open_catalog("some", properties)
    with pytest.raises(Refused, match=r"catalog some: .*allow_http=false forbids"):
        open_catalog("some", {**properties, "allow_http": "false"})


@pytest.mark.parametrize("endpoint", ["no-url", "http://127.0.0.1:1"])
def test_an_endpoint_in_the_environment_is_nothing_to_a_table_elsewhere(
    catalog: SqlCatalog, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(catalog)
    monkeypatch.setenv("AWS_ENDPOINT", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    opened = open_catalog("test", {"uri": catalog.properties["uri"]})
    assert opened.load_table(NAME).location().startswith("file:")


class _Busy(SqlCatalog):
    """A catalog whose client Lithify does not know; how many ask it at a time."""

    asking = most = 0

    def _asked(self, answer: Callable[[], AnswerT]) -> AnswerT:
        type(self).asking += 1
        type(self).most = max(self.most, self.asking)
        time.sleep(0.001)
        try:
            return answer()
        finally:
            type(self).asking -= 1

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        return self._asked(partial(super().load_table, identifier))

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        return self._asked(partial(super().list_tables, namespace))

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        return self._asked(partial(super().list_namespaces, namespace))


def test_two_never_ask_a_catalog_at_a_time_whose_client_is_not_known_to_be_for_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could get each other's answers, as with the client of Hive's metastore."""
    catalog = _Busy("busy", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    for namespace in ("a", "b", "c"):
        catalog.create_namespace(namespace)
        for name in ("x", "y"):
            catalog.create_table(f"{namespace}.{name}", SCHEMA)
    everything = {f"{namespace}.{name}" for namespace in "abc" for name in "xy"}
    assert {other.name for other in others_in(catalog, ("a", "x"))} == everything - {"a.x"}
    monkeypatch.setattr(catalogs, "closed_catalog", lambda name, given: catalog)
    found = wiring.find_datasets(DatasetRule("iceberg://busy/*.*"), Config(), WaitPolicy())
    assert {url.removeprefix("iceberg://busy/") for url in found} == everything
    assert _Busy.most == 1


def test_tables_are_found_where_a_catalog_knows_no_namespaces_below_others(tmp_path: Path) -> None:
    """A REST catalog may answer 404 when it is asked for them."""

    class Flat(SqlCatalog):
        def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
            if namespace:
                raise NoSuchNamespaceError(f"no namespace {namespace}")
            return super().list_namespaces()

    catalog = Flat("flat", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    for namespace in ("a", "b"):
        catalog.create_namespace(namespace)
        catalog.create_table(f"{namespace}.x", SCHEMA)
    assert [other.name for other in others_in(catalog, ("a", "x"))] == ["b.x"]

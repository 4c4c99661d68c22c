"""What the server of a REST catalog answers: vended credentials, and where they are for; no code, and nothing
that sends the operator's own credentials to a host of the server's choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.table_properties import LOCATION_PROVIDER
from lithify.datasets.iceberg.io.catalogs import load_table, open_catalog, store_of
from lithify.datasets.iceberg.io.vended import with_vended
from tests.datasets.iceberg import intruder
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import NAME, append, check, make_rows, new_catalog, new_table, s3_catalog
from tests.s3 import S3

OWN = {
    "s3.endpoint": "http://own:1",
    "s3.access-key-id": "own-key",
    "s3.secret-access-key": "own-secret",
    "s3.session-token": "own-token",
    "client.session-token": "own-client-token",
    "s3.role-arn": "own-role",
    "gcs.oauth2.token": "own-bearer",
    "adls.account-name": "own",
    "adls.account-key": "own-account-key",
    "adls.client-secret": "own-client-secret",
}
S3_KEYS = {"s3.access-key-id": "their-key", "s3.secret-access-key": "their-secret"}
CODE = {
    "py-io-impl": intruder.NAME,
    "lithify.py-io-impl": intruder.NAME,
    "s3.retry-strategy-impl": intruder.NAME,
    LOCATION_PROVIDER: intruder.LOCATIONS,
    "lithify.allowed-locations": "file:///, s3://theirs/",
    "oauth2-server-uri": "http://theirs/token",
    "ssl": {"cabundle": "/dev/theirs"},
    "auth": {"type": "custom", "impl": intruder.NAME, "custom": {}},
    "hdfs.host": "theirs",
    "s3.proxy-uri": "http://theirs",
    "s3.signer.uri": "http://theirs",
}


@contextmanager
def opened(backend: Catalog, **answers: Any) -> Iterator[Catalog]:
    """The catalog behind a REST server with these answers, as Lithify opens it."""
    with serve_rest(backend, **answers) as client:
        intruder.calls.clear()  # PyIceberg's own client calls what it is told to
        yield open_catalog("test", {"type": "rest", "uri": str(client.properties["uri"])})


@pytest.mark.parametrize("name", ["defaults", "overrides"])
def test_a_server_configures_no_code_no_files_and_no_authentication(tmp_path: Path, name: str) -> None:
    backend = new_catalog(tmp_path)
    table = new_table(backend)
    rows = [row for _ in range(3) for row in append(table, make_rows(5))]
    wanted = {**CODE, "s3.region": "eu-1", "header.x-theirs": "a", "snapshot-loading-mode": "all"}
    with opened(backend, configuration={name: wanted}, of_tables={"config": CODE}) as catalog:
        assert isinstance(catalog, RestCatalog)
        assert not CODE.keys() & catalog.properties.keys() - {"py-io-impl"}
        assert catalog.properties["s3.region"] == "eu-1"
        dataset = dataset_of(table, catalog=catalog)
        assert "theirs" not in str(dataset.load().io.properties.get("ssl"))
        compact(dataset)
    assert intruder.calls == []
    check(table, rows)


def test_an_endpoint_without_credentials_is_refused_where_the_operator_names_another(tmp_path: Path) -> None:
    backend = new_catalog(tmp_path)
    new_table(backend)
    answer = {"config": {"s3.endpoint": "http://127.0.0.1:9"}}
    says = r"db\.events: .*s3\.endpoint to http://127\.0\.0\.1:9 .* set s3\.endpoint"
    with opened(backend, of_tables=answer) as catalog, pytest.raises(Refused, match=says):
        load_table(catalog, NAME)


def test_an_endpoint_with_credentials_gets_these_and_none_of_the_operators(s3: S3, tmp_path: Path) -> None:
    backend = s3_catalog(s3, tmp_path)
    rows = append(new_table(backend), make_rows(5))
    vended = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
    }
    with serve_rest(backend, of_tables={"config": vended}) as client:
        own = {"type": "rest", "uri": str(client.properties["uri"]), **OWN}
        table = load_table(open_catalog("test", own), NAME)
        properties = table.io.properties
        assert {name: properties[name] for name in vended} == vended
        assert not [name for name, v in properties.items() if name.startswith("s3.") and "own" in str(v)]
        assert "client.session-token" not in properties
        assert len(table.scan().to_arrow()) == len(rows)
        store, key = store_of(table)
        assert next(iter(store.list(key)))


@pytest.mark.parametrize(
    ("answer", "gone"),
    [
        (
            {**S3_KEYS, "s3.endpoint": "http://theirs"},
            {"s3.session-token", "client.session-token", "s3.role-arn"},
        ),
        ({"gcs.oauth2.token": "t", "gcs.service.host": "http://theirs"}, set()),
        (
            {"adls.sas-token.other.dfs.core.windows.net": "s", "adls.blob-storage-authority": "theirs"},
            {"adls.account-key", "adls.client-secret"},
        ),
    ],
)
def test_credentials_for_one_store_replace_all_that_the_operator_has_for_it(
    answer: Mapping[str, str], gone: set[str]
) -> None:
    found = with_vended(OWN, answer, "t")
    assert found == {**{name: v for name, v in OWN.items() if name not in gone}, **answer}


@pytest.mark.parametrize(
    "answer",
    [
        {"s3.endpoint": "http://theirs"},
        {"s3.endpoint": "http://theirs", "s3.access-key-id": "k"},
        {"s3.endpoint": "http://theirs", "s3.session-token": "t"},
        {"s3.endpoint": "http://theirs", "gcs.oauth2.token": "t"},
        {"gcs.service.host": "http://theirs", **S3_KEYS},
        {"adls.blob-storage-authority": "theirs"},
        {"adls.dfs-storage-authority": "theirs", "adls.sas-token-expires-at-ms": "1"},
        {"s3.region": "x.theirs.com/#", **S3_KEYS},
        {"client.region": "x@theirs", **S3_KEYS},
        {"adls.account-name": "theirs.com/", "adls.sas-token": "s"},
    ],
)
def test_an_answer_that_would_send_the_operators_credentials_elsewhere_is_refused(
    answer: Mapping[str, str],
) -> None:
    with pytest.raises(Refused, match="table t: its catalog"):
        with_vended(OWN, answer, "t")


def test_what_an_answer_says_besides_is_not_used() -> None:
    assert with_vended(OWN, {**dict.fromkeys(CODE, "theirs"), "s3.endpoint": OWN["s3.endpoint"]}, "t") == OWN

"""Every way to give the settings of a store reaches the object, and no more than the endpoint is needed to
use a server without encryption."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.cli.invoking import invoke, invoke_json
from tests.datasets.iceberg.tables import append, make_rows, new_table
from tests.judge.official import Put, open_db
from tests.s3 import S3

WAYS = ["option", "--set", "file", "own variable", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def database(s3: S3) -> str:
    url = f"s3://{s3.bucket()}/some/db"
    with open_db(url, store_options=s3.options) as database:
        database.write_batch([Put(b"k", b"v")])
        database.flush()
    return url


@pytest.fixture(scope="module")
def table(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a catalog with one table on S3."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db"
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
        "s3.region": s3.options["aws_region"],
    }
    catalog = SqlCatalog("lake", uri=uri, warehouse=f"s3://{s3.bucket()}/lake", **properties)
    catalog.create_namespace("db")
    append(new_table(catalog), make_rows(10))
    return uri


def arguments(way: str, options: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a command that is given `options` in that way."""
    match way:
        case "option":
            return [f"--store-option={name}={value}" for name, value in options.items()]
        case "--set":
            return [f"--set=store_options.{name}={value}" for name, value in options.items()]
        case "file":
            lines = [f'"{name}" = "{value}"' for name, value in options.items()]
            (folder / "lithify.toml").write_text("\n".join(["[store_options]", *lines]))
            return [f"--config={folder / 'lithify.toml'}"]
        case "own variable":
            for name, value in options.items():
                monkeypatch.setenv(f"LITHIFY_STORE_OPTIONS__{name.upper()}", value)
        case variable:
            endpoint = options.pop("aws_endpoint")
            for name, value in ({variable: endpoint} | options).items():
                monkeypatch.setenv(name.upper(), value)
    return []


def without_consent(s3: S3) -> dict[str, str]:
    return {name: value for name, value in s3.options.items() if name != "aws_allow_http"}


@pytest.mark.parametrize("way", WAYS)
def test_a_database_is_reached_by_its_endpoint_alone(
    s3: S3, database: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(way, without_consent(s3), tmp_path, monkeypatch)
    assert invoke_json("plan", database, *given)["url"] == database


@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_reached_by_the_same_options(
    s3: S3, table: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyIceberg reaches it and as Lithify's own store does: both are asked by `status`."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", table)
    given = arguments(way, without_consent(s3), tmp_path, monkeypatch)
    url = "iceberg://lake/db.events"
    found = invoke_json("status", url, *given, f"--store-option=uri={table}")
    assert found["table"]["rows"] == 10


@pytest.mark.parametrize("command", ["plan", "compact", "status", "gc", "doctor"])
def test_no_command_goes_against_an_explicit_no(s3: S3, database: str, command: str) -> None:
    options = [*without_consent(s3).items(), ("allow_http", "false")]
    result = invoke(command, database, *(f"--store-option={name}={value}" for name, value in options))
    assert result.exit_code == 2
    assert "allow_http=false forbids" in result.stderr


def test_a_database_has_options_of_its_own(s3: S3, database: str) -> None:
    elsewhere = {"s3://elsewhere#aws_endpoint": "http://127.0.0.1:1", "allow_http": "false"}
    own = {f"{database}#{name}": value for name, value in without_consent(s3).items()}
    given = {**elsewhere, **own, f"{database}#allow_http": "true"}
    found = invoke_json(
        "plan", database, *(f"--store-option={name}={value}" for name, value in given.items())
    )
    assert found["url"] == database


def test_a_table_has_options_of_its_own(
    s3: S3, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", table)
    given = {f"iceberg://lake#{name}": value for name, value in without_consent(s3).items()}
    given |= {"iceberg://lake/db#uri": "sqlite:////nowhere", "iceberg://lake/db.events#uri": table}
    options = [f"--store-option={name}={value}" for name, value in given.items()]
    assert invoke_json("status", "iceberg://lake/db.events", *options)["table"]["rows"] == 10

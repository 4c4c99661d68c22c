"""Where credentials for a table's store come from if its catalog gives none: remote signing, which is
refused, and profiles of AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.catalogs import load_table, open_catalog, store_of
from tests.cli.invoking import invoke
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import NAME, append, files_of, fresh, make_rows, new_table, s3_catalog
from tests.s3 import REGION, S3

SIGNS = {"s3.remote-signing-enabled": "true", "s3.signer.endpoint": "v1/sign"}
SIGNS_IN_AN_OLDER_WAY = {"s3.signer": "S3V4RestSigner", "s3.signer.uri": "http://signer"}
SAYS = r"db\.events: its catalog gives no credentials .* \(remote signing\), which is not supported; let the "


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without anything of AWS, on a machine without a role."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


def keys(s3: S3) -> dict[str, str]:
    return {
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
    }


def write_profile(home: Path, s3: S3) -> None:
    given = s3.options
    (home / ".aws" / "credentials").write_text(
        f"[work]\naws_access_key_id = {given['aws_access_key_id']}\n"
        f"aws_secret_access_key = {given['aws_secret_access_key']}\n"
    )


@contextmanager
def served(s3: S3, folder: Path, **answers: Any) -> Iterator[dict[str, str]]:
    """How the operator has configured a REST catalog that answers so and has a table."""
    backend = s3_catalog(s3, folder)
    append(new_table(backend), make_rows(5))
    with serve_rest(backend, **answers) as client:
        uri = str(client.properties["uri"])
        yield {"type": "rest", "uri": uri, "s3.endpoint": s3.endpoint, "s3.region": REGION}


@pytest.mark.parametrize("signs", [SIGNS, SIGNS_IN_AN_OLDER_WAY])
@pytest.mark.parametrize("where", ["table", "defaults", "overrides"])
def test_remote_signing_is_named_for_what_it_is(
    s3: S3, tmp_path: Path, signs: dict[str, str], where: str
) -> None:
    answers: dict[str, Any] = {"of_tables": {"config": signs}}
    if where != "table":
        answers = {"configuration": {where: signs}}
    with served(s3, tmp_path, **answers) as own:
        s3.server.forget()
        with pytest.raises(Refused, match=SAYS):
            store_of(load_table(open_catalog("test", own), NAME))
        read = {request.key for request in s3.server.log}
        assert all(key.endswith(".metadata.json") for key in read), "no more than the server itself reads"


@pytest.mark.parametrize("way", ["keys", "environment", "profile", "vended", "not signing"])
def test_each_thing_that_the_refusal_says_helps(
    s3: S3, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    given = SIGNS | keys(s3) if way == "vended" else SIGNS
    with served(s3, tmp_path, of_tables={"config": given}) as own:
        if way == "keys":
            own |= keys(s3)
        elif way == "environment":
            for name, value in keys(s3).items():
                monkeypatch.setenv(f"AWS_{name.removeprefix('s3.').replace('-', '_').upper()}", value)
        elif way == "profile":
            write_profile(home, s3)
            own |= {"s3.profile-name": "work"}
        elif way == "not signing":
            own |= {"s3.remote-signing-enabled": "false"}
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/of-the-machine")
        store, key = store_of(load_table(open_catalog("test", own), NAME))
        if way != "not signing":
            assert next(iter(store.list(key)))


def test_other_tables_of_such_a_catalog_are_read_as_before(s3: S3, tmp_path: Path) -> None:
    """Where they lie is known without their store."""
    with served(s3, tmp_path, of_tables={"config": SIGNS}) as own:
        assert load_table(open_catalog("test", own), NAME).location().startswith("s3://")


@pytest.fixture
def lake(s3: S3, tmp_path: Path) -> SqlCatalog:
    return s3_catalog(s3, tmp_path)


@pytest.mark.parametrize("named_by", ["variable", "s3.profile-name", "client.profile-name"])
def test_a_profile_gives_the_credentials_of_a_table(
    s3: S3, lake: SqlCatalog, home: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    """Of a catalog that reads the table's metadata from the store itself."""
    table = new_table(lake)
    rows = [row for _ in range(3) for row in append(table, make_rows(5))]
    write_profile(home, s3)
    own = {name: str(value) for name, value in lake.properties.items() if name not in keys(s3)}
    if named_by == "variable":
        monkeypatch.setenv("AWS_PROFILE", "work")
    else:
        own |= {named_by: "work"}
    done = compact(dataset_of(table, catalog=open_catalog("test", own)))
    assert len(done.committed) == 1
    assert len(files_of(table)) == 1
    assert len(fresh(table).scan().to_arrow()) == len(rows)


def test_doctor_says_the_same(s3: S3, tmp_path: Path) -> None:
    with served(s3, tmp_path, of_tables={"config": SIGNS}) as own:
        options = [part for name, value in own.items() for part in ("--store-option", f"{name}={value}")]
        found = invoke("doctor", "iceberg://test/db.events", *options)
        assert found.exit_code == 10
        assert "(remote signing), which is not supported" in " ".join(found.stdout.split())
        helped = [part for name, value in keys(s3).items() for part in ("--store-option", f"{name}={value}")]
        assert invoke("doctor", "iceberg://test/db.events", *options, *helped).exit_code == 0

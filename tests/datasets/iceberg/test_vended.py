"""Credentials that a REST catalog gives out for a while: whoever has a table open asks for others in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyiceberg.table import Table

from lithify.base.errors import ObjectNotFound
from lithify.datasets.iceberg.io.catalogs import open_catalog
from lithify.datasets.iceberg.io.store_file_io import StoredFile
from lithify.datasets.iceberg.io.stores import FileStores, open_place
from lithify.datasets.iceberg.io.vended import (
    ASK_AGAIN_S,
    AZURE,
    GOOGLE,
    RETRY_S,
    VendedCredentials,
    Vending,
    vended,
)
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from tests import serving
from tests.datasets.iceberg import rest
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import NAME, append, make_rows, new_table, s3_catalog
from tests.s3 import S3

LIMIT_S = 20.0
KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret"}


class FakeCatalog:
    """Gives other credentials each time."""

    def __init__(self, **more: str) -> None:
        self.asked = 0
        self.is_away = False
        self.more = {name.replace("_", "-").replace("s3-", "s3."): value for name, value in more.items()}

    def properties(self) -> dict[str, str]:
        return {**KEYS, "s3.session-token": f"token-{self.asked}", **self.more}

    def load_table(self, identifier: tuple[str, ...]) -> Any:
        assert identifier == NAME
        if self.is_away:
            raise ConnectionError("nobody there")
        self.asked += 1
        return SimpleNamespace(io=SimpleNamespace(properties=self.properties()))


def credentials_of(catalog: FakeCatalog, clock: ManualClock) -> VendedCredentials:
    return VendedCredentials(catalog, NAME, catalog.properties(), clock=clock)  # type: ignore[arg-type]


def ends_in_s(credentials: Any, clock: ManualClock) -> float:
    ends: datetime = credentials["expires_at"]
    return ends.timestamp() - clock.now_ms() / 1000


def test_the_catalog_is_asked_whenever_they_are_about_to_end() -> None:
    clock, catalog = ManualClock(), FakeCatalog()
    credentials = credentials_of(catalog, clock)
    first = credentials()
    assert (first["access_key_id"], first["secret_access_key"]) == ("key", "secret")
    assert first["token"] == "token-0"
    assert catalog.asked == 0, "the table was just loaded"
    assert ends_in_s(first, clock) == ASK_AGAIN_S
    assert [credentials()["token"], credentials()["token"]] == ["token-1", "token-2"]


def test_when_they_end_is_what_the_catalog_says() -> None:
    clock = ManualClock()
    catalog = FakeCatalog(s3_session_token_expires_at_ms=str(clock.now_ms() + 3_600_000))
    assert ends_in_s(credentials_of(catalog, clock)(), clock) == 3600
    for odd in ("soon", "-1", str(1 << 70)):
        catalog = FakeCatalog(s3_session_token_expires_at_ms=odd)
        assert ends_in_s(credentials_of(catalog, clock)(), clock) == ASK_AGAIN_S


def test_those_at_hand_stay_while_the_catalog_is_away(caplog: pytest.LogCaptureFixture) -> None:
    clock, catalog = ManualClock(), FakeCatalog()
    credentials = credentials_of(catalog, clock)
    credentials()
    catalog.is_away = True
    kept = credentials()
    assert (kept["token"], ends_in_s(kept, clock)) == ("token-0", RETRY_S)
    assert "no new credentials: loading table db.events: ConnectionError: nobody there" in caplog.text
    catalog.is_away = False
    assert credentials()["token"] == "token-1"


@pytest.mark.parametrize(
    ("vending", "given", "expected"),
    [
        (GOOGLE, {"gcs.oauth2.token": "t"}, {"token": "t"}),
        (AZURE, {"adls.sas-token": "sv=1&sig=s"}, {"sas_token": "sv=1&sig=s"}),
    ],
)
def test_of_google_and_azure(vending: Vending, given: dict[str, str], expected: dict[str, str]) -> None:
    clock, catalog = ManualClock(), FakeCatalog()
    ends = {vending.ends: str(clock.now_ms() + 3_600_000)}
    credentials = VendedCredentials(catalog, NAME, {**given, **ends}, vending, clock)  # type: ignore[arg-type]
    found = credentials()
    assert ends_in_s(found, clock) == 3600
    assert {name: found[name] for name in expected} == expected


@contextmanager
def tokens_of_requests() -> Iterator[tuple[str, list[str | None]]]:
    """A server that has no object, and the tokens that were shown to it."""
    shown: list[str | None] = []

    class Handler(serving.Handler):
        def do_HEAD(self) -> None:
            of_azure = parse_qs(urlsplit(self.path).query).get("sig", [None])[0]
            of_google = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            shown.append(self.headers.get("x-amz-security-token") or of_azure or of_google)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving.serving(Handler) as url:
        yield url, shown


STORES: dict[str, tuple[dict[str, str], Callable[[str], dict[str, str]]]] = {
    "s3": (
        {"aws_endpoint": "", "aws_region": "r", "aws_session_token": "of the opening"},
        lambda token: {"access_key_id": "k", "secret_access_key": "s", "token": token},
    ),
    "gs": (
        {"google_base_url": "", "google_bearer_token": "of the opening"},
        lambda token: {"token": token},
    ),
    "az": (
        {"azure_storage_endpoint": "", "azure_storage_account_name": "a", "azure_storage_sas_key": "sig=of"},
        lambda token: {"sas_token": f"sv=1&sig={token}"},
    ),
}


def at(endpoint: str, options: dict[str, str]) -> dict[str, str]:
    return {**{name: value or endpoint for name, value in options.items()}, "allow_http": "true"}


@pytest.mark.parametrize("scheme", STORES)
def test_a_store_asks_for_credentials_before_they_end(scheme: str) -> None:
    given = list[str]()
    options, credentials_with = STORES[scheme]

    def credentials() -> Any:
        given.append(f"token-{len(given)}")
        return {**credentials_with(given[-1]), "expires_at": datetime.now(UTC) + timedelta(seconds=1)}

    with tokens_of_requests() as (endpoint, shown):
        url = f"{scheme}://bucket/root"
        store, _ = open_store(url, at(endpoint, options), credentials=credentials)
        until_s = time.monotonic() + LIMIT_S
        while "token-1" not in shown and time.monotonic() < until_s:
            with pytest.raises(ObjectNotFound):
                store.head("root/x")
            time.sleep(0.05)
    assert shown[0] == "token-0"
    assert "token-1" in shown


def test_a_token_for_google_that_is_given_is_shown() -> None:
    """As tasks have it, and catalogs that are told of one."""
    with tokens_of_requests() as (endpoint, shown):
        properties = {"gcs.oauth2.token": "given", "gcs.service.host": endpoint, "allow_http": "true"}
        store, _ = open_place("gs://bucket/root", properties)
        with pytest.raises(ObjectNotFound):
            store.head("root/x")
    assert shown == ["given"]


OWN, OTHER = "own.dfs.core.windows.net", "other.dfs.core.windows.net"


@pytest.mark.parametrize("names", [(OTHER, OWN), (OWN, OTHER), ("other", "own"), ("", "own")])
def test_of_tokens_for_accounts_of_azure_that_for_the_own_is_shown(names: tuple[str, str]) -> None:
    with tokens_of_requests() as (endpoint, shown):
        properties = {
            **{f"adls.sas-token.{name}".rstrip("."): f"sig={name.partition('.')[0]}" for name in names},
            "adls.account-name": "own",
            "adls.blob-storage-authority": urlsplit(endpoint).netloc,
            "adls.blob-storage-scheme": "http",
            "allow_http": "true",
        }
        store, _ = open_place(f"abfss://data@{OWN}/root", properties)
        with pytest.raises(ObjectNotFound):
            store.head("root/x")
        lent = FileStores()
        lent.lend(store, properties)
        file = lent.file(f"abfss://data@{OWN}/root/metadata/x.avro", properties)
        assert file is not None, "PyArrow asks for another container"
        assert not file.exists()
        assert lent.file(f"abfss://data@{OTHER}/root/metadata/x.avro", properties) is None
    assert shown == ["own", "own"]


def test_a_token_for_the_own_account_is_asked_for_again() -> None:
    clock, catalog = ManualClock(), FakeCatalog()
    ends_ms = clock.now_ms() + 3_600_000
    catalog.more = {f"adls.sas-token.{OTHER}": "sig=other", f"adls.sas-token.{OWN}": "sig=own"}
    catalog.more[f"adls.sas-token-expires-at-ms.{OWN}"] = str(ends_ms)
    credentials = VendedCredentials(
        catalog,  # type: ignore[arg-type]
        NAME,
        catalog.properties(),
        AZURE,
        clock,
        location=f"abfss://data@{OWN}/root",
    )
    for _ in range(2):
        found = credentials()
        assert found["sas_token"] == "sig=own"
        assert ends_in_s(found, clock) == 3600
    assert catalog.asked == 1


@pytest.fixture
def vending(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A table of a REST catalog that gives other credentials each time it is asked."""
    backend, loaded = s3_catalog(s3, tmp_path), rest._loaded
    table = new_table(backend)
    append(table, make_rows(3))
    times = iter(range(1 << 30))

    def vend(found: Any) -> dict[str, Any]:
        config = {
            "s3.access-key-id": s3.options["aws_access_key_id"],
            "s3.secret-access-key": s3.options["aws_secret_access_key"],
            "s3.session-token": f"token-{next(times)}",
        }
        return {**loaded(found), "config": config}

    monkeypatch.setattr(rest, "_loaded", vend)
    with serve_rest(backend) as client:
        uri = str(client.properties["uri"])
        options = {"type": "rest", "uri": uri, "s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
        yield open_catalog("test", options).load_table(NAME)


def test_what_a_service_keeps_open_has_other_credentials_later(
    vending: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], Any]] = []
    really_open = open_store

    def open_noted(*arguments: Any) -> Any:
        asked.extend(filter(None, arguments[3:]))
        return really_open(*arguments)

    monkeypatch.setattr("lithify.datasets.iceberg.io.stores.open_store", open_noted)
    dataset = dataset_of(vending)
    (credentials,) = asked
    tokens = [credentials()["token"] for _ in range(3)]
    assert len(set(tokens)) == 3
    dataset.take_epoch()
    now = dataset.load()
    assert now.io.properties["s3.session-token"] not in tokens
    assert isinstance(now.io.new_input(now.metadata_location), StoredFile), "by the same store as before"
    assert dataset.snapshot().files


def test_credentials_of_a_catalog_that_vends_none_are_those_of_the_opening(s3: S3, tmp_path: Path) -> None:
    backend = s3_catalog(s3, tmp_path)
    table = new_table(backend)
    assert vended(table) is None
    with serve_rest(backend) as client:
        assert vended(client.load_table(NAME)) is None

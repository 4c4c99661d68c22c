"""An endpoint that is not encrypted: what names it, and when it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lithify.base.errors import ObjectNotFound, Refused, StoreError
from lithify.store.endpoints import Endpoint, is_payload_unsigned
from lithify.store.urls import open_store
from tests import serving

KEYS = {
    "s3://bucket": {"aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_region": "us-east-1"},
    "s3a://bucket": {"aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_region": "us-east-1"},
    "gs://bucket": {"google_skip_signature": "true"},
    "az://container": {"azure_storage_account_name": "account", "azure_skip_signature": "true"},
    "abfss://container@account.dfs.core.windows.net": {"azure_skip_signature": "true"},
}
"""By root: what a store needs besides its endpoint."""
OPTIONS = [
    ("s3://bucket", "aws_endpoint"),
    ("s3://bucket", "AWS_ENDPOINT"),
    ("s3://bucket", "aws_endpoint_url"),
    ("s3://bucket", "aws_endpoint_url_s3"),
    ("s3://bucket", "endpoint"),
    ("s3://bucket", "endpoint_url"),
    ("s3a://bucket", "aws_endpoint"),
    ("gs://bucket", "google_base_url"),
    ("gs://bucket", "base_url"),
    ("az://container", "azure_storage_endpoint"),
    ("az://container", "azure_endpoint"),
    ("az://container", "endpoint"),
    ("abfss://container@account.dfs.core.windows.net", "azure_storage_endpoint"),
]
VARIABLES = [
    ("s3://bucket", "AWS_ENDPOINT"),
    ("s3://bucket", "AWS_ENDPOINT_URL"),
    ("s3://bucket", "AWS_ENDPOINT_URL_S3"),
    ("gs://bucket", "GOOGLE_BASE_URL"),
    ("az://container", "AZURE_STORAGE_ENDPOINT"),
    ("az://container", "AZURE_ENDPOINT"),
]
NOWHERE = "http://127.0.0.1:1"
QUICK = {"max_retries": "0", "timeout": "20s"}


@dataclass
class Server:
    """A server that has no object, and how often it was asked."""

    url: str
    paths: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def listening() -> Iterator[Server]:
    class Handler(serving.Handler):
        def do_GET(self) -> None:
            seen.paths.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving.serving(Handler) as url:
        seen = Server(url)
        yield seen


@pytest.fixture
def server(listening: Server) -> Server:
    listening.paths.clear()
    return listening


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")):
            monkeypatch.delenv(name)


def ask(url: str, options: dict[str, str]) -> None:
    store, _ = open_store(url, {**KEYS[url], **QUICK, **options})
    with pytest.raises(ObjectNotFound):
        store.get("object")


@pytest.mark.parametrize(("url", "name"), OPTIONS)
def test_who_writes_http_in_an_option_wants_http(server: Server, url: str, name: str) -> None:
    ask(url, {name: server.url})
    assert len(server.paths) == 1


@pytest.mark.parametrize(("url", "name"), VARIABLES)
def test_who_writes_http_in_a_variable_wants_http(
    server: Server, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, server.url)
    ask(url, {})
    assert len(server.paths) == 1


@pytest.mark.parametrize("allow", [{}, {"allow_http": "true"}])
def test_the_emulator_of_azure_needs_no_more(
    server: Server, allow: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.url)
    store, _ = open_store("az://container", {"azure_storage_use_emulator": "true", **QUICK, **allow})
    with pytest.raises(ObjectNotFound):
        store.get("object")
    assert server.paths == ["/devstoreaccount1/container/object"]


@pytest.mark.parametrize(("url", "name"), OPTIONS)
@pytest.mark.parametrize("no", ["false", "0", "OFF", "no", "n"])
def test_an_explicit_no_is_refused_with_the_reason(server: Server, url: str, name: str, no: str) -> None:
    with pytest.raises(Refused, match=r"allow_http=.* forbids.*https://"):
        open_store(url, {**KEYS[url], name: server.url, "allow_http": no})
    assert server.paths == []


@pytest.mark.parametrize(
    ("url", "endpoint", "no"),
    [
        ("s3://bucket", "AWS_ENDPOINT", "AWS_ALLOW_HTTP"),
        ("gs://bucket", "GOOGLE_BASE_URL", "GOOGLE_ALLOW_HTTP"),
        ("az://container", "AZURE_ENDPOINT", "AZURE_ALLOW_HTTP"),
    ],
)
def test_an_explicit_no_in_a_variable_counts_too(
    server: Server, url: str, endpoint: str, no: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(no, "false")
    with pytest.raises(Refused, match=f"{endpoint.lower()}.*allow_http=false forbids"):
        open_store(url, {**KEYS[url], endpoint.lower(): server.url})
    monkeypatch.setenv(endpoint, server.url)
    with pytest.raises(Refused, match=f"{endpoint}.*allow_http=false forbids"):
        open_store(url, KEYS[url])
    ask(url, {"allow_http": "true"})  # an option wins over a variable


@pytest.mark.parametrize("emulator", [{}, {"AZURITE_BLOB_STORAGE_URL": NOWHERE}])
def test_an_explicit_no_refuses_the_emulator(
    emulator: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in emulator.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match="allow_http=false forbids"):
        open_store("az://container", {"azure_storage_use_emulator": "true", "allow_http": "false"})


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_in_an_option_wins_over_every_variable(
    server: Server, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, NOWHERE)
    ask("s3://bucket", {"aws_endpoint": server.url})


def test_an_encrypted_endpoint_does_not_become_unencrypted(server: Server) -> None:
    """`https://` to a server that only speaks HTTP fails, whatever is said elsewhere."""
    store, _ = open_store(
        "s3://bucket",
        {**KEYS["s3://bucket"], **QUICK, "aws_endpoint": server.url.replace("http:", "https:")},
    )
    with pytest.raises(StoreError):
        store.get("object")
    assert server.paths == []


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "az://container"])
@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "localhost:9000", "ftp://host", "http://", "http://["]
)
def test_what_is_no_endpoint_is_refused(url: str, endpoint: str) -> None:
    name = next(name for root, name in OPTIONS if root == url)
    with pytest.raises(Refused, match=f"{name}.*http://host:port"):
        open_store(url, {**KEYS[url], name: endpoint})


@pytest.mark.parametrize(
    ("url", "options", "environ", "expected"),
    [
        (None, {}, {}, True),
        ("https://minio", {}, {}, True),
        ("HTTPS://minio", {}, {}, True),
        ("http://minio", {}, {}, False),
        ("https://minio", {"aws_unsigned_payload": "false"}, {}, False),
        ("https://minio", {"unsigned_payload": "false"}, {}, False),
        ("https://minio", {}, {"AWS_UNSIGNED_PAYLOAD": "false"}, False),
    ],
)
def test_payloads_are_unsigned_where_they_are_encrypted_and_nobody_says_otherwise(
    url: str | None, options: dict[str, str], environ: dict[str, str], expected: bool
) -> None:
    endpoint = None if url is None else Endpoint(url, "aws_endpoint")
    assert is_payload_unsigned(endpoint, options, environ) is expected

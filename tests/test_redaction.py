"""What is secret, and that no text shows it."""

from __future__ import annotations

import re
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base import errors
from lithify.base.errors import CorruptObject, LithifyError, StoreError
from lithify.base.redaction import MASK, SPARK_REGEX, is_secret, redact, shown
from lithify.config.model import options
from lithify.datasets.registry import config_type

CANARY = "hunter2-canary"
SECRET = [
    "aws_secret_access_key",
    "AWS_SESSION_TOKEN",
    "aws_sse_customer_key_base64",
    "google_service_account_key",
    "google_bearer_token",
    "azure_storage_account_key",
    "azure_storage_access_key",
    "azure_storage_master_key",
    "azure_storage_sas_key",
    "azure_storage_sas_token",
    "azure_storage_client_secret",
    "azure_storage_encryption_key",
    "s3.secret-access-key",
    "s3.session-token",
    "client.secret-access-key",
    "gcs.oauth2.token",
    "adls.connection-string",
    "adls.account-key",
    "adls.sas-token",
    "adls.credential",
    "credential",
    "token",
    "header.Authorization",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.container.lake.blob.core.windows.net",
    "spark.ssl.keyPassword",
    "spark.authenticate.secret",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
]
OPEN = [
    "aws_endpoint",
    "aws_access_key_id",
    "s3.access-key-id",
    "aws_sse_kms_key_id",
    "aws_sse_bucket_key_enabled",
    "google_service_account",
    "google_base_url",
    "azure_storage_account_name",
    "spark.executor.memory",
    "spark.sql.shuffle.partitions",
    "key",
    "min_filter_keys",
    "sassafras",
]
TEXTS = [
    "GET http://user:{}@127.0.0.1:9/b/x failed",
    "GET http://user:{}@127.0.0.1:9000/b/a@b failed",
    "https://{}@host/x",
    "Error performing GET https://host/x?sv=1&sig={}&se=2 in 3ms",
    "https://host/x?X-Amz-Credential={}&X-Amz-Date=1",
    "aws_secret_access_key={}",
    "spark.hadoop.fs.s3a.secret.key = {}",
    "--conf spark.my.password={} --conf spark.x=1",
    "-Djavax.net.ssl.trustStorePassword={} -Dx=1",
    "properties: {{'s3.secret-access-key': '{}', 'uri': 'x'}}",
    '{{"password": "{}"}}',
    '{{\\"password\\": \\"{}\\"}}',
    "{{'token': \"{}\"}}",
    "sc://host:15002/;token={};user_id=x",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=y",
    "postgresql+psycopg2://me:{}@db/catalog",
    "Authorization: Bearer {}",
    "{{'private_key': '-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----'}}",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert is_secret(name.upper())
    assert shown(name, CANARY) == MASK


@pytest.mark.parametrize("name", OPEN)
def test_names_of_what_may_be_shown(name: str) -> None:
    assert not is_secret(name)
    assert shown(name, CANARY) == CANARY


def test_of_lithifys_own_settings_only_the_token_of_the_dashboard_is_secret() -> None:
    assert [option.name for option in options(config_type()) if is_secret(option.name)] == ["web.token"]


@pytest.mark.parametrize("name", [name for name in SECRET if "." in name])
def test_spark_masks_the_same_settings(name: str) -> None:
    assert re.search(SPARK_REGEX, name)


@pytest.mark.parametrize("value", ["http://user:canary@host", "-Dx.password=canary"])
def test_spark_masks_values_that_have_a_secret_in_them(value: str) -> None:
    assert re.search(SPARK_REGEX, value)


@pytest.mark.parametrize("name", [name for name in OPEN if "spark" in name])
def test_spark_shows_the_rest(name: str) -> None:
    assert not re.search(SPARK_REGEX, name)


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_shows_a_secret(text: str) -> None:
    masked = redact(text.format(CANARY))
    assert CANARY not in masked
    assert MASK in masked
    assert redact(masked) == masked


PASSWORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"], exclude_characters="'\"@/?#"),
    min_size=8,
)


@given(PASSWORDS, st.sampled_from(["http://u:{}@host:1/x", "s3://u:{}@h", "name {}@ http://u:{}@host"]))
def test_what_stands_before_the_host_is_masked_whatever_it_is(password: str, text: str) -> None:
    text = text.replace("name {}@", "name")
    assert password not in redact(text.format(password))


@given(PASSWORDS, st.sampled_from(["http://u:{}@host:1/x", "https://host/?sig={}&x=1", "'password': '{}'"]))
def test_percent_encoded_secrets_are_masked(password: str, text: str) -> None:
    encoded = quote("!" + password, safe="")
    assert encoded not in redact(text.format(encoded))


@given(
    st.text(string.ascii_letters + string.digits + "/+=", min_size=8).filter(lambda s: not s.startswith("="))
)
def test_base64_after_a_name_is_masked(secret: str) -> None:
    assert secret not in redact(f"AccountKey={secret};x").replace(MASK, "")


@pytest.mark.parametrize(
    "text",
    [
        "get some/object: Error performing GET http://127.0.0.1:9000/b/x in 3ms - HTTP error",
        "s3://bucket/db/compacted/01H.sst: the index is cut short",
        "abfss://container@account.dfs.core.windows.net/db",
        "http://host:9000/path/with@sign",
        "the setting key=value is unknown; did you mean keys=1?",
        "Invalid Access Key: Invalid padding",
        "Basic authentication is needed",
        "iceberg://catalog/db.events: the table does not exist",
        "spark.executor.memory=2g",
        "",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    assert redact(f"odd {CANARY}!", [CANARY]) == f"odd {MASK}!"
    assert redact("a short one stays", ["one"]) == "a short one stays"
    assert redact("abcdefgh abcdef", ["abcdef", "abcdefgh"]) == f"{MASK} {MASK}"


def test_no_error_of_ours_shows_a_secret() -> None:
    text = f"http://u:{CANARY}@host"
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, LithifyError):
            error = kind("object", text) if kind is CorruptObject else kind(text)
            assert CANARY not in f"{error} {error!r} {error.args}"
    assert str(StoreError("plain")) == "plain"

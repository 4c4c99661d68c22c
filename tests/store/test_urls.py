"""From the URL a person gives to a store and a prefix."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lithify.base.errors import Refused
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from tests.s3 import S3, serve_s3


@pytest.mark.parametrize(
    ("url", "root", "prefix"),
    [
        ("/data/db", "file:///", "data/db"),
        ("/data//db/../other/", "file:///", "data/other"),
        ("//data/db", "file:///", "data/db"),
        ("/odd #name?", "file:///", "odd #name?"),
        ("/100%25", "file:///", "100%25"),
        ("file:///data/db/", "file:///", "data/db"),
        ("file:/data/db/", "file:///", "data/db"),
        ("file:////data/db/", "file:///", "data/db"),
        ("FILE:/data/a%20b", "file:///", "data/a b"),
        ("S3://bucket/Some/DB", "s3://bucket", "Some/DB"),
        ("s3n://bucket/db", "s3n://bucket", "db"),
        ("/data/a:b", "file:///", "data/a:b"),
        ("file://localhost/data/a%20b", "file:///", "data/a b"),
        ("s3://bucket/some/db", "s3://bucket", "some/db"),
        ("s3://bucket", "s3://bucket", ""),
        ("s3a://bucket/a%20b/", "s3a://bucket", "a b"),
        ("gs://bucket/db", "gs://bucket", "db"),
        ("abfss://files@account.dfs.core.windows.net/db", "abfss://files@account.dfs.core.windows.net", "db"),
        ("memory://one/db", "memory://one", "db"),
        ("memory:///db", "memory://", "db"),
        ("/data/a\tb\nc\r", "file:///", "data/a\tb\nc\r"),
        ("file:///data/a%09b%0Ac%0D", "file:///", "data/a\tb\nc\r"),
    ],
)
def test_root_and_prefix(url: str, root: str, prefix: str) -> None:
    store, found = open_store(url)
    assert (store.url, found) == (root, prefix)


def test_azure_container_with_the_account_as_an_option() -> None:
    store, prefix = open_store("az://container/db", {"azure_storage_account_name": "account"})
    assert (store.url, prefix) == ("az://container", "db")


def test_a_relative_path_is_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, prefix = open_store("some/db")
    store.put(f"{prefix}/object", b"x")
    assert (tmp_path / "some" / "db" / "object").read_bytes() == b"x"


def test_a_symbolic_link_is_followed_and_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store, prefix = open_store(str(tmp_path / "link"))
    store.put(f"{prefix}/object", b"x")
    assert prefix.endswith("link")
    assert (tmp_path / "real" / "object").exists()
    assert [meta.key for meta in store.list(prefix)] == [f"{prefix}/object"]


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("", {}, "empty"),
        ("http://host/db", {}, "'http' is not known"),
        ("s3:///db", {}, "names no bucket"),
        ("s3://bucket/a/../b", {}, "not valid"),
        ("s3://bucket/db?x=1", {}, "%3F"),
        ("s3://bucket/db#1", {}, "%23"),
        ("file://host/db", {}, "host"),
        ("file:data/db", {}, "no absolute path"),
        ("file://", {}, "no absolute path"),
        ("s3:/bucket/db", {}, "write s3://"),
        ("hdfs://name:8020/db", {}, "'hdfs' is not known"),
        ("hdfs:/db", {}, "'hdfs' is not known"),
        ("oss://bucket/db", {}, "'oss' is not known"),
        ("wasbs://files@account/db", {}, "'wasbs' is not known"),
        ("C:\\data\\db", {}, "Windows path"),
        ("c:/data/db", {}, "Windows path"),
        ("memory:/db", {}, "write memory://"),
        ("/data/db", {"aws_region": "x"}, "takes no options"),
        ("memory://a/db", {"aws_region": "x"}, "takes no options"),
        ("s3://bucket/db", {"aws_regoin": "x"}, "aws_regoin"),
        ("s3://bucket/db", {"timeout": "soon"}, "soon"),
        ("s3://bucket/db", {"max_retries": "many"}, "many"),
        ("s3://bucket/db", {"retry_timeout_s": "nan"}, "not a number of seconds"),
        ("s3://bucket/db", {"retry_timeout_s": "long"}, "long"),
        ("s3://bucket/db", {"max_retries": "-1"}, "is negative"),
        ("az://container/db", {}, "Account"),
        ("file:///data/a\tb", {}, "write %09"),
        ("s3://bucket/a\nb", {}, "write %0A"),
        ("memory://one/a\rb", {}, "write %0D"),
        ("s3://buck[et/db", {}, "is not a URL"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_reason(
    url: str, options: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Refused, match=says):
        open_store(url, options)


def test_memory_stores_of_one_name_are_one() -> None:
    open_store("memory://shared/a")[0].put("object", b"x")
    assert open_store("memory://shared/b")[0].get("object") == b"x"
    assert list(open_store("memory://different")[0].list("")) == []


@pytest.mark.parametrize("options", [{}, {"timeout": "20s"}, {"AWS_TIMEOUT": "20s", "max_retries": "1"}])
def test_the_environment_is_read_whatever_options_are_given(
    s3: S3, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store, prefix = open_store(f"s3://{s3.bucket()}/db", options)
    store.put(f"{prefix}/object", b"x")
    assert store.get("db/object") == b"x"


def test_who_has_thousands_of_datasets_shares_the_store_between_them(s3: S3) -> None:
    shared, bucket = WaitPolicy(is_shared=True), s3.bucket()
    one, prefix = open_store(f"s3://{bucket}/one", s3.options, shared)
    two, _ = open_store(f"s3://{bucket}/two", s3.options, WaitPolicy(is_shared=True))
    assert one is two
    one.put(f"{prefix}/object", b"x")
    assert two.get("one/object") == b"x"
    others = (
        open_store(f"s3://{bucket}/one", s3.options)[0],
        open_store(f"s3://{bucket}/one", s3.options, WaitPolicy(1.0, is_shared=True))[0],
        open_store(f"s3://{bucket}/one", {**s3.options, "timeout": "20s"}, shared)[0],
        open_store(f"s3://{s3.bucket()}/one", s3.options, shared)[0],
    )
    assert all(other is not one for other in others)


def test_options_win_over_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    store, _ = open_store(f"s3://{s3.bucket()}", {**s3.options, "max_retries": "0"})
    store.put("object", b"x")


def test_what_is_opened_the_same_way_goes_on_with_the_same_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection is free again a moment after its answer, so now and then there is a second one."""

    def connections(*options: dict[str, str]) -> set[int]:
        s3.server.forget()
        for one in options * 10:
            assert list(open_store(f"s3://{bucket}/db", one)[0].list("")) == []
        return {request.connection for request in s3.server.log}

    with serve_s3() as s3:
        bucket, same = s3.bucket(), s3.options
        first = connections(same, dict(reversed(same.items())))
        assert len(first) < 10
        assert not connections({**same, "timeout": "20s"}) & first
        with monkeypatch.context() as patched:
            patched.setenv("NO_PROXY", "example.com")
            assert not connections(same) & first
            patched.undo()
            assert connections(same) & first
            now_s = time.monotonic  # options may name files, which somebody else writes anew
            patched.setattr(time, "monotonic", lambda: now_s() + 61)
            another = connections(same)
            assert len(another) < 10
            assert not another & first

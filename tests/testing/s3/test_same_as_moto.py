"""The server answers as moto does, which was written by others after S3's manual. Where S3 leaves etags free
(of uploads in parts, of large objects), they are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from lithify.testing.s3 import S3Server
from tests.testing.s3.reaching import BUCKET, boto

ODD = [
    "plain",
    "a b",
    "a+b",
    "a%2Fb",
    "a%b",
    "ü/é/日本",
    "😀",
    "//two//slashes/",
    "/first",
    "dir/",
    "dir/a&b<c>\"d'",
    "~!*'();:@=$,[]#?",
    "x" * 1000,
]
PART = 5 * 1024 * 1024
LISTED = "listed"


@pytest.fixture(scope="module")
def clients() -> Iterator[list[Any]]:
    """One of each server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    with S3Server() as server:
        yield [boto(server.url), boto(f"http://{host}:{port}")]
    moto.stop()


@pytest.fixture
def both(clients: list[Any]) -> Iterator[list[Any]]:
    """A client of each, with an empty bucket."""
    with buckets(clients):
        yield clients


@pytest.fixture(scope="module")
def listed(clients: list[Any]) -> Iterator[list[Any]]:
    """A client of each, with the same objects, which nobody changes, in the bucket `LISTED`."""
    with buckets(clients, LISTED):
        for key in ("a", "a/1", "a/b/1", "a/b/2", "a/c", "a0", "b/1", "c", "ü/1", "ü/2"):
            for client in clients:
                client.put_object(Bucket=LISTED, Key=key, Body=key.encode())
        yield clients


@contextmanager
def buckets(clients: list[Any], name: str = BUCKET) -> Iterator[None]:
    """An empty one at each."""
    for client in clients:
        client.create_bucket(Bucket=name)
    yield
    for client in clients:
        while keys := client.list_objects_v2(Bucket=name).get("Contents", []):
            client.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key["Key"]} for key in keys]})
        client.delete_bucket(Bucket=name)


def ask(client: Any, method: str, **arguments: Any) -> dict[str, Any]:
    """What matters of an answer, errors included."""
    try:
        answer = getattr(client, method)(**{"Bucket": BUCKET, **arguments})
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return {"status": status, "code": error.response["Error"]["Code"]}
    found = {
        name: answer[name]
        for name in (
            "ETag",
            "ContentLength",
            "ContentRange",
            "ContentType",
            "CacheControl",
            "Metadata",
            "KeyCount",
            "IsTruncated",
            "MaxKeys",
            "Prefix",
            "Delimiter",
            "CommonPrefixes",
        )
        if name in answer
    }
    found["status"] = answer["ResponseMetadata"]["HTTPStatusCode"]
    if "Body" in answer:
        found["Body"] = answer["Body"].read()
    if "Contents" in answer:
        found["Contents"] = [(item["Key"], item["Size"], item["ETag"]) for item in answer["Contents"]]
    if "Deleted" in answer:
        found["Deleted"] = sorted(item["Key"] for item in answer["Deleted"])
    return found


def same(both: list[Any], method: str, **arguments: Any) -> dict[str, Any]:
    """The answer that both give."""
    ours, theirs = (ask(client, method, **arguments) for client in both)
    assert ours == theirs
    return ours


@pytest.mark.parametrize("key", ODD)
def test_odd_keys(both: list[Any], key: str) -> None:
    same(both, "put_object", Key=key, Body=b"value", Metadata={"name": "x"}, CacheControl="no-store")
    assert same(both, "get_object", Key=key)["Body"] == b"value"
    same(both, "head_object", Key=key)
    assert [k for k, _, _ in same(both, "list_objects_v2")["Contents"]] == [key]
    assert [k for k, _, _ in same(both, "list_objects_v2", Prefix=key)["Contents"]] == [key]
    same(both, "copy_object", Key="copy", CopySource={"Bucket": BUCKET, "Key": key})
    assert same(both, "get_object", Key="copy")["Metadata"] == {"name": "x"}
    assert same(both, "delete_objects", Delete={"Objects": [{"Key": key}, {"Key": "copy"}]})["Deleted"]
    assert same(both, "list_objects_v2")["KeyCount"] == 0


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b/", "none", "ü"])
@pytest.mark.parametrize("delimiter", [None, "/", "b"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_pages_of_listings(listed: list[Any], prefix: str, delimiter: str | None, size: int) -> None:
    asked = {"Prefix": prefix, **({"Delimiter": delimiter} if delimiter else {})}
    pages: list[list[dict[str, Any]]] = []
    for client in listed:
        found = client.get_paginator("list_objects_v2").paginate(
            Bucket=LISTED, PaginationConfig={"PageSize": size}, **asked
        )
        pages.append(
            [
                {
                    "keys": [(item["Key"], item["Size"]) for item in page.get("Contents", [])],
                    "prefixes": [item["Prefix"] for item in page.get("CommonPrefixes", [])],
                    "count": page["KeyCount"],
                    "more": page["IsTruncated"],
                }
                for page in found
            ]
        )
    assert pages[0] == pages[1]


@pytest.mark.parametrize("start_after", ["a", "a/b", "a/b/1", "b", "zzz"])
def test_a_listing_that_starts_after_a_key(both: list[Any], start_after: str) -> None:
    for key in ("a", "a/b/1", "a/b/2", "b"):
        for client in both:
            client.put_object(Bucket=BUCKET, Key=key)
    same(both, "list_objects_v2", StartAfter=start_after)


@pytest.mark.parametrize(
    "span", ["bytes=0-0", "bytes=2-", "bytes=-3", "bytes=-100", "bytes=3-100", "bytes=10-", "bytes=10-12"]
)
def test_ranges(both: list[Any], span: str) -> None:
    same(both, "put_object", Key="k", Body=b"0123456789")
    same(both, "get_object", Key="k", Range=span)


REQUESTS: dict[str, Callable[[list[Any]], Any]] = {
    "no object": lambda both: same(both, "get_object", Key="none"),
    "no object, by HEAD": lambda both: same(both, "head_object", Key="none"),
    "no bucket": lambda both: same(both, "get_object", Bucket="none", Key="k"),
    "no bucket to write": lambda both: same(both, "put_object", Bucket="none", Key="k", Body=b""),
    "no bucket to list": lambda both: same(both, "list_objects_v2", Bucket="none"),
    "no bucket, by HEAD": lambda both: same(both, "head_bucket", Bucket="none"),
    "a bucket": lambda both: same(both, "head_bucket"),
    "a bucket that is not empty": lambda both: same(both, "delete_bucket"),
    "no object to delete": lambda both: same(both, "delete_object", Key="none"),
    "no object to copy": lambda both: same(
        both, "copy_object", Key="x", CopySource={"Bucket": BUCKET, "Key": "none"}
    ),
    "no upload": lambda both: same(both, "abort_multipart_upload", Key="k", UploadId="none"),
    "create what is there": lambda both: same(both, "put_object", Key="k", Body=b"2", IfNoneMatch="*"),
    "create what is not there": lambda both: same(both, "put_object", Key="n", Body=b"2", IfNoneMatch="*"),
    "replace another": lambda both: same(both, "put_object", Key="k", Body=b"2", IfMatch='"other"'),
    "replace": lambda both: same(
        both, "put_object", Key="k", Body=b"2", IfMatch='"c4ca4238a0b923820dcc509a6f75849b"'
    ),
    "read another": lambda both: same(both, "get_object", Key="k", IfMatch='"other"'),
    "read if another": lambda both: same(
        both, "get_object", Key="k", IfNoneMatch='"c4ca4238a0b923820dcc509a6f75849b"'
    ),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_single_requests(both: list[Any], request_of: Callable[[list[Any]], Any]) -> None:
    same(both, "put_object", Key="k", Body=b"1", ContentType="text/plain")
    request_of(both)
    same(both, "get_object", Key="k")


def outcome_of_upload(client: Any, sizes: list[int], named: Callable[[list[Any]], list[Any]]) -> Any:
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="k", Metadata={"a": "b"})["UploadId"]
    parts = []
    for number, size in enumerate(sizes, start=1):
        part = client.upload_part(
            Bucket=BUCKET, Key="k", UploadId=upload, PartNumber=number, Body=b"%d" % number * size
        )
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    open_uploads = len(client.list_multipart_uploads(Bucket=BUCKET)["Uploads"])
    outcome = ask(
        client, "complete_multipart_upload", Key="k", UploadId=upload, MultipartUpload={"Parts": named(parts)}
    )
    outcome.pop("ETag", None)
    if outcome["status"] != 200:
        client.abort_multipart_upload(Bucket=BUCKET, Key="k", UploadId=upload)
    left = len(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))
    read = ask(client, "get_object", Key="k")
    read.pop("ETag", None)
    return open_uploads, outcome, left, read


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ([PART, 10], lambda parts: parts),
        ([10], lambda parts: parts),
        ([PART, PART, 10], lambda parts: [parts[0], parts[2]]),
        ([PART - 1, 10], lambda parts: parts),
        ([PART, 10], lambda parts: [parts[0], {"PartNumber": 2, "ETag": '"other"'}]),
        ([10], lambda parts: [{"PartNumber": 7, "ETag": parts[0]["ETag"]}]),
    ],
    ids=["two parts", "one", "one left out", "too small", "etag", "number"],
)
def test_uploads_in_parts(both: list[Any], sizes: list[int], named: Callable[[list[Any]], list[Any]]) -> None:
    ours, theirs = (outcome_of_upload(client, sizes, named) for client in both)
    assert ours == theirs

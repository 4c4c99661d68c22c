"""Clients that others wrote take the server for S3."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from lithify.testing.s3 import Operation, S3Server
from tests.judge.official import Admin, Put, compact_officially, open_db, open_reader
from tests.s3 import store_options
from tests.testing.s3.reaching import BUCKET, KEYS, REGION, boto, rust

LARGE = random.Random(1).randbytes(17_000_000)
"""More than three parts of every client."""


def arrow(server: S3Server) -> S3FileSystem:
    return S3FileSystem(
        endpoint_override=server.url,
        access_key=KEYS["aws_access_key_id"],
        secret_key=KEYS["aws_secret_access_key"],
        region=REGION,
    )


def boto_writes(server: S3Server, key: str, data: bytes) -> None:
    boto(server.url).upload_fileobj(io.BytesIO(data), BUCKET, key)


def boto_reads(server: S3Server, key: str) -> bytes:
    return bytes(boto(server.url).get_object(Bucket=BUCKET, Key=key)["Body"].read())


def rust_writes(server: S3Server, key: str, data: bytes) -> None:
    obstore.put(rust(server.url), key, data)


def rust_reads(server: S3Server, key: str) -> bytes:
    return obstore.get(rust(server.url), key).bytes().to_bytes()


def arrow_writes(server: S3Server, key: str, data: bytes) -> None:
    with arrow(server).open_output_stream(f"{BUCKET}/{key}") as stream:
        stream.write(data)


def arrow_reads(server: S3Server, key: str) -> bytes:
    with arrow(server).open_input_file(f"{BUCKET}/{key}") as file:
        return bytes(file.read())


WRITES = (boto_writes, rust_writes, arrow_writes)
READS = (boto_reads, rust_reads, arrow_reads)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "in parts"])
def test_what_one_client_writes_all_read(
    server: S3Server, write: Callable[[S3Server, str, bytes], None], data: bytes
) -> None:
    write(server, "a folder/ü+%25.bin", data)
    for read in READS:
        assert read(server, "a folder/ü+%25.bin") == data


def test_ranges_of_an_object_in_parts(server: S3Server) -> None:
    boto_writes(server, "large", LARGE)
    assert any(request.operation is Operation.PUT_PART for request in server.log)
    store = rust(server.url)
    part = 8 * 1024 * 1024
    for start, end in ((0, 1), (part - 1, part + 1), (part, 2 * part), (100, len(LARGE))):
        assert obstore.get_range(store, "large", start=start, end=end).to_bytes() == LARGE[start:end]
    assert (
        boto(server.url).get_object(Bucket=BUCKET, Key="large", Range="bytes=-7")["Body"].read() == LARGE[-7:]
    )


def test_a_conditional_write_succeeds_once(server: S3Server) -> None:
    store = rust(server.url)
    first = obstore.put(store, "object", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "object", b"2", mode="create")
    assert obstore.get(store, "object").bytes() == b"1"
    obstore.put(store, "object", b"3", mode={"e_tag": first["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, "object", b"4", mode={"e_tag": first["e_tag"]})
    assert obstore.get(store, "object").bytes() == b"3"


def test_folders_of_arrow(server: S3Server) -> None:
    files = arrow(server)
    for key in ("a/1", "a/b/2", "c"):
        arrow_writes(server, key, key.encode())
    found = files.get_file_info(FileSelector(BUCKET, recursive=True))
    assert {(info.path, info.type) for info in found} == {
        (f"{BUCKET}/a", FileType.Directory),
        (f"{BUCKET}/a/1", FileType.File),
        (f"{BUCKET}/a/b", FileType.Directory),
        (f"{BUCKET}/a/b/2", FileType.File),
        (f"{BUCKET}/c", FileType.File),
    }
    files.copy_file(f"{BUCKET}/a/1", f"{BUCKET}/copy")
    files.delete_dir(f"{BUCKET}/a")
    assert [meta["path"] for meta in obstore.list(rust(server.url)).collect()] == ["c", "copy"]
    assert boto_reads(server, "copy") == b"a/1"


def test_the_official_client_writes_compacts_and_reads(server: S3Server) -> None:
    url, options = f"s3://{BUCKET}/some/db", store_options(server.url)
    rows = {b"k%04d" % number: b"v%d" % number for number in range(2000)}
    with open_db(url, store_options=options) as database:
        for start in range(0, 2000, 500):
            batch = list(rows.items())[start : start + 500]
            database.write_batch([Put(key, value) for key, value in batch])
            database.flush()
    compact_officially(url, store_options=options)
    (tree,) = Admin(url, store_options=options).trees()
    assert len(tree.runs) == 1
    with open_reader(url, store_options=options) as reader:
        assert dict(reader.scan()) == rows

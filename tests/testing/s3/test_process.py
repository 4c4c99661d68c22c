"""The server as a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError

from lithify.testing.s3 import Latency, Operation, Outage, S3Process, S3Verb, Weather, latency_of_all
from tests.testing.s3.reaching import BUCKET, boto, connected, rust


@pytest.fixture(scope="module")
def process() -> Iterator[S3Process]:
    with S3Process(Weather(latency=latency_of_all(1)), seed=5) as process:
        yield process


def test_it_serves_loads_and_deletes(process: S3Process, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"c" * 100_000)
    (tmp_path / "a" / "empty").touch()
    assert process.load(tmp_path / "a", BUCKET, "some/place") == 2
    store = rust(process.url)
    process.forget()
    assert obstore.get(store, "some/place/b/c").bytes() == b"c" * 100_000
    assert obstore.get(store, "some/place/empty").bytes() == b""
    assert [request.operation for request in process.log] == [Operation.GET] * 2
    upload = boto(process.url).create_multipart_upload(Bucket=BUCKET, Key="some/place/x")["UploadId"]
    assert process.delete(BUCKET, "some/place/") == 2
    assert obstore.list(store).collect() == []
    assert upload not in str(boto(process.url).list_multipart_uploads(Bucket=BUCKET))


@pytest.mark.parametrize("size", [1_000, 3_000_000, 12_000_000])
def test_large_objects_may_be_kept_in_files(tmp_path: Path, size: int) -> None:
    data = random.Random(7).randbytes(size)
    with S3Process(folder=tmp_path) as process:
        boto(process.url).create_bucket(Bucket=BUCKET)
        store = rust(process.url)
        obstore.put(store, "x", data)
        boto(process.url).put_object(Bucket=BUCKET, Key="y", Body=data)  # with a checksum behind its chunks
        assert obstore.get(store, "x").bytes() == data
        assert obstore.get_range(store, "y", start=50, end=size - 50) == data[50:-50]
        assert list(tmp_path.iterdir()) == []


def test_its_weather_can_be_changed(process: S3Process) -> None:
    before = process.weather
    assert before == Weather(latency=latency_of_all(1))
    process.weather = Weather(outage=Outage.RESET)
    with pytest.raises(BaseError):
        obstore.list(rust(process.url)).collect()
    process.weather = before
    assert process.weather == before


@pytest.mark.parametrize(
    ("method", "what", "status"),
    [
        ("PUT", "weather", 400),
        ("POST", "objects", 400),
        ("DELETE", "objects?bucket=none", 404),
        ("GET", "x", 404),
    ],
)
def test_what_it_cannot_do_it_says(process: S3Process, method: str, what: str, status: int) -> None:
    with connected(process.url) as socket:
        socket.send(f"{method} /_admin/{what} HTTP/1.1\r\n\r\n".encode())
        assert socket.answer()[0] == status


def test_a_folder_that_is_not_there(process: S3Process, tmp_path: Path) -> None:
    assert process.load(tmp_path / "none", BUCKET) == 0
    with pytest.raises(RuntimeError, match="NoSuchBucket"):
        process.delete("no-such-bucket")


def test_the_options_of_the_command() -> None:
    options = ["--latency-ms", "GET=20:60,put=5", "--bandwidth", "90", "--total-bandwidth", "200"]
    options += ["--bucket", "one", "--bucket", "two", "--hung", "0.5"]
    command = [sys.executable, "-m", "lithify.testing.s3", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            with connected(url) as socket:
                socket.send(b"GET /_admin/weather HTTP/1.1\r\n\r\n")
                weather = Weather().changed(json.loads(socket.answer()[2]))
        finally:
            running.terminate()
        assert running.wait(20) == 0
    assert weather == Weather(
        latency={S3Verb.GET: Latency(20, 60), S3Verb.PUT: Latency(5)},
        bandwidth=90e6,
        total_bandwidth=200e6,
        hung=0.5,
    )

"""PyIceberg's files in a store that fails: what is repeated, and what is told."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from lithify.base.errors import StoreUnavailable
from lithify.base.events import Event, WaitingForStore
from lithify.datasets.iceberg.io import fileio
from lithify.datasets.iceberg.io.catalogs import open_catalog
from lithify.datasets.iceberg.io.fileio import WaitingFile, WaitingFileIO
from lithify.store.remote import PROBE_KEY
from lithify.store.resilience.requests import Requests
from lithify.store.resilience.waiting import WaitPolicy
from lithify.testing import ManualClock
from lithify.testing.s3 import Outage, S3Server, Weather
from tests.outages import is_told_with_its_end
from tests.s3 import store_options

FAIR = Weather()
ROWS = pa.table({"n": list(range(1000)), "text": [f"row {n}" for n in range(1000)]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server(seed=3) as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture(autouse=True)
def fair(server: S3Server) -> Iterator[None]:
    yield
    server.weather = FAIR


@dataclass
class Lake:
    """The files of a catalog."""

    catalog: Catalog
    told: list[Event]

    @property
    def io(self) -> WaitingFileIO:
        return cast(WaitingFileIO, self.catalog._load_file_io(location="s3://lake/x"))


def lake(server: S3Server, folder: Path, max_s: float = 60.0) -> Lake:
    told: list[Event] = []
    options = {**store_options(server.url), "uri": f"sqlite:///{folder}/catalog.db"}
    return Lake(open_catalog("lake", options, WaitPolicy(max_s, "lake", told.append)), told)


def each(share: float) -> Weather:
    """This share of everything that repeating helps against."""
    return replace(FAIR, lost_requests=share, lost_answers=share, cut_answers=share, slowed_down=share)


def write_parquet(io: WaitingFileIO, path: str) -> None:
    with io.new_output(path).create(overwrite=True) as stream:
        pq.write_table(ROWS, stream)


def read_parquet(io: WaitingFileIO, path: str) -> pa.Table:
    with io.new_input(path).open() as stream:
        return pq.ParquetFile(stream, pre_buffer=True).read()


def test_files_are_read_and_written_as_before(server: S3Server, tmp_path: Path) -> None:
    io = lake(server, tmp_path).io
    path = "s3://lake/plain/data.parquet"
    write_parquet(io, path)
    direct = PyArrowFileIO(io.properties)
    with direct.new_input(path).open() as stream:
        data = stream.read()
    with io.new_input(path).open() as stream:
        assert stream.read() == data
        assert stream.seek(-4, os.SEEK_END) == len(data) - 4
        assert (stream.read(100), stream.read(1)) == (b"PAR1", b"")
        assert (stream.seek(2), stream.read(3), stream.tell()) == (2, data[2:5], 5)
    assert len(io.new_input(path)) == len(data)
    assert read_parquet(io, path) == ROWS
    io.delete(path)
    assert not io.new_input(path).exists()
    with pytest.raises(FileNotFoundError):
        io.new_input(path).open()


def test_nothing_is_written_over_where_that_is_not_wanted(server: S3Server, tmp_path: Path) -> None:
    io, path = lake(server, tmp_path).io, "s3://lake/once/file"
    for data in (b"first", b"second"):
        stream = io.new_output(path).create(overwrite=False)
        stream.write(data)
        if data == b"first":
            stream.close()
            continue
        with pytest.raises(FileExistsError):
            stream.close()
    assert io.new_input(path).open().read() == b"first"


def test_what_was_not_finished_is_nowhere(server: S3Server, tmp_path: Path) -> None:
    io, path = lake(server, tmp_path).io, "s3://lake/broken/file"

    def fail() -> None:
        with io.new_output(path).create() as stream:
            stream.write(b"some")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not io.new_input(path).exists()


def test_a_large_file_that_was_not_finished_is_nowhere(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fileio, "MAX_HELD_BYTES", 1 << 20)
    io, path = lake(server, tmp_path).io, "s3://lake/broken/large"
    stream = io.new_output(path).create()
    stream.__enter__()
    stream.write(bytes(12 << 20))
    error = ZeroDivisionError()
    stream.__exit__(ZeroDivisionError, error, None)
    assert not io.new_input(path).exists()
    with pytest.raises(ValueError, match="closed"):
        stream.write(b"more")


class Scripted:
    """A file of another library's, whose creation fails as often as there are errors."""

    def __init__(self, *errors: Exception, found: bytes | None = None) -> None:
        self.errors, self.found, self.tries = list(errors), found, 0

    def create(self, overwrite: bool) -> Any:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        if self.found is not None and not overwrite:
            raise FileExistsError("s3://lake/x")
        return self

    def open(self) -> Any:
        return pa.BufferReader(self.found)

    def write(self, data: bytes) -> None:
        self.found = data

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def upload(self, max_s: float = 60.0) -> float:
        """How many seconds it took, by a clock that only waiting moves."""
        clock = ManualClock()
        started_s = clock.monotonic_s()
        requests = Requests("s3://lake", WaitPolicy(max_s), clock=clock)
        file = WaitingFile("s3://lake/x", self, requests, lambda: pytest.fail("not streamed"))
        try:
            file.upload(b"mine", False)
        except StoreUnavailable:
            return clock.monotonic_s() - started_s
        return 0.0


LOST = OSError("curlCode: 56, failure when receiving data from the peer")


def test_a_repeated_upload_takes_its_own_for_its_own_and_nobody_elses() -> None:
    assert Scripted(LOST, found=b"mine").upload() == 0
    with pytest.raises(FileExistsError):
        Scripted(LOST, found=b"theirs").upload()
    with pytest.raises(FileExistsError):
        Scripted(found=b"mine").upload()


@pytest.mark.parametrize(
    ("text", "waits_s"),
    [
        ("AWS Error NETWORK_CONNECTION during PutObject: curlCode: 7, Couldn't connect to server", 60),
        ("AWS Error SLOW_DOWN during PutObject operation", 60),
        ("AWS Error UNKNOWN (HTTP status 502) during PutObject operation", 60),
        ("AWS Error NETWORK_CONNECTION during PutObject: curlCode: 28, Timeout was reached", 60),
        ("curlCode: 6, Couldn't resolve host name", 10),
        ("curlCode: 60, SSL peer certificate or SSH remote key was not OK", 10),
        ("something that nobody has seen", 10),
    ],
)
def test_what_passes_is_waited_for_and_what_nobody_knows_for_seconds(text: str, waits_s: int) -> None:
    assert Scripted(*[OSError(text)] * 10_000).upload() == pytest.approx(waits_s, abs=1)


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error UNKNOWN (HTTP status 301) during PutObject operation: wrong region",
        "AWS Error MISSING_AUTHENTICATION_TOKEN during PutObject operation",
        "AWS Error ACCESS_DENIED during PutObject operation",
    ],
)
def test_what_lasts_is_told_at_once(text: str) -> None:
    file = Scripted(OSError(text))
    with pytest.raises(OSError, match="AWS Error"):
        file.upload()
    assert file.tries == 1


def test_a_read_that_ends_too_soon_is_made_again() -> None:
    class Short(pa.BufferReader):  # type: ignore[misc]
        reads = 0

        def read_at(self, length: int, offset: int) -> bytes:
            Short.reads += 1
            return cast(bytes, super().read_at(length - (Short.reads == 1), offset))

    class File:
        def open(self, seekable: bool) -> Short:
            return Short(b"0123456789")

    requests = Requests("s3://lake", clock=ManualClock())
    file = WaitingFile("s3://lake/x", File(), requests, lambda: pytest.fail("not streamed"))
    assert file.open().read(4) == b"0123"
    assert Short.reads == 2


def test_a_large_file_is_streamed(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fileio, "MAX_HELD_BYTES", 1 << 20)
    io, path = lake(server, tmp_path).io, "s3://lake/large/file"
    pieces = [bytes([n]) * 300_000 for n in range(60)]
    server.weather = replace(FAIR, slowed_down=0.2)
    with io.new_output(path).create() as stream:
        for piece in pieces:
            stream.write(piece)
        assert stream.tell() == 18_000_000
    assert io.new_input(path).open().read() == b"".join(pieces)


def test_an_outage_under_a_large_file_is_waited_for_and_told(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fileio, "MAX_HELD_BYTES", 1 << 20)
    told, is_over = list[Event](), threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        if isinstance(event, WaitingForStore):
            server.weather = FAIR
        else:
            is_over.set()

    options = {**store_options(server.url), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog = open_catalog("lake", options, WaitPolicy(60.0, "lake", tell))
    io, path = cast(WaitingFileIO, catalog._load_file_io(location="s3://lake/x")), "s3://lake/large/outage"
    with io.new_output(path).create() as stream:
        stream.write(bytes(12 << 20))
        server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    assert len(io.new_input(path)) == 12 << 20
    assert is_over.wait(20)
    assert is_told_with_its_end(told)


def test_every_file_survives_a_flaky_store(server: S3Server, tmp_path: Path) -> None:
    io = lake(server, tmp_path).io
    server.weather = each(0.06)
    for n in range(15):
        path = f"s3://lake/flaky/{n}.parquet"
        write_parquet(io, path)
        assert read_parquet(io, path) == ROWS
        assert io.new_input(path).exists()


def test_an_outage_is_waited_for_and_told(server: S3Server, tmp_path: Path) -> None:
    found = lake(server, tmp_path)
    write_parquet(found.io, "s3://lake/outage")
    server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)

    def come_back(event: Event) -> None:
        found.told.append(event)
        server.weather = FAIR

    roots = found.catalog.properties["lithify.requests"]
    patient = open_catalog(
        "lake",
        {**store_options(server.url), "uri": f"sqlite:///{tmp_path}/catalog.db"},
        WaitPolicy(60.0, "lake", come_back),
    )
    assert roots is not patient.properties["lithify.requests"]
    io = cast(WaitingFileIO, patient._load_file_io(location="s3://lake/x"))
    assert read_parquet(io, "s3://lake/outage") == ROWS
    assert is_told_with_its_end(found.told)


@pytest.mark.parametrize(
    "answer",
    [
        PermissionError("Cannot get file info, access denied"),
        OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body."),
    ],
)
def test_a_store_is_back_that_refuses_what_it_is_asked_for_to_see_that(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: OSError
) -> None:
    """Credentials may be for the folder of one table, or have expired."""
    exists, path = PyArrowFile.exists, "s3://lake/refused"

    def refused(file: PyArrowFile) -> bool:
        if file.location.endswith(PROBE_KEY):
            raise answer if server.weather is FAIR else OSError("AWS Error SLOW_DOWN during HeadObject")
        return exists(file)

    monkeypatch.setattr(PyArrowFile, "exists", refused)
    options = {**store_options(server.url), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    service = open_catalog("lake", options, WaitPolicy(0.1, comes_back=True))
    io = cast(WaitingFileIO, service._load_file_io(location=path))
    write_parquet(io, path)
    server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    with pytest.raises(StoreUnavailable):
        len(io.new_input(path))
    server.weather = FAIR
    until_s = time.monotonic() + 15
    while True:
        try:
            assert len(io.new_input(path))
            break
        except StoreUnavailable:
            assert time.monotonic() < until_s
            time.sleep(0.05)


@pytest.mark.parametrize("use", [write_parquet, read_parquet])
def test_it_is_given_up_with_the_cause(
    server: S3Server, tmp_path: Path, use: Callable[[WaitingFileIO, str], Any]
) -> None:
    io = lake(server, tmp_path, max_s=0.3).io
    write_parquet(io, "s3://lake/gone")
    server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    with pytest.raises(StoreUnavailable, match=r"s3://lake/gone: 503.*waited for the store"):
        use(io, "s3://lake/gone")


def test_files_travel_to_tasks_with_how_long_they_wait(server: S3Server, tmp_path: Path) -> None:
    io = lake(server, tmp_path).io
    write_parquet(io, "s3://lake/travels")
    travelled = pickle.loads(pickle.dumps(io))
    assert travelled.properties["lithify.requests"].waiting.max_s == WaitPolicy().tasks_max_s
    assert read_parquet(travelled, "s3://lake/travels") == ROWS


def test_files_on_the_local_disk_are_left_alone(server: S3Server, tmp_path: Path) -> None:
    catalog = lake(server, tmp_path).catalog
    io = catalog._load_file_io(location=f"file://{tmp_path}/metadata/x.metadata.json")
    assert type(io.new_input(f"file://{tmp_path}/x")) is PyArrowFile
    assert type(io.new_output(f"{tmp_path}/x")) is PyArrowFile

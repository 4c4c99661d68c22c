"""PyIceberg's files in a store that fails: what is repeated, and what is told."""

from __future__ import annotations

import os
import pickle
import threading
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
from lithify.datasets.iceberg.io import store_file_io
from lithify.datasets.iceberg.io.catalogs import open_catalog
from lithify.datasets.iceberg.io.fileio import StoreFileIO
from lithify.store.resilience.waiting import WaitPolicy
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
    def io(self) -> StoreFileIO:
        return cast(StoreFileIO, self.catalog._load_file_io(location="s3://lake/x"))


def lake(server: S3Server, folder: Path, max_s: float = 60.0) -> Lake:
    told: list[Event] = []
    options = {**store_options(server.url), "uri": f"sqlite:///{folder}/catalog.db"}
    return Lake(open_catalog("lake", options, WaitPolicy(max_s, "lake", told.append)), told)


def each(share: float) -> Weather:
    """This share of everything that repeating helps against."""
    return replace(FAIR, lost_requests=share, lost_answers=share, cut_answers=share, slowed_down=share)


def write_parquet(io: StoreFileIO, path: str) -> None:
    with io.new_output(path).create(overwrite=True) as stream:
        pq.write_table(ROWS, stream)


def read_parquet(io: StoreFileIO, path: str) -> pa.Table:
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


def test_a_large_file_is_streamed(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file_io, "HELD_BYTES", 1 << 20)
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
    monkeypatch.setattr(store_file_io, "HELD_BYTES", 1 << 20)
    told, is_over = list[Event](), threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        if isinstance(event, WaitingForStore):
            server.weather = FAIR
        else:
            is_over.set()

    options = {**store_options(server.url), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog = open_catalog("lake", options, WaitPolicy(60.0, "lake", tell))
    io, path = cast(StoreFileIO, catalog._load_file_io(location="s3://lake/x")), "s3://lake/large/outage"
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
    io = cast(StoreFileIO, patient._load_file_io(location="s3://lake/x"))
    assert read_parquet(io, "s3://lake/outage") == ROWS
    assert is_told_with_its_end(found.told)


@pytest.mark.parametrize("use", [write_parquet, read_parquet])
def test_it_is_given_up_with_the_cause(
    server: S3Server, tmp_path: Path, use: Callable[[StoreFileIO, str], Any]
) -> None:
    io = lake(server, tmp_path, max_s=0.3).io
    write_parquet(io, "s3://lake/gone")
    server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    with pytest.raises(StoreUnavailable, match=r"(?s)gone: .*503.*waited for the store"):
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

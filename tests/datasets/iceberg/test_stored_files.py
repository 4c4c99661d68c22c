"""Files of tables in a store that is lent for them: what is asked of it, and when it is not used."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lithify.base.errors import CorruptObject, Refused
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.compaction import writer
from lithify.datasets.iceberg.compaction.execute import run_rewrite
from lithify.datasets.iceberg.compaction.task import RewriteBatch, SourceFile
from lithify.datasets.iceberg.compaction.writer import OpenFile, RollingWriter
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedRows
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.io import prefetch, store_file_io, stores
from lithify.datasets.iceberg.io.catalogs import load_table, open_catalog
from lithify.datasets.iceberg.io.prefetch import MAX_AHEAD, DataPath, OpenedAhead, PrefetchExtent
from lithify.datasets.iceberg.io.store_file_io import Recent, StoredFile
from lithify.datasets.iceberg.io.stores import FileStores, forget_metadata, lend, open_place
from lithify.datasets.iceberg.model import NewFile
from lithify.store import multipart
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from lithify.testing import MemoryStore
from lithify.testing.s3 import Operation, S3Server, Weather
from tests.datasets.iceberg.java_table import data_file
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import DAY, START, append, make_rows, new_table
from tests.datasets.iceberg.test_stored import task_of
from tests.s3 import S3, store_options
from tests.store.test_remote import Request, between

ENDINGS = (".parquet", ".avro", ".metadata.json")
ROWS = pa.table({"n": list(range(5000)), "text": [f"row {n}" for n in range(5000)]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server(seed=5) as server:
        server.create_bucket("lake")
        server.create_bucket("other")
        yield server


def open_again(server: S3Server, folder: Path) -> Catalog:
    """The catalog as another process has it."""
    options = {**store_options(server.url), "uri": f"sqlite:///{folder}/catalog.db"}
    return open_catalog("lake", {**options, "warehouse": f"s3://lake/{folder.name}"}, WaitPolicy(10.0))


@pytest.fixture
def catalog(server: S3Server, tmp_path: Path) -> Catalog:
    found = open_again(server, tmp_path)
    found.create_namespace("db")
    return found


@pytest.fixture
def io(server: S3Server, catalog: Catalog) -> FileIO:
    found: FileIO = catalog._load_file_io(location="s3://lake/x")
    store, _ = open_place("s3://lake", found.properties)
    lend(store, found.properties)
    server.forget()
    return found


def asked(server: S3Server, ending: str = "") -> Counter[Operation]:
    """What was asked since the last look."""
    found = Counter(request.operation for request in server.log if request.key.endswith(ending))
    server.forget()
    return found


def parquet(io: FileIO, path: str, rows: pa.Table = ROWS) -> DataPath:
    with io.new_output(path).create(overwrite=True) as stream:
        pq.write_table(rows, stream)
    return DataPath(path, len(io.new_input(path)), PrefetchExtent.SOME)


def test_small_files_are_written_and_read_by_one_request(server: S3Server, io: FileIO) -> None:
    file = parquet(io, "s3://lake/small.parquet")
    assert asked(server) == {Operation.PUT: 1, Operation.HEAD: 1}
    with file.open(io) as stream:
        assert pq.read_table(stream) == ROWS
    assert asked(server) == {Operation.GET: 1}


def test_of_a_large_file_the_end_is_read_and_then_what_is_needed(
    server: S3Server, io: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(store_file_io, "PART_BYTES", 100_000)
    rows = pa.table({"n": list(range(100_000))})
    file = parquet(io, "s3://lake/large.parquet", rows)
    server.forget()
    with file.open(io) as stream:
        assert pq.ParquetFile(stream).metadata.num_rows == 100_000
        assert asked(server) == {Operation.GET: 1}
        assert pq.ParquetFile(stream).read() == rows
    assert asked(server)[Operation.GET] > 2
    with replace(file, wanted=PrefetchExtent.ALL).open(io) as stream:
        assert pq.read_table(stream) == rows


@pytest.mark.parametrize("wrong_by", [-100, 100, 10_000_000])
@pytest.mark.parametrize("whole_bytes", [1000, 10_000_000])
def test_a_size_that_is_not_true_does_no_harm(
    io: FileIO, monkeypatch: pytest.MonkeyPatch, wrong_by: int, whole_bytes: int
) -> None:
    monkeypatch.setattr(prefetch, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(store_file_io, "TAIL_BYTES", 500)
    file = parquet(io, "s3://lake/wrong.parquet")
    with replace(file, size_bytes=file.size_bytes + wrong_by).open(io) as stream:
        assert pq.read_table(stream) == ROWS


def test_of_a_file_whose_footer_is_wanted_no_more_than_its_end_is_read(io: FileIO) -> None:
    rows = pa.table({"n": list(range(200_000))})
    file = replace(parquet(io, "s3://lake/footer.parquet", rows), wanted=PrefetchExtent.FOOTER)
    with file.open(io) as stream:
        assert file.size_bytes > file.held_bytes
        assert pq.ParquetFile(stream).metadata.num_rows == 200_000
        assert isinstance(stream, store_file_io.StoredReads)


def test_a_vector_is_read_by_one_request_or_two(server: S3Server, io: FileIO) -> None:
    """One for the end of the Puffin file, and one for each vector that is not in it."""
    random = np.random.default_rng(1)
    positions = [np.unique(random.integers(0, 2_000_000, 100_000)) for _ in range(3)]
    new = [NewVector(f"{n}", DeletionVector.of(one), 0, Record()) for n, one in enumerate(positions)]
    entries = write_vectors(io, "s3://lake/deletes.puffin", new)
    assert asked(server) == {Operation.PUT: 1}
    sources = [
        SourceFile(n, data_file(f"{n}", 2_000_000, 1), (entry,), True, 1) for n, entry in enumerate(entries)
    ]
    deleted = DeletedRows(io, sources)
    for source, expected in zip(sources, positions, strict=True):
        assert np.array_equal(deleted.of(source).between(0, 2_000_000), expected)
    assert asked(server) == {Operation.GET: 4}


def test_a_file_that_is_gone_is_not_found(io: FileIO) -> None:
    with pytest.raises(FileNotFoundError):
        DataPath("s3://lake/gone.parquet", 1000, PrefetchExtent.ALL).open(io)
    with pytest.raises(FileNotFoundError):
        io.new_input("s3://lake/gone.avro").open()
    assert not io.new_input("s3://lake/gone.avro").exists()


@pytest.mark.parametrize("size", [1000, 3000])
def test_what_is_not_to_be_written_over_is_not(
    io: FileIO, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(store_file_io, "HELD_BYTES", 2000)
    path = f"s3://lake/once-{size}.avro"
    for byte in (b"1", b"1", b"2"):
        stream = io.new_output(path).create(overwrite=False)
        if byte == b"2" or (size == 3000 and io.new_input(path).exists()):
            with pytest.raises(FileExistsError):  # noqa: PT012  # the large one says so when it is begun
                stream.write(byte * size)
                stream.close()
        else:
            stream.write(byte * size)
            stream.close()
    assert io.new_input(path).open().read() == b"1" * size


def test_a_conflict_where_nothing_is_found_is_no_file(s3: S3) -> None:
    """S3 answers so while another request for the same object ends, a first try perhaps."""
    conflict, asked = b"<Error><Code>ConditionalRequestConflict</Code></Error>", list[str]()

    def answer(request: Request) -> tuple[int, bytes] | None:
        if request.method == "PUT":
            asked.append(request.path)
        return (409, conflict) if request.method == "PUT" and len(asked) == 1 else None

    root = f"s3://{s3.bucket()}"
    with between(s3, answer) as options:
        store, _ = open_store(root, options)
        StoredFile(f"{root}/x.json", store, "x.json", Recent()).put(b"{}", overwrite=False)
        assert store.get("x.json") == b"{}"
    assert len(asked) == 2


@pytest.mark.parametrize("size", [1000, 20_000_000])
def test_what_was_not_finished_is_nowhere(io: FileIO, size: int) -> None:
    def fail(path: str) -> None:
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(bytes(size))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail("s3://lake/unfinished")
    stream = io.new_output("s3://lake/unfinished").create(overwrite=True)
    stream.write(bytes(size))
    del stream
    assert not io.new_input("s3://lake/unfinished").exists()


def test_a_large_file_is_streamed(io: FileIO) -> None:
    pieces = [bytes([n]) * 300_000 for n in range(60)]
    with io.new_output("s3://lake/streamed").create(overwrite=True) as stream:
        for piece in pieces:
            stream.write(piece)
        assert stream.tell() == 18_000_000
    with io.new_input("s3://lake/streamed").open() as read:
        assert read.read() == b"".join(pieces)


def test_files_that_pyiceberg_reaches_in_another_way_are_left_to_it(io: FileIO) -> None:
    for location in ("s3://lake/x", "s3a://lake/x"):
        assert isinstance(io.new_input(location), StoredFile)
    for location in ("s3://lake/a?b", "s3://lake/../x"):
        assert not isinstance(io.new_input(location), StoredFile)
    with pytest.raises(Refused, match="outside s3://lake/"):
        io.new_input("s3://other/x")
    found, role = FileStores(), {**io.properties, "s3.role-arn": "arn:aws:iam::1:role/x"}
    found.lend(open_place("s3://lake", io.properties)[0], role)
    assert found.file("s3://lake/x", role) is None
    for location in ("oss://lake/x", "hdfs://lake/x", "file:///lake/x", "/lake/x"):
        assert found.file(location, io.properties) is None


def test_a_store_that_is_not_lent_is_opened_with_the_properties(
    io: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[dict[str, str]]()
    really_open = open_store

    def noted(url: str, options: dict[str, str], *others: Any) -> Any:
        opened.append(options)
        return really_open(url, options, *others)

    monkeypatch.setattr(stores, "open_store", noted)
    other = type(io)({**io.properties, "s3.session-token": "another"})
    for file in (io.new_input("s3://lake/x"), other.new_input("s3://lake/x"), other.new_input("s3://lake/y")):
        assert isinstance(file, StoredFile)
    assert [options["aws_session_token"] for options in opened] == ["another"]
    elsewhere = pickle.loads(pickle.dumps(io))
    assert isinstance(elsewhere.new_input("s3://lake/x"), StoredFile)
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("properties", "region"),
    [
        ({}, "found"),
        ({"s3.region": "given"}, "given"),
        ({"client.region": "given"}, "given"),
        ({"s3.region": "given", "s3.resolve-region": "true"}, "found"),
        ({"s3.endpoint": "http://127.0.0.1:1", "allow_http": "true"}, None),
    ],
)
def test_the_region_of_another_bucket_is_found_as_pyiceberg_does(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], region: str | None
) -> None:
    opened = list[dict[str, str]]()

    def noted(url: str, options: dict[str, str], *_: Any) -> Any:
        opened.append(options)
        return MemoryStore(), ""

    monkeypatch.setattr(stores, "open_store", noted)
    monkeypatch.setattr(stores, "resolve_s3_region", lambda bucket: {"archive": "found"}[bucket])
    FileStores().file("s3://archive/x", properties)
    assert [options.get("aws_region") for options in opened] == [region]


def test_metadata_are_read_once_and_what_is_written_is_known(server: S3Server, catalog: Catalog) -> None:
    table = new_table(catalog)
    store, _ = open_place(table.location(), table.io.properties)
    lend(store, table.io.properties)
    append(table, make_rows(10, START, DAY))
    server.forget()
    for _ in range(3):
        load_table(catalog, table.name())
    assert asked(server) == {}


def test_metadata_that_do_not_decode_are_read_again(catalog: Catalog) -> None:
    table = new_table(catalog)
    store, _ = open_place(table.location(), table.io.properties)
    key = table.metadata_location.removeprefix("s3://lake/")
    whole = store.get(key)
    store.put(key, whole[: len(whole) // 2])
    forget_metadata(catalog.properties)  # it was written here
    with pytest.raises(CorruptObject):
        load_table(catalog, table.name())
    store.put(key, whole)
    assert load_table(catalog, table.name()).metadata == table.metadata


def test_files_are_opened_ahead_in_their_order_and_within_bounds(
    server: S3Server, io: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [parquet(io, f"s3://lake/ahead/{n}.parquet") for n in range(40)]
    server.forget()
    ahead = OpenedAhead(io, files)
    for _ in files:
        with ahead.take() as stream:
            assert stream.read()[-4:] == b"PAR1"
    assert asked(server) == {Operation.GET: 40}

    opening, most, lock = 0, 0, threading.Lock()
    opened = DataPath.open

    def counted(file: DataPath, io: FileIO) -> object:
        nonlocal opening, most
        with lock:
            opening += 1
            most = max(most, opening)
        return opened(file, io)

    monkeypatch.setattr(DataPath, "open", counted)
    server.weather = Weather()
    budget = 3 * files[0].size_bytes
    monkeypatch.setattr("lithify.datasets.iceberg.io.prefetch.MAX_AHEAD_BYTES", budget)
    ahead = OpenedAhead(io, files)
    for taken in range(1, 11):
        ahead.take().close()
        with lock:
            assert opening <= taken + 3
    assert most <= 13 < MAX_AHEAD + 10


def table_of_two_files(catalog: Catalog) -> Table:
    table = new_table(catalog)
    for _ in range(2):
        append(table, make_rows(2000, START, DAY))
    return table


def test_an_upload_of_a_task_that_failed_is_given_up(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(table_of_two_files(catalog))
    monkeypatch.setattr(store_file_io, "HELD_BYTES", 1000)
    monkeypatch.setattr(multipart, "PART_BYTES", 2000)
    before, begun = uploads(), set[threading.Thread]()

    def fail(_: RollingWriter) -> None:
        begun.update(uploads() - before)
        raise ZeroDivisionError

    monkeypatch.setattr(RollingWriter, "close", fail)
    with pytest.raises(ZeroDivisionError):
        run_rewrite(task, RandomIds(), lambda *_: None)
    assert begun
    for thread in begun:
        thread.join(20)
    assert not [thread for thread in begun if thread.is_alive()]


def test_an_interrupt_of_a_task_waits_for_no_upload(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, close, may_end = task_of(table_of_two_files(catalog)), OpenFile.close, threading.Event()

    def hang(file: OpenFile) -> None:
        assert may_end.wait(20)
        close(file)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenFile, "close", hang)
    monkeypatch.setattr(writer, "column_statistics", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_rewrite(task, RandomIds(), lambda *_: None)
        assert not may_end.is_set()
    finally:
        may_end.set()


def uploads() -> set[threading.Thread]:
    """Threads that send large files."""
    return {thread for thread in threading.enumerate() if thread.name == "lithify-upload"}


def test_finished_files_wait_for_each_other_where_they_are_large_and_tell_when_they_are_there(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(task_of(table_of_two_files(catalog)), target_bytes=8000)
    monkeypatch.setattr(writer, "MAX_UPLOAD_BYTES", 1)
    under_way, most, close = 0, 0, OpenFile.close

    def counted(file: OpenFile) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.05)
        close(file)
        under_way -= 1

    monkeypatch.setattr(OpenFile, "close", counted)
    told = list[int]()
    result = run_rewrite(task, RandomIds(), lambda _, written: told.append(written))
    assert len(result.outputs) > 2
    assert most == 1
    last = result.outputs[-1]
    assert isinstance(last, NewFile)
    assert set(told[-2:]) == {result.bytes_written - last.size_bytes, result.bytes_written}


def test_a_task_has_the_credentials_that_the_table_has_then(catalog: Catalog) -> None:
    """Some catalogs give others for each hour."""
    dataset = dataset_of(table_of_two_files(catalog))
    catalog.properties["s3.session-token"] = "fresh"
    (compaction,) = Steps(dataset).schedule().ledger.active()
    (work,) = dataset.prepare(compaction, dataset.snapshot()).works
    batch: RewriteBatch = work.argument
    assert batch.tasks[0].io.properties["s3.session-token"] == "fresh"
    assert batch.store_options["aws_session_token"] == "fresh"


def test_many_threads_read_at_once(io: FileIO) -> None:
    files = [parquet(io, f"s3://lake/many/{n}.parquet") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        tables = pool.map(lambda file: pq.read_table(file.open(io)), files)
    assert all(table == ROWS for table in tables)


def test_a_compaction_asks_for_nothing_twice(server: S3Server, catalog: Catalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    files = 12
    for number in range(files):
        append(table, make_rows(50, START + number * DAY / files, DAY / files))
    server.forget()
    result = compact(dataset_of(table, catalog=open_again(server, tmp_path)))
    assert len(result.committed) == 1
    log = server.log
    by_kind = {
        ending: Counter((r.operation, r.key) for r in log if r.key.endswith(ending)) for ending in ENDINGS
    }
    data, manifests, metadata = by_kind.values()
    assert Counter(operation for operation, _ in data) == {Operation.GET: files, Operation.PUT: 1}
    assert set(data.values()) == {1}
    assert {operation for operation, _ in manifests} == {Operation.GET, Operation.PUT}
    assert set(manifests.values()) == {1}, "neither is what was read read again, nor what was written"
    assert Counter(operation for operation, _ in metadata.elements()) == {Operation.GET: 1, Operation.PUT: 1}

"""Whole tasks on real files, judged by the official compactor; outputs, failures, resuming, memory."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from lithify.base.errors import CorruptObject, LithifyError, Refused, StoreError
from lithify.base.ids import ulid_ms
from lithify.coordination.reporting import BackgroundReporter
from lithify.coordination.sidecar import Reporting
from lithify.datasets.slatedb.compaction.execute import execute_merge, run_merge
from lithify.datasets.slatedb.compaction.sources import source_views
from lithify.datasets.slatedb.compaction.task import (
    DEFAULT_FILTER,
    BloomPolicy,
    MergeTask,
    RowRules,
    SourceSst,
    SstOptions,
    sst_key,
)
from lithify.datasets.slatedb.format.filter import NamedFilter, build_bloom, encode_filters
from lithify.datasets.slatedb.format.sst import unseal
from lithify.datasets.slatedb.kernel import libraries
from lithify.datasets.slatedb.model import Codec, KeyRange, Manifest, Sst, TieredSpec
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedWriter
from lithify.testing import CountingStore, FaultyStore, ManualClock, StoreFault, Verb, WrappedStore
from tests.compacting import dataset_at
from tests.datasets.slatedb.merging import FOLDER, KEEP_ALL, LAST_RUN, Bench, RemoteStore, delete, put
from tests.judge.official import Delete, OpenOptions, Put, Write, compact_officially, copy_database, open_db
from tests.judge.old import OLD_DATABASES, unpack_old_database
from tests.judge.rows import read_database
from tests.judge.semantics import Rules, compact_rows
from tests.judge.sst import read_sst, siphash13

ResultT = TypeVar("ResultT")
SAME_BYTES = (None, "Snappy", "Zstd")
SAME_ROWS = ("Lz4", "Zlib")
CODECS = {None: Codec.NONE, "Snappy": Codec.SNAPPY, "Zlib": Codec.ZLIB, "Lz4": Codec.LZ4, "Zstd": Codec.ZSTD}
WORDS = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon"]


def some_writes(rng: random.Random) -> Iterator[Write]:
    for _ in range(1200):
        key = b"user%08d" % rng.randrange(3000)
        if rng.random() < 0.1:
            yield Delete(key)
        else:
            yield Put(key, b" ".join(rng.choices(WORDS, k=rng.choice((0, 3, 30)))))
    for i in range(3):
        yield Put(b"w" * 70_000 + b"%d" % rng.randrange(5), rng.randbytes(20))
        yield Put(b"x%d" % i, rng.randbytes(100_000))


def full_task(database: Path, manifest: Manifest, options: SstOptions) -> MergeTask:
    tree = manifest.root
    spec = TieredSpec(b"", tuple(view.id for view in tree.l0), tuple(run.id for run in tree.runs), 0)
    root = str(database).lstrip("/")
    groups = source_views(tree, spec)
    assert groups is not None
    return MergeTask(
        store_url=database.as_uri(),
        store_options={},
        output_folder=f"{root}/compacted",
        min_output_ms=0,
        sources=tuple(
            tuple(SourceSst(sst_key(f"{root}/compacted", v.sst.id), v.sst) for v in views) for views in groups
        ),
        range=KeyRange(),
        rules=RowRules(True, manifest.last_l0_clock_tick, manifest.recent_snapshot_min_seq),
        options=options,
    )


def read_output(database: Path, sst: Sst) -> bytes:
    return (database / "compacted" / f"{sst.id}.sst").read_bytes()


@pytest.mark.parametrize("block_size", [4096, 16384, 65536])
@pytest.mark.parametrize("codec", [*SAME_BYTES, *SAME_ROWS])
def test_outputs_equal_the_official_compactors(tmp_path: Path, codec: str | None, block_size: int) -> None:
    database, official = tmp_path / "ours", tmp_path / "official"
    options: OpenOptions = {"settings": {"compression_codec": codec}, "block_size": block_size}
    rng = random.Random(f"{codec} {block_size}")
    with open_db(database, **options) as db:
        for _ in range(4):
            db.write_batch(some_writes(rng))
            db.flush()
    copy_database(database, official)
    compact_officially(official, max_subcompactions=1, **options)
    (run,) = dataset_at(official).snapshot().root.runs
    (view,) = run.views
    expected = read_output(official, view.sst)

    task = full_task(
        database, dataset_at(database).snapshot(), SstOptions(block_size, compression=CODECS[codec])
    )
    (output,) = execute_merge(task).outputs
    found = read_output(database, output)
    assert read_sst(found).rows == read_sst(expected).rows
    if codec in SAME_BYTES:
        info = output.info
        assert found[: info.stats_offset + info.stats_len] == expected[: info.stats_offset + info.stats_len]
        assert info == view.sst.info


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_databases_of_old_clients_are_merged(tmp_path: Path, name: str) -> None:
    database = unpack_old_database(name, tmp_path)
    task = full_task(database, dataset_at(database).snapshot(), SstOptions())
    tree = read_database(database)[b""]
    rules = Rules(True, task.rules.clock_tick_ms, task.rules.retention_min_seq)
    expected = compact_rows((*tree.l0, *(rows for _, rows in tree.runs)), rules)
    (output,) = execute_merge(task).outputs
    assert read_sst(read_output(database, output)).rows == expected


def test_ids_of_outputs_are_never_older_than_allowed() -> None:
    bench = Bench().add([put(b"%04d" % i, 1, b"v" * 100) for i in range(200)])
    task = bench.task(options=SstOptions(1024, max_sst_size=2000))
    bench.clock = ManualClock(now_ms=1_000)
    late = run_merge(replace(task, min_output_ms=5_000), bench.store, bench.ids, bench.clock)
    assert {ulid_ms(sst.id) for sst in late.outputs} == {5_000}
    now = run_merge(replace(task, min_output_ms=500), bench.store, bench.ids, bench.clock)
    assert {ulid_ms(sst.id) for sst in now.outputs} == {1_000}


def test_bytes_and_memory_are_reported() -> None:
    bench = Bench().add([put(b"%04d" % i, 1, b"v" * 100) for i in range(200)])
    result = bench.run()
    (source,) = bench.sources[0]
    assert result.bytes_read == source.sst.info.data_end
    assert result.bytes_written == len(bench.store.get(sst_key(FOLDER, result.outputs[0].id)))
    assert result.cpu_s > 0
    assert result.peak_memory_bytes > 10_000_000


@pytest.mark.parametrize(("bits", "expected"), [(0, False), (10, True)])
def test_a_filter_is_written_for_enough_rows(bits: int, expected: bool) -> None:
    rows = [put(b"%04d" % i, 1) for i in range(100)]
    bench = Bench().add(rows)
    for minimum, has_enough in ((100, True), (101, False)):
        options = SstOptions(min_filter_keys=minimum, filters=(BloomPolicy(),) if bits else ())
        (output,) = bench.run(bench.task(options=options)).outputs
        assert bool(output.info.filter_len) == (expected and has_enough)
        assert output.info.filter_offset == output.info.data_end or output.info.filter_len


def test_the_filter_has_short_and_long_keys() -> None:
    """Of several outputs, none of which has as many rows as are hashed together. The judge looks for each."""
    rows = [put(b"%04d" % i + b"k" * (i * 37 % 300), 1) for i in range(500)]
    bench = Bench().add(rows)
    result = bench.run(bench.task(options=SstOptions(1024, 20_000, min_filter_keys=1)))
    files = bench.files(result)
    assert len(files) > 2
    assert [row.key for file in files for row in file.rows] == [row.key for row in rows]
    for sst, file in zip(result.outputs, files, strict=True):
        data = bench.store.get(sst_key(FOLDER, sst.id))
        section = data[sst.info.filter_offset : sst.info.filter_offset + sst.info.filter_len]
        bloom = build_bloom(np.array([siphash13(row.key) for row in file.rows], np.uint64), 10)
        assert unseal(section, Codec.NONE, "filter") == encode_filters([NamedFilter(DEFAULT_FILTER, bloom)])


class BrokenZlib:
    """Raises whatever is asked of it."""

    error = zlib.error

    def __init__(self, raised: BaseException) -> None:
        self._raised = raised

    def compress(self, data: bytes, level: int) -> bytes:
        raise self._raised

    def decompressobj(self) -> Any:
        raise self._raised


ROWS = [put(b"%04d" % i, 1) for i in range(500)]
ZLIB = SstOptions(1024, 20_000, compression=Codec.ZLIB)


@pytest.mark.parametrize("raised", [MemoryError(), KeyboardInterrupt(), OverflowError("a defect")])
@pytest.mark.parametrize(("inputs", "options"), [(Codec.ZLIB, SstOptions()), (Codec.NONE, ZLIB)])
def test_what_a_codec_in_python_raises_for_no_fault_of_the_bytes_is_raised(
    monkeypatch: pytest.MonkeyPatch, inputs: Codec, options: SstOptions, raised: BaseException
) -> None:
    bench = Bench().add(ROWS, codec=inputs)
    task = bench.task(options=options)
    monkeypatch.setattr(libraries, "zlib", BrokenZlib(raised))
    with pytest.raises(type(raised)) as caught:
        bench.run(task)
    assert caught.value is raised


@pytest.mark.parametrize(
    ("inputs", "options", "kind"),
    [(Codec.ZLIB, SstOptions(), CorruptObject), (Codec.NONE, ZLIB, Refused)],
)
def test_what_a_codec_in_python_refuses_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, inputs: Codec, options: SstOptions, kind: type[LithifyError]
) -> None:
    bench = Bench().add(ROWS, codec=inputs)
    task = bench.task(options=options)
    refusal = zlib.error("incorrect header check")
    monkeypatch.setattr(libraries, "zlib", BrokenZlib(refusal))
    with pytest.raises(kind, match=r"does not decompress|cannot compress") as caught:
        bench.run(task)
    assert caught.value.__cause__ is refusal


def names(bench: Bench) -> set[str]:
    return {meta.key for meta in bench.store.list("")}


def test_nothing_appears_of_an_output_that_fails(tmp_path: Path) -> None:
    bench = Bench()
    bench.store = LocalStore(str(tmp_path))
    bench.add([put(b"%05d" % i, 9, b"v" * 1000) for i in range(3000)])
    (source,) = bench.sources[0]
    data = bytearray(bench.store.get(source.key))
    data[source.sst.info.data_end - 100] ^= 1
    bench.store.put(source.key, bytes(data))
    with pytest.raises(CorruptObject, match=r"block \d+: the checksum does not match") as caught:
        bench.run()
    assert caught.value.name == source.key
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [Path(source.key).name]


def test_failures_of_the_store_leave_no_partial_object() -> None:
    bench = Bench().add([put(b"%05d" % i, 9, b"v" * 1000) for i in range(3000)])
    inner, before = bench.store, names(bench)
    options = SstOptions(max_sst_size=500_000)
    finished = {sst_key(FOLDER, sst.id) for sst in bench.run(bench.task(options=options)).outputs}
    sizes = {inner.head(key).size for key in finished}
    for key in finished:
        inner.delete(key)
    failures = 0
    for seed in range(10):
        bench.store = FaultyStore.seeded(inner, random.Random(seed), 0.15)
        try:
            bench.run(bench.task(options=options))
        except StoreError:
            failures += 1
        bench.store = inner
        assert {inner.head(key).size for key in names(bench) - before} <= sizes
    assert failures


THREE_OUTPUTS = SstOptions(max_sst_size=1_000_000)


class PatientStore(WrappedStore):
    """Commits the first output when the second is being written, or not at all."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._opened = 0
        self._has_next = threading.Event()

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method == "open_writer":
            self._opened += 1
            if self._opened == 2:
                self._has_next.set()
        if call.method == "commit" and not self._has_next.wait(20):
            raise StoreError("the merge waits for the commit")
        return action()


def test_the_next_output_is_merged_while_one_is_committed() -> None:
    bench = Bench().add([put(b"%05d" % i, 9, b"v" * 1000) for i in range(2500)])
    expected = bench.run(bench.task(options=THREE_OUTPUTS))
    bench.store = PatientStore(bench.store)
    found = bench.run(bench.task(options=THREE_OUTPUTS))
    assert len(found.outputs) == 3
    assert bench.rows(found) == bench.rows(expected)


def test_movements_are_reported_until_the_last_commit_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would notice one that hangs."""
    seen: list[str] = []

    class Reporter(BackgroundReporter):
        def finish(self) -> None:
            seen.append("finish")
            super().finish()

    class Commits(WrappedStore):
        def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
            seen.append(call.method)
            return action()

    monkeypatch.setattr("lithify.coordination.reporting.BackgroundReporter", Reporter)
    bench = Bench().add([put(b"k", 9)])
    bench.store = Commits(bench.store)
    bench.run(replace(bench.task(), reporting=Reporting("db/progress", 0, "w", 0)))
    assert seen.index("commit") < seen.index("finish")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_commit_that_fails_fails_the_task_and_leaves_nothing_staged(tmp_path: Path, number: int) -> None:
    bench = Bench()
    inner = bench.store = LocalStore(str(tmp_path))
    bench.add([put(b"%05d" % i, 9, b"v" * 1000) for i in range(2500)])
    commits: list[str] = []

    def fail(_: int, call: Call) -> StoreFault | None:
        if call.method != "commit":
            return None
        commits.append(call.key)
        return StoreFault.FAIL_BEFORE if len(commits) == number else None

    bench.store = FaultyStore(inner, fail)
    with pytest.raises(StoreError):
        bench.run(bench.task(options=THREE_OUTPUTS))
    assert list(inner.list_staged(FOLDER)) == []
    assert len(list(inner.list(FOLDER))) <= 3


def test_a_task_resumes_behind_a_row_in_the_middle_of_a_key() -> None:
    rows = [put(b"k", seq, b"v" * 100) for seq in range(100, 0, -1)] + [delete(b"l", 3)]
    bench = Bench().add(rows)
    options = SstOptions(1024, max_sst_size=2000)
    whole = bench.run(bench.task(KEEP_ALL, options))
    resumed = bench.run(bench.task(KEEP_ALL, options, resume_outputs=whole.outputs[:2]))
    assert bench.rows(resumed) == rows
    assert resumed.rows.rows_out == len(rows) - sum(len(bench.read(sst).rows) for sst in whole.outputs[:2])


def test_resuming_a_finished_range_adds_nothing() -> None:
    bench = Bench().add([put(b"a", 2), put(b"b", 1)])
    whole = bench.run()
    again = bench.run(bench.task(resume_outputs=whole.outputs))
    assert again.outputs == whole.outputs
    assert again.rows.rows_out == 0


def test_resuming_behind_an_output_of_another_range_is_refused() -> None:
    bench = Bench().add([put(b"a", 2), put(b"z", 1)])
    whole = bench.run()
    with pytest.raises(CorruptObject, match="outside the range"):
        bench.run(bench.task(LAST_RUN, key_range=KeyRange(None, b"b"), resume_outputs=whole.outputs))


def test_a_remote_store_is_read_ahead() -> None:
    bench = Bench()
    value = random.Random(2).randbytes(3000)
    for source in range(5):
        rows = [put(b"%05d" % key, 10 - source, value) for key in range(source, 3000, 2)]
        bench.add(rows[:1], rows[1:700], rows[700:])
    expected = bench.run()
    counting = CountingStore(bench.store)
    bench.store = RemoteStore(counting)
    result = bench.run()
    assert bench.rows(result) == bench.rows(expected)
    assert (result.rows, result.bytes_read) == (expected.rows, expected.bytes_read)
    assert 15 < counting.requests[Verb.GET] < 100


class LateWriter:
    """An upload that looks at what it was given only when it is committed."""

    def __init__(self, inner: WrappedWriter) -> None:
        self._inner = inner
        self._pieces: list[bytes | memoryview] = []
        self.given = 0

    def write(self, data: bytes | memoryview) -> None:
        self._pieces.append(bytes(data))

    def give(self, data: memoryview) -> None:
        self._pieces.append(data)
        self.given += data.nbytes

    def commit(self) -> None:
        for piece in self._pieces:
            self._inner.write(piece)
        self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()


class LateStore(RemoteStore):
    """A remote store with such uploads."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.writers: list[LateWriter] = []

    def open_writer(self, key: str, part_bytes: int | None = None) -> Any:
        self.writers.append(LateWriter(super().open_writer(key, part_bytes)))
        return self.writers[-1]


def test_what_an_upload_has_is_not_changed_any_more() -> None:
    value = random.Random(2).randbytes(3000)
    bench = Bench().add([put(b"%05d" % key, 9, value) for key in range(10_000)])
    expected = bench.run()
    store = bench.store = LateStore(bench.store)
    assert bench.rows(bench.run()) == bench.rows(expected)
    assert sum(writer.given for writer in store.writers) > 25_000_000


def test_failures_while_reading_ahead_are_raised() -> None:
    bench = Bench().add([put(b"%05d" % i, 9, b"v" * 3000) for i in range(3000)])
    inner, before = bench.store, names(bench)
    failures = 0
    for number in range(12):
        fault = {number: StoreFault.FAIL_BEFORE}
        bench.store = RemoteStore(FaultyStore.scripted(inner, fault))
        try:
            bench.run()
        except StoreError:
            failures += 1
        bench.store = inner
        assert len(names(bench) - before) == number + 1 - failures
    assert failures > 8


PEAK_MEMORY = """
import random, sys
from lithify.base.peak_memory import peak_memory_bytes
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call
from tests.datasets.slatedb.merging import Bench, put
warm_up()
bench = Bench()
bench.store = LocalStore(sys.argv[1])
value = random.Random(1).randbytes(60_000)
for source in range(400):
    bench.add([put(b"%06d" % key, 1000 - source, value) for key in range(source, 4000, 400)], block_size=1024)
before = peak_memory_bytes()
result = bench.run()
assert result.rows.rows_out == 4000
print(result.peak_memory_bytes, result.bytes_read)
"""


def test_memory_does_not_grow_with_the_job(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PEAK_MEMORY, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    peak, read = map(int, done.stdout.split())
    assert read > 240_000_000
    assert peak < 600_000_000

"""Merge tasks over a store in memory, for tests of the kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.compaction.execute import run_merge
from lithify.datasets.slatedb.compaction.task import (
    MergeTask,
    RowRules,
    SourceSst,
    SstOptions,
    TaskResult,
    read_output,
    sst_key,
)
from lithify.datasets.slatedb.model import EVERYTHING, Codec, KeyRange, Sst
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock, MemoryStore, WrappedStore
from tests.datasets.slatedb.reference_model import build_sst
from tests.judge.sst import Row, SstFile, read_sst

FOLDER = "db/compacted"
LAST_RUN = RowRules(is_last_run=True, clock_tick_ms=-(1 << 63), retention_min_seq=(1 << 64) - 1)
KEEP_ALL = RowRules(is_last_run=False, clock_tick_ms=-(1 << 63), retention_min_seq=0)


def put(key: bytes, seq: int, value: bytes = b"", create: int | None = 7, expire: int | None = None) -> Row:
    return Row(key, seq, "put", value, create, expire)


def delete(key: bytes, seq: int, create: int | None = 7) -> Row:
    return Row(key, seq, "delete", b"", create, None)


def merge(key: bytes, seq: int, value: bytes, create: int | None = 7, expire: int | None = None) -> Row:
    return Row(key, seq, "merge", value, create, expire)


class RemoteStore(WrappedStore):
    """A store that tasks take for a remote one."""

    @property
    def url(self) -> str:
        return "s3://bucket"


class Bench:
    """A store with source SSTs, and tasks over them."""

    def __init__(self, seed: int = 0) -> None:
        self.store: ObjectStore = MemoryStore()
        self.ids = RandomIds(random.Random(seed))
        self.clock = ManualClock()
        self.sources: list[tuple[SourceSst, ...]] = []

    def add(
        self,
        *ssts: Sequence[Row],
        block_size: int = 4096,
        codec: Codec = Codec.NONE,
        format_version: int = 2,
        visible: KeyRange = EVERYTHING,
    ) -> Bench:
        """A source, older than those before it, of one SST for each list of rows."""
        self.sources.append(
            tuple(
                self.store_sst(
                    *build_sst(
                        rows,
                        self.ids.ulid(1),
                        block_size=block_size,
                        codec=codec,
                        format_version=format_version,
                    ),
                    visible,
                )
                for rows in ssts
            )
        )
        return self

    def store_sst(self, data: bytes, sst: Sst, visible: KeyRange = EVERYTHING) -> SourceSst:
        """Put an SST into the store."""
        key = sst_key(FOLDER, sst.id)
        self.store.put(key, data)
        return SourceSst(key, sst, visible)

    def task(
        self,
        rules: RowRules = LAST_RUN,
        options: SstOptions | None = None,
        key_range: KeyRange = EVERYTHING,
        resume_outputs: tuple[Sst, ...] = (),
    ) -> MergeTask:
        return MergeTask(
            store_url="memory://unused",
            store_options={},
            output_folder=FOLDER,
            min_output_ms=0,
            sources=tuple(self.sources),
            range=key_range,
            rules=rules,
            options=options if options is not None else SstOptions(),
            resume_outputs=resume_outputs,
        )

    def run(self, task: MergeTask | None = None) -> TaskResult:
        """Run the task and check the row counts."""
        result = run_merge(task if task is not None else self.task(), self.store, self.ids, self.clock)
        rows = result.rows
        dropped = rows.superseded + rows.tombstones + rows.expired + rows.filtered + rows.folded
        assert rows.rows_in == rows.rows_out + dropped, rows
        return result

    def read(self, sst: Sst) -> SstFile:
        """An SST of the store, checked by the judge, whose info must be what the result says."""
        file = read_sst(self.store.get(sst_key(FOLDER, sst.id)))
        said = read_output(self.store, FOLDER, sst).info
        assert file.format_version == sst.format_version == 2
        assert (file.info.first_entry, file.info.last_entry) == (said.first_entry, said.last_entry)
        assert (file.info.index_offset, file.info.index_len) == (said.index_offset, said.index_len)
        assert (file.info.filter_offset, file.info.filter_len) == (said.filter_offset, said.filter_len)
        assert (file.info.stats_offset, file.info.stats_len) == (said.stats_offset, said.stats_len)
        assert file.info.compression_format == said.compression
        return file

    def files(self, result: TaskResult) -> list[SstFile]:
        return [self.read(sst) for sst in result.outputs]

    def rows(self, result: TaskResult) -> list[Row]:
        """All rows of the outputs, in order."""
        return [row for file in self.files(result) for row in file.rows]


def concatenate(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    """A merge operator."""
    return (existing or b"") + operand


CONCATENATE = f"{__name__}:concatenate"

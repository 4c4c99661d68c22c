"""The output side of a merge: from encoded blocks to SST files.

1. An output gets its id when its first bytes are written. The id's time is the current time, but at least the
   compaction's own.
2. When the output buffer is full, its finished blocks are written in whole pages, which a local disk can take
   without a copy; a second buffer continues with the rest. An upload keeps its buffer until it is sent; the
   next buffer is then new.
3. Closing an output finishes its last block and appends filter, index, stats and tail. Only then does the
   object appear under its name.
4. The next output is merged while earlier ones are committed, up to `MAX_COMMITTING_BYTES`. `close` waits for
   all commits.
5. The lists of an output (block offsets, counts, index keys, hashes) double when full.

Invariants: no incomplete object appears under its final name; an output counts as finished only when it and
all earlier ones are known to be committed; an output without rows is never opened; after an error `abort`
leaves no open upload.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.ids import Ids, Ulid
from lithify.datasets.slatedb.compaction.task import BloomPolicy, SstOptions, sst_key
from lithify.datasets.slatedb.format.filter import NamedFilter, build_bloom, encode_filters
from lithify.datasets.slatedb.format.index import BlockIndex, encode_index
from lithify.datasets.slatedb.format.sst import WRITTEN_FORMAT_VERSION, encode_tail, seal
from lithify.datasets.slatedb.format.stats import SstStats, encode_stats
from lithify.datasets.slatedb.kernel.blocks import finish_last_block
from lithify.datasets.slatedb.kernel.inputs import FIRST_KEY_CAPACITY
from lithify.datasets.slatedb.kernel.key_hashes import PLACE_BYTES
from lithify.datasets.slatedb.kernel.layout import OUTPUT, KernelStatus
from lithify.datasets.slatedb.kernel.libraries import Codecs
from lithify.datasets.slatedb.model import Codec, Sst, SstInfo
from lithify.kernel.buffers import PAGE_BYTES, Bound, Bytes, new_bytes, new_pages
from lithify.kernel.siphash import LANES
from lithify.store.objects import ObjectStore, ObjectWriter, is_local

BUFFER_BYTES = (4 << 20) + (64 << 10)
"""Large enough to be backed by large pages."""
MAX_COMMITTING_BYTES = 64 << 20
"""The limit for outputs whose commit has not ended. A larger output may be committed alone."""
_COMMITTERS = 4
_FINISH_ALLOWANCE_BYTES = 128 << 10
"""Memory after the end of the buffer, for a block that grows by compression."""
# Untouched memory costs nothing, but growing a list costs twice its pages.
_FIRST_BLOCKS = 1 << 16
_FIRST_ROWS = 1 << 20
_FIRST_INDEX_KEY_BYTES = 1 << 16
_MAX_RESTARTS = 1 << 13

_BLOCK_LISTS = ("block_offsets", "index_key_ends", "puts", "deletes", "merges")
_SST_COUNTERS = (
    "close_due",
    "data_bytes",
    "rows",
    "raw_key_bytes",
    "raw_value_bytes",
    "blocks",
    "waiting_keys",
    "prefixes",
)
_BLOCK_COUNTERS = (
    "block_rows",
    "restart_count",
    "last_key_len",
    "block_puts",
    "block_deletes",
    "block_merges",
)


@dataclass(frozen=True, slots=True)
class _Committing:
    future: Future[None]
    writer: ObjectWriter
    sst: Sst
    size_bytes: int


class Outputs:
    """The consecutive outputs of one merge."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        options: SstOptions,
        codecs: Codecs,
        ids: Ids,
        clock: Clock,
        min_output_ms: int,
        part_bytes: int | None = None,
    ) -> None:
        self.records = np.zeros(1, OUTPUT)
        self.bound = Bound(self.records[0])
        self.finished: list[Sst] = []
        self.bytes_written = 0
        self._is_local = is_local(store)
        self._store, self._folder, self._options, self._codecs = store, folder, options, codecs
        self._ids, self._clock, self._min_output_ms = ids, clock, min_output_ms
        self._part_bytes = part_bytes
        self._writer: ObjectWriter | None = None
        self._output_bytes = 0
        self._committing: deque[_Committing] = deque()
        self._committers: ThreadPoolExecutor | None = None
        self._spare: Bytes
        self._id: Ulid | None = None
        assert options.block_size is not None, "the caller sets it from the inputs"
        assert options.filters is not None, "the caller sets them from the inputs"
        self._filters = options.filters
        self.bound["block_size"] = options.block_size
        self.bound["max_sst_size"] = options.max_sst_size
        self.bound["codec"] = options.compression
        self.bound["hashing"] = any(policy.has_keys for policy in options.filters)
        self.bound["prefix_len"] = max((policy.prefix_len for policy in options.filters), default=0)
        self._allocate()

    def provide(self, status: int) -> bool:
        """Provide what `status` asks of the output. Return false if it asks for nothing."""
        match status:
            case KernelStatus.FLUSH:
                self._flush()
                self._make_room(self.bound["needed"] + PAGE_BYTES)
            case KernelStatus.NEED_ROW_SPACE:
                self._grow_lists(self.bound["needed"])
            case KernelStatus.CLOSE:
                self._commit_beside(self._complete())
            case KernelStatus.COMPRESSION_FAILED:
                raise Refused(
                    f"{self._options.compression.name.lower()} cannot compress a block of this range; "
                    f"choose another compression"
                ) from self._codecs.cause()
            case _:
                return False
        return True

    def ensure_key_capacity(self, capacity: int) -> None:
        """Make room for keys of that length in the key buffers."""
        for field in ("last_key", "first_key"):
            if len(self.bound.owner(field)) < len(new_bytes(capacity)):
                self.bound.grow(field, capacity, self.bound[f"{field}_len"])

    def close(self) -> None:
        """Complete the output in progress, if it has rows, and wait until all outputs are committed."""
        last: list[Sst] = []
        if self.bound["rows"]:
            last.append(self._complete())
            self._commit_now()
        self._settle(0)
        self.finished += last
        self._end_committers()

    def _complete(self) -> Sst:
        """Write the rest of the output in progress, and begin an empty one."""
        status = finish_last_block(self.records, self._codecs.records)
        if status != KernelStatus.OK:
            self.provide(status)
        self._flush()
        self._write(self.bound.owner("buffer").data[: self.bound["block_start"] - self.bound["buffer"]])
        sst = self._finish_file()
        self._reset()
        return sst

    def abort(self) -> None:
        """Discard the output in progress. Outputs that are being committed may still appear, as garbage."""
        wait([committing.future for committing in self._committing])
        failed = [c.writer for c in self._committing if c.future.exception() is not None]
        self._committing.clear()
        self._end_committers()
        for writer in (*failed, self._writer):
            if writer is not None:
                writer.abort()
        self._writer = None

    def _commit_now(self) -> None:
        assert self._writer is not None
        self._writer.commit()
        self._writer = None

    def _commit_beside(self, sst: Sst) -> None:
        """Commit the complete output while the next one is merged."""
        assert self._writer is not None
        size_bytes = self._output_bytes
        self._settle(max(0, MAX_COMMITTING_BYTES - size_bytes))
        if self._committers is None:
            self._committers = ThreadPoolExecutor(_COMMITTERS, "lithify-commit")
        future = self._committers.submit(self._writer.commit)
        self._committing.append(_Committing(future, self._writer, sst, size_bytes))
        self._writer = None

    def _settle(self, most_bytes: int) -> None:
        """Wait until at most so many bytes are being committed. Raise the error of a failed commit."""
        while sum(committing.size_bytes for committing in self._committing) > most_bytes or (
            self._committing and self._committing[0].future.done()
        ):
            self._committing[0].future.result()
            self.finished.append(self._committing.popleft().sst)

    def _end_committers(self) -> None:
        if self._committers is not None:
            self._committers.shutdown()
            self._committers = None

    def _allocate(self) -> None:
        for field in ("last_key", "first_key"):
            self.bound.attach(field, new_bytes(FIRST_KEY_CAPACITY))
        self.bound.attach("restarts", np.empty(_MAX_RESTARTS, np.int64))
        for field in _BLOCK_LISTS:
            self.bound.attach(field, np.empty(_FIRST_BLOCKS, np.int64))
        self.bound["block_capacity"] = _FIRST_BLOCKS
        self.bound.attach("hashes", np.empty(_FIRST_ROWS, np.uint64))
        self.bound.attach("prefix_hashes", np.empty(_FIRST_ROWS, np.uint64))
        self.bound["row_capacity"] = _FIRST_ROWS
        self.bound.attach("waiting", new_bytes(LANES * PLACE_BYTES))
        self.bound.attach("waiting_lengths", np.empty(LANES, np.int64))
        self.bound.attach("index_keys", new_bytes(_FIRST_INDEX_KEY_BYTES))
        self.bound["index_keys_capacity"] = _FIRST_INDEX_KEY_BYTES
        self.bound.attach("buffer", self._new_buffers(BUFFER_BYTES))
        self.bound["buffer_end"] = self.bound["buffer"] + BUFFER_BYTES
        self._reset()

    def _reset(self) -> None:
        for field in (*_SST_COUNTERS, *_BLOCK_COUNTERS, "index_keys_len", "first_key_len"):
            self.bound[field] = 0
        self.bound["position"] = self.bound["block_start"] = self.bound["buffer"]

    def _flush(self) -> None:
        """Write whole pages of finished blocks and continue in the other buffer, with the rest."""
        memory = self.bound.owner("buffer")
        finished = self.bound["block_start"] - self.bound["buffer"]
        written = finished - finished % PAGE_BYTES
        if not written:
            return
        if self._is_local:
            self._write(memory.data[:written])
            self._move_to(self._spare, self._buffer_size(), written)
            self._spare = memory
        else:
            self._opened_writer().give(memory.data[:written].toreadonly())
            self._count(written)
            self._move_to(new_pages(self._whole_bytes(self._buffer_size())), self._buffer_size(), written)

    def _make_room(self, needed: int) -> None:
        """Make buffers for `needed` bytes: the block in progress, its next row, and a page."""
        if needed > self._buffer_size():
            self._move_to(self._new_buffers(needed + needed // 4), needed + needed // 4, 0)

    def _buffer_size(self) -> int:
        return self.bound["buffer_end"] - self.bound["buffer"]

    def _new_buffers(self, size: int) -> Bytes:
        """Allocate buffers of `size` bytes, with room for a last block that grows by compression, and as much
        scratch."""
        whole = self._whole_bytes(size)
        if self._options.compression != Codec.NONE:
            self._codecs.bound.attach("packed", new_bytes(whole))
            self._codecs.bound["packed_capacity"] = whole
        if self._is_local:
            self._spare = new_pages(whole)
        return new_pages(whole)

    @staticmethod
    def _whole_bytes(size: int) -> int:
        return size + size // 4 + _FINISH_ALLOWANCE_BYTES

    def _move_to(self, memory: Bytes, size: int, start: int) -> None:
        """Continue in `memory`, with the buffer's content from `start` on."""
        before, base = self.bound.owner("buffer"), self.bound["buffer"] + start
        block_start, end = self.bound["block_start"] - base, self.bound["position"] - base
        memory[:end] = before[start : start + end]
        self.bound.attach("buffer", memory)
        base = self.bound["buffer"]
        self.bound["buffer_end"] = base + size
        self.bound["block_start"], self.bound["position"] = base + block_start, base + end

    def _grow_lists(self, key_len: int) -> None:
        blocks, rows, keys = self.bound["blocks"], self.bound["rows"], self.bound["index_keys_len"]
        if blocks + 2 > self.bound["block_capacity"]:
            capacity = 2 * self.bound["block_capacity"]
            for field in _BLOCK_LISTS:
                self.bound.grow(field, capacity, blocks + 1)
            self.bound["block_capacity"] = capacity
        if rows >= self.bound["row_capacity"]:
            capacity = 2 * self.bound["row_capacity"]
            if self.bound["hashing"]:
                self.bound.grow("hashes", capacity, rows)
            if self.bound["prefix_len"]:
                self.bound.grow("prefix_hashes", capacity, self.bound["prefixes"])
            self.bound["row_capacity"] = capacity
        if keys + key_len > self.bound["index_keys_capacity"]:
            capacity = 2 * (keys + key_len)
            self.bound.grow("index_keys", capacity, keys)
            self.bound["index_keys_capacity"] = capacity

    def _write(self, data: memoryview | bytes) -> None:
        self._opened_writer().write(data)
        self._count(len(data))

    def _opened_writer(self) -> ObjectWriter:
        if self._writer is None:
            self._id = self._ids.ulid(max(self._clock.now_ms(), self._min_output_ms))
            self._writer = self._store.open_writer(sst_key(self._folder, self._id), self._part_bytes)
            self._output_bytes = 0
        return self._writer

    def _count(self, written_bytes: int) -> None:
        self.bytes_written += written_bytes
        self._output_bytes += written_bytes

    def _finish_file(self) -> Sst:
        data_end = self.bound["data_bytes"]
        codec = self._options.compression
        sections = [
            seal(raw, codec) if raw else b"" for raw in (self._filter(), self._index(), self._stats())
        ]
        filter_len, index_len, stats_len = map(len, sections)
        info = SstInfo(
            first_entry=self._key("first_key"),
            last_entry=self._key("last_key"),
            filter_offset=data_end,
            filter_len=filter_len,
            index_offset=data_end + filter_len,
            index_len=index_len,
            stats_offset=data_end + filter_len + index_len,
            stats_len=stats_len,
            compression=codec,
        )
        for section in sections:
            self._write(section)
        self._write(encode_tail(info, info.stats_offset + stats_len))
        assert self._id is not None
        return Sst(self._id, info, WRITTEN_FORMAT_VERSION)

    def _key(self, field: str) -> bytes:
        return self.bound.owner(field)[: self.bound[f"{field}_len"]].tobytes()

    def _filter(self) -> bytes:
        if not self._filters or self.bound["rows"] < self._options.min_filter_keys:
            return b""
        return encode_filters([NamedFilter(policy.name, self._bloom(policy)) for policy in self._filters])

    def _bloom(self, policy: BloomPolicy) -> bytes:
        keys = self.bound.owner("hashes")[: self.bound["rows"] if policy.has_keys else 0]
        prefixes = self.bound.owner("prefix_hashes")[: self.bound["prefixes"] if policy.prefix_len else 0]
        hashes = np.concatenate((keys, prefixes)) if len(prefixes) else keys
        return build_bloom(hashes, policy.bits_per_key)

    def _index(self) -> bytes:
        blocks = self.bound["blocks"]
        ends = self.bound.owner("index_key_ends")[:blocks]
        offsets = np.append(self.bound.owner("block_offsets")[:blocks], self.bound["data_bytes"])
        keys = self.bound.owner("index_keys")[: self.bound["index_keys_len"]]
        return encode_index(BlockIndex(offsets, keys, np.concatenate((np.zeros(1, np.int64), ends))))

    def _stats(self) -> bytes:
        blocks = self.bound["blocks"]
        puts, deletes, merges = (self.bound.owner(kind)[:blocks] for kind in ("puts", "deletes", "merges"))
        stats = SstStats(
            int(puts.sum()),
            int(deletes.sum()),
            int(merges.sum()),
            self.bound["raw_key_bytes"],
            self.bound["raw_value_bytes"],
            puts,
            deletes,
            merges,
        )
        return encode_stats(stats)

"""Execution of a merge task: the loop around the compiled kernel.

1. Open an input for each source that can hold keys of the task's range. SSTs that are small in total are read
   whole, at once, unless they came with the task; of other SSTs only the needed blocks are read.
2. When the task resumes, find the last row (key, sequence number) of the last output that an earlier attempt
   recorded. Reading starts at that key; all rules apply to its versions again, so that retention and folds
   give the same result, and only rows after the last row are written.
3. Call the kernel. When it returns, provide what it requests (the next window of a source, more memory, a
   finished output, a fold by the merge operator, a decision of the compaction filter) and call it again,
   until all rows are merged. Between calls, report how many bytes have moved, if a report is due; nothing
   waits for the report.
4. Complete the last output.

Invariants: every row read is counted exactly once, as written or as dropped for one reason. On any error the
output in progress is discarded, and completed outputs are never published.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lithify.base.allocator import keep_freed_memory
from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import CorruptObject, StoreError
from lithify.base.ids import Ids, RandomIds
from lithify.base.peak_memory import peak_memory_bytes
from lithify.coordination.reporting import BackgroundReporter, reported
from lithify.datasets.slatedb.compaction.task import (
    SMALL_BYTES,
    MergeTask,
    RowCounts,
    RowRules,
    SourceSst,
    TaskResult,
    as_output,
    read_output,
    sst_key,
)
from lithify.datasets.slatedb.format.block_size import read_block_size
from lithify.datasets.slatedb.format.policies import filters_like, newest_filtered, read_stored_filter
from lithify.datasets.slatedb.hooks import (
    CompactionFilter,
    Drop,
    FilterContext,
    Keep,
    Modify,
    load_merge_operator,
)
from lithify.datasets.slatedb.kernel.block_ranges import Bounds, bounds_of
from lithify.datasets.slatedb.kernel.inputs import FIRST_KEY_CAPACITY, Input, open_inputs
from lithify.datasets.slatedb.kernel.layout import (
    MERGER,
    PENDING,
    PENDING_TAIL_BYTES,
    SOURCE,
    Decision,
    KernelStatus,
)
from lithify.datasets.slatedb.kernel.libraries import Codecs
from lithify.datasets.slatedb.kernel.merge import advance, find_last_row, prime, run
from lithify.datasets.slatedb.kernel.outputs import Outputs
from lithify.datasets.slatedb.kernel.python_rows import (
    RawRow,
    decode_tail,
    encode_tail,
    fold,
    modified,
    public_row,
    read_row,
    set_row,
)
from lithify.datasets.slatedb.kernel.read_ahead import WindowReader
from lithify.datasets.slatedb.model import Codec, KeyRange, Sst
from lithify.kernel.buffers import Bound, bytes_of, new_bytes
from lithify.store.objects import ObjectStore, is_local
from lithify.store.preloaded import PreloadedStore
from lithify.store.urls import open_store

_FIRST_PENDING = 64
_SCRATCH_ROW_BYTES = 64
_COUNTS = ("rows_in", "rows_out", "superseded", "tombstones", "expired", "filtered", "folded")


def execute_merge(task: MergeTask) -> TaskResult:
    """Run a task in this process, on the store at its URL."""
    keep_freed_memory()  # before the store starts threads, each of which would have its own heap
    store, _ = open_store(task.store_url, task.store_options)
    return run_merge(task, store, RandomIds(), SystemClock())


def run_merge(task: MergeTask, store: ObjectStore, ids: Ids, clock: Clock) -> TaskResult:
    """Run a task with all dependencies passed in."""
    with reported(task.reporting, store, clock, ids) as reporter:
        return _run_merge(task, store, ids, clock, reporter)


def _run_merge(
    task: MergeTask, store: ObjectStore, ids: Ids, clock: Clock, reporter: BackgroundReporter | None
) -> TaskResult:
    started_s = time.process_time()
    merge = _Merge(task, store, ids, clock, reporter)
    try:
        merge.run()
    except BaseException as error:
        try:
            merge.outputs.abort()
        except StoreError as abort_error:
            error.add_note(f"and its unfinished output could not be discarded: {abort_error}")
        raise
    finally:
        merge.close()
    return TaskResult(
        outputs=(*task.resume_outputs, *map(as_output, merge.outputs.finished)),
        rows=merge.row_counts(),
        bytes_read=merge.bytes_read,
        bytes_written=merge.outputs.bytes_written,
        cpu_s=time.process_time() - started_s,
        peak_memory_bytes=peak_memory_bytes(),
    )


class _Merge:
    """One run of a task: its inputs, its outputs and the records of the kernel."""

    def __init__(
        self,
        task: MergeTask,
        store: ObjectStore,
        ids: Ids,
        clock: Clock,
        reporter: BackgroundReporter | None,
    ) -> None:
        self.reporter = reporter
        resume = None
        if task.resume_outputs:
            last = read_output(store, task.output_folder, task.resume_outputs[-1])
            resume = last_row(store, task.output_folder, last)
        key_range = task.range if resume is None else _resumed_range(task, resume[0])
        sources = _parts(task, key_range)
        self._sources = sources
        parts = [part for group in sources for part, _ in group]
        is_remote = not is_local(store)
        is_loaded = is_remote and _is_small(parts)
        if is_loaded:
            sizes = {part.key: part.stated_bytes for part in parts}
            sent = {part.key: part.content for part in parts if part.content is not None}
            is_remote, store = False, PreloadedStore(store, sizes, sent)
        options = task.options
        if options.filters is None:
            filtered = newest_filtered(task.sources)
            stored = b"" if filtered is None else read_stored_filter(store, filtered)
            options = replace(options, filters=filters_like(store, filtered, stored, options.filter_rules))
        if options.block_size is None:
            options = replace(options, block_size=read_block_size(store, parts))
        self._set_hooks(task.rules)
        self.codecs = Codecs({part.sst.info.compression for part in parts}, options.compression)
        self.outputs = Outputs(
            store,
            task.output_folder,
            options,
            self.codecs,
            ids,
            clock,
            task.min_output_ms,
            task.part_bytes,
        )
        # The record after those of the sources holds folded rows.
        self.source_records = np.zeros(len(sources) + 1, SOURCE)
        self.reader = WindowReader(store, len(sources), reads_ahead=is_remote, is_loaded=is_loaded)
        self.inputs: list[Input] = []
        self.tree = np.zeros(max(len(sources), 1), np.int64)
        self.merger_records = np.zeros(1, MERGER)
        self.merger = Bound(self.merger_records[0])
        self.pending = np.zeros(_FIRST_PENDING, PENDING)
        self.key_capacity = FIRST_KEY_CAPACITY
        self.folded = Bound(self.source_records[len(sources)])
        self._set_rules(task.rules)
        if resume is not None:
            self._set_resume(*resume)

    def run(self) -> None:
        self.inputs = open_inputs(self.reader, self.source_records, self._sources)
        if self.inputs:
            self._repeat(
                lambda: prime(self.source_records, self.tree, self.merger_records, self.codecs.records)
            )
            self._repeat(self._run_kernel)
        if self.filter is not None:
            self.filter.end()
        # The last commits may hang: reporting continues until they have ended.
        self.outputs.close()
        if self.reporter is not None:
            self.reporter.finish()

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self.inputs)

    @property
    def bytes_made(self) -> int:
        """Return the bytes of outputs, including those still in memory."""
        output = self.outputs.bound
        return self.outputs.bytes_written + output["position"] - output["buffer"]

    def close(self) -> None:
        """Wait for requests in progress, and free the memory that the libraries hold."""
        self.reader.close()
        self.codecs.close()

    def row_counts(self) -> RowCounts:
        return RowCounts(*(self.merger[field] for field in _COUNTS))

    # Setting up

    def _set_hooks(self, rules: RowRules) -> None:
        operator, row_filter = rules.merge_operator, rules.compaction_filter
        self.operator = None if operator is None else load_merge_operator(operator)
        context = FilterContext(
            rules.segment, rules.destination, rules.is_last_run, rules.clock_tick_ms, rules.retention_min_seq
        )
        self.filter = None if row_filter is None else CompactionFilter(row_filter, context)

    def _set_rules(self, rules: RowRules) -> None:
        self.merger["source_count"] = len(self._sources)
        self.merger.record["horizon"] = rules.retention_min_seq
        self.merger["clock_tick_ms"] = rules.clock_tick_ms
        self.merger["drop_tombstones"] = rules.is_last_run
        self.merger["has_operator"] = rules.merge_operator is not None
        self.merger["has_filter"] = rules.compaction_filter is not None
        self.merger.attach("group_key", new_bytes(FIRST_KEY_CAPACITY))
        self.merger.attach("scratch_row", new_bytes(_SCRATCH_ROW_BYTES))
        self.merger.attach("pending_tails", new_bytes(PENDING_TAIL_BYTES * _FIRST_PENDING))
        self.merger["pending_capacity"] = _FIRST_PENDING

    def _set_resume(self, key: bytes, seq: int) -> None:
        self.merger.attach("resume_key", bytes_of(key))
        self.merger["resume_key_len"] = len(key)
        self.merger.record["resume_seq"] = seq
        self.merger["resuming"] = 1

    # Running

    def _run_kernel(self) -> int:
        return run(
            self.source_records,
            self.tree,
            self.merger_records,
            self.pending,
            self.outputs.records,
            self.codecs.records,
        )

    def _repeat(self, step: Callable[[], int]) -> None:
        """Call compiled code until it requests nothing more."""
        reporter = self.reporter
        while (status := step()) not in (KernelStatus.OK, KernelStatus.DONE):
            self._provide(status)
            if reporter is not None and reporter.is_due():
                reporter.report(self.bytes_read, self.bytes_made)

    def _provide(self, status: int) -> None:
        if status >= KernelStatus.BAD_CHECKSUM:
            source = self.inputs[self.merger["at_source"]]
            if not source.provide(status):
                raise source.corrupt(status) from self.codecs.cause()
            return
        if self.outputs.provide(status):
            return
        match status:
            case KernelStatus.FOLD:
                self._fold()
            case KernelStatus.FILTER:
                self._filter()
            case KernelStatus.NEED_PENDING_SPACE:
                self._grow_pending()
            case _:
                source = self.inputs[self.merger["at_source"]]
                if not source.provide(status):
                    raise AssertionError(f"the kernel returned the unknown status {status}")
                self._ensure_key_capacity(source.key_capacity)

    def _ensure_key_capacity(self, capacity: int) -> None:
        """Ensure that every buffer a key may be copied to can hold the longest key."""
        if capacity > self.key_capacity:
            self.key_capacity = capacity
            self.merger.grow("group_key", capacity, self.merger["group_key_len"])
            self.outputs.ensure_key_capacity(capacity)

    def _grow_pending(self) -> None:
        count = self.merger["pending_count"]
        capacity = 2 * self.merger["pending_capacity"]
        grown = np.zeros(capacity, PENDING)
        grown[:count] = self.pending[:count]
        self.pending = grown
        self.merger.grow("pending_tails", PENDING_TAIL_BYTES * capacity, PENDING_TAIL_BYTES * count)
        self.merger["pending_capacity"] = capacity

    # Steps that only Python can do

    def _group_key(self) -> bytes:
        return self.merger.owner("group_key")[: self.merger["group_key_len"]].tobytes()

    def _peek(self, key: bytes) -> RawRow | None:
        """Return the winner's row if it has that key."""
        source = Bound(self.source_records[self.tree[0]])
        if source["exhausted"] or ctypes.string_at(source["key"], source["key_len"]) != key:
            return None
        return read_row(source)

    def _pop(self) -> None:
        self._repeat(
            lambda: advance(self.source_records, self.tree, self.merger_records, self.codecs.records)
        )

    def _fold(self) -> None:
        """Fold the winner's merge row with the older rows it absorbs, and queue the result."""
        assert self.operator is not None
        key = self._group_key()
        result = fold(key, lambda: self._peek(key), self._pop, self.operator)
        self.merger["rows_in"] += result.rows - 1 + result.duplicates
        self.merger["folded"] += result.rows - 1
        self.merger["superseded"] += result.duplicates
        set_row(self.folded, key, result.row)
        self.merger["folded_ready"] = 1

    def _filter(self) -> None:
        """Let the compaction filter decide on the row in the merge record."""
        assert self.filter is not None
        merger = self.merger
        key = ctypes.string_at(merger["filter_key"], merger["filter_key_len"])
        tail = ctypes.string_at(merger["filter_value"], merger["filter_tail_len"])
        row = decode_tail(tail, merger["filter_value_len"])
        match self.filter(public_row(key, row)):
            case Keep():
                merger["decision"] = Decision.KEEP
            case Drop():
                merger["decision"] = Decision.DROP
            case Modify(value):
                self._replace(modified(row, value))

    def _replace(self, row: RawRow) -> None:
        tail = encode_tail(row)
        self.merger.attach("filter_value", bytes_of(tail))
        self.merger["filter_value_len"] = len(row.value)
        self.merger["filter_tail_len"] = len(tail)
        self.merger["filter_flags"] = row.flags
        self.merger["decision"] = Decision.REPLACE


def _parts(task: MergeTask, key_range: KeyRange) -> list[list[tuple[SourceSst, Bounds]]]:
    """Return the SSTs of each source that can hold keys of the range, with the parts of them to read."""
    sources = []
    for source in task.sources:
        bounded = ((part, bounds_of(part, key_range)) for part in source)
        parts = [(part, bounds) for part, bounds in bounded if bounds is not None]
        if parts:
            sources.append(parts)
    return sources


def _is_small(parts: Sequence[SourceSst]) -> bool:
    """Return whether these are so few bytes that they are read whole. If the blocks are known, reading whole
    gains nothing."""
    return all(part.blocks is None for part in parts) and sum(p.stated_bytes for p in parts) <= SMALL_BYTES


def last_row(store: ObjectStore, folder: str, sst: Sst) -> tuple[bytes, int]:
    """Return key and sequence number of the last row of an SST."""
    source = SourceSst(sst_key(folder, sst.id), sst)
    start = sst.info.last_entry
    bounds = bounds_of(source, KeyRange(start))
    if start is None or bounds is None:
        raise CorruptObject(source.key, "it does not state its last key")
    records = np.zeros(1, SOURCE)
    codecs = Codecs({sst.info.compression}, Codec.NONE)
    try:
        (rows,) = open_inputs(WindowReader(store, 1, reads_ahead=False), records, [[(source, bounds)]])
        while (status := find_last_row(records, codecs.records)) != KernelStatus.DONE:
            if not rows.provide(status):
                raise rows.corrupt(status) from codecs.cause()
        key = rows.bound.owner("key")[: rows.bound["last_key_len"]].tobytes()
        if key != start:
            raise CorruptObject(
                source.key, f"its last row has the key {key!r}, not {start!r} as its info says"
            )
        return key, int(records[0]["seq"])
    finally:
        codecs.close()


def _resumed_range(task: MergeTask, key: bytes) -> KeyRange:
    """Return the rest of the task's range, from `key` on."""
    if not task.range.contains(key):
        last = sst_key(task.output_folder, task.resume_outputs[-1].id)
        raise CorruptObject(last, f"its last key {key!r} lies outside the range it was recorded for")
    return replace(task.range, start=key)

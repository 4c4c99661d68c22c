"""The work of one task (a range): merge the rows of one key range into new SSTs.

These are the small picklable values that travel between driver and task. Everything large (blocks, rows) is
read and written by the task itself, directly from and to the object store.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace

from lithify.base.errors import CorruptObject
from lithify.base.ids import Ulid
from lithify.coordination.sidecar import Reporting
from lithify.datasets.slatedb.format.sst import read_info
from lithify.datasets.slatedb.model import EVERYTHING, Codec, KeyRange, Sst
from lithify.store.objects import ObjectStore

DEFAULT_BLOCK_SIZE = 4096
SMALL_BYTES = 8 << 20
"""SSTs with no more bytes in total are read whole, at once."""
MAX_SENT_KEY_BYTES = 1 << 10
"""Longer keys do not travel with a task."""
SENT_BYTES = 1 << 20
"""The most bytes of the driver's knowledge of the sources that travel with a task: a part of the largest
request. SSTs with no more bytes in total may travel whole."""
DEFAULT_MAX_SST_SIZE = 256 * 1024 * 1024
DEFAULT_MIN_FILTER_KEYS = 1000
DEFAULT_FILTER_BITS_PER_KEY = 10
DEFAULT_FILTER = "_bf"
"""The name of the filter that clients use by default."""


@dataclass(frozen=True, slots=True)
class BloomPolicy:
    """A filter that outputs get."""

    name: str = DEFAULT_FILTER
    bits_per_key: int = DEFAULT_FILTER_BITS_PER_KEY
    has_keys: bool = True
    """Whether it has whole keys."""
    prefix_len: int = 0
    """How many first bytes of keys it has, of keys with so many; 0: none."""


@dataclass(frozen=True, slots=True)
class FilterRules:
    """The settings for filters of outputs."""

    names: tuple[str, ...] | None = None
    """`None`: those of the newest input with filters, or the default."""
    bits_per_key: int | None = None
    """`None`: as in the newest input with such filters, or the default."""
    prefix_lens: Mapping[str, int] = field(default_factory=dict, hash=False)
    """How many bytes prefix extractors take, by the names they have in filters."""


@dataclass(frozen=True, slots=True)
class SstOptions:
    """How outputs are written. Names and defaults are SlateDB's."""

    block_size: int | None = DEFAULT_BLOCK_SIZE
    """Bytes of an uncompressed data block: 1, 2, 4, 8, 16, 32 or 64 KiB; `None` for the inputs' block
    size."""
    max_sst_size: int = DEFAULT_MAX_SST_SIZE
    """An output is closed after the row that makes its finished data blocks exceed this, in bytes."""
    compression: Codec = Codec.NONE
    min_filter_keys: int = DEFAULT_MIN_FILTER_KEYS
    """An output with fewer rows gets no filter."""
    filters: tuple[BloomPolicy, ...] | None = (BloomPolicy(),)
    """At most one length of prefixes; `None` for filters as in the inputs (`filter_rules`)."""
    filter_rules: FilterRules = field(default_factory=FilterRules)


@dataclass(frozen=True, slots=True)
class RowRules:
    """The rules for rows (reference: row semantics of a compaction)."""

    is_last_run: bool
    """Whether no older run lies below the destination; only then may tombstones be dropped."""
    clock_tick_ms: int
    """A row with `expire_ts` at or below this has expired. From the manifest, never the wall clock."""
    retention_min_seq: int
    """Oldest sequence number a snapshot may still need."""
    merge_operator: str | None = None
    """`package.module:function` of an associative `(key, existing | None, operand) -> value`."""
    compaction_filter: str | None = None
    """`package.module:function`; see `lithify.datasets.slatedb.hooks`."""
    segment: bytes = b""
    destination: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive data blocks of an SST: those that may hold keys from `from_key` (inclusive) to `to_key`
    (exclusive). `kernel.spans` packs and unpacks them."""

    from_key: bytes | None
    to_key: bytes | None
    first: int
    """Number of the first block in the SST."""
    start: int
    """Offset of the first block, in bytes."""
    sizes: bytes
    """Compressed sizes of all blocks."""


@dataclass(frozen=True, slots=True)
class SourceSst:
    """One input SST: where it is and which of its keys count."""

    key: str
    """Object key, relative to the store's root."""
    sst: Sst
    visible: KeyRange = EVERYTHING
    blocks: Blocks | None = None
    """The blocks that may hold keys of the task's range, if the driver knew them; else the task reads the
    index."""
    content: bytes | None = None
    """The file without its tail, if the driver had it; else the task reads it."""

    @property
    def stated_bytes(self) -> int:
        """Return the size of the file without its tail, as its info states it."""
        info = self.sst.info
        ends = (info.index_offset + info.index_len, info.stats_offset + info.stats_len)
        return max(*ends, info.filter_offset + info.filter_len)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The input of one task. Sources are newest first; each source is a list of SSTs with ascending keys (one
    SST for an L0, all SSTs of a sorted run), read one after another."""

    store_url: str
    store_options: Mapping[str, str]
    output_folder: str
    """Key of the `compacted` folder that receives the outputs."""
    min_output_ms: int
    """Milliseconds of the compaction's id; no output id may be older."""
    sources: tuple[tuple[SourceSst, ...], ...]
    range: KeyRange
    """Start inclusive, end exclusive."""
    rules: RowRules
    options: SstOptions = field(default_factory=SstOptions)
    resume_outputs: tuple[Sst, ...] = ()
    """Outputs of this range that an earlier attempt finished and recorded, in order. The task
    continues after the last row (key, sequence number) of the last of them."""
    part_bytes: int | None = None
    """Bytes of a request that uploads a part of an output; by default the store decides."""
    reporting: Reporting | None = None
    """Where to report how many bytes have moved; nowhere by default."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows read, written and dropped, by reason. `rows_in` equals the sum of all the others."""

    rows_in: int = 0
    rows_out: int = 0
    superseded: int = 0
    """Older versions no snapshot needs."""
    tombstones: int = 0
    """Tombstones dropped from the last run (expired values that became one count as expired)."""
    expired: int = 0
    """Expired rows that left nothing behind."""
    filtered: int = 0
    """Rows a compaction filter dropped."""
    folded: int = 0
    """Merge operands folded into another row."""

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task. Only this travels back to the driver."""

    outputs: tuple[Sst, ...]
    """All outputs of the range in key order, those of `resume_outputs` first."""
    rows: RowCounts
    bytes_read: int
    """Stored bytes of the data blocks read."""
    bytes_written: int
    """Bytes of the objects written."""
    cpu_s: float
    peak_memory_bytes: int
    """High-water mark of the process's resident memory."""


def as_source(sst: Sst) -> Sst:
    """Return an input as it travels with a task: long first and last keys as looser bounds."""
    first, last = sst.info.first_entry, sst.info.last_entry
    if first is None or max(len(first), len(last or b"")) <= MAX_SENT_KEY_BYTES:
        return sst
    last = None if last is None or len(last) > MAX_SENT_KEY_BYTES else last
    return replace(sst, info=replace(sst.info, first_entry=first[:MAX_SENT_KEY_BYTES], last_entry=last))


def as_output(sst: Sst) -> Sst:
    """Return an output as it travels with a task or its result: without long first and last keys, which are
    in the file (`read_output`)."""
    first, last = sst.info.first_entry or b"", sst.info.last_entry or b""
    if max(len(first), len(last)) <= MAX_SENT_KEY_BYTES:
        return sst
    return replace(sst, info=replace(sst.info, first_entry=None, last_entry=None))


def read_output(store: ObjectStore, folder: str, sst: Sst) -> Sst:
    """Return the output with its first and last key, from its file if it has travelled without them."""
    if sst.info.first_entry is not None:
        return sst
    key = sst_key(folder, sst.id)
    info, _ = read_info(store, key)
    if replace(info, first_entry=None, last_entry=None) != sst.info:
        raise CorruptObject(key, "its info is not that of the output that was written")
    return replace(sst, info=info)


def sst_key(folder: str, sst_id: Ulid) -> str:
    """Return the object key of an SST in a `compacted` folder."""
    return f"{folder}/{sst_id}.sst"

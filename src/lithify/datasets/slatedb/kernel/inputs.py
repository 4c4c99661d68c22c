"""The input side of a merge: from a source's SSTs to windows of blocks in memory.

1. All keys of the task share a common prefix, derived from the SSTs' first and last keys and their bounds.
2. The SSTs of a source are read one after another: the blocks that may have keys inside the bounds
   (`block_ranges`), in windows (`read_ahead`). Row decoding skips keys outside the bounds in the first and
   last of these blocks.
3. A block that unpacks to more than `BELIEVED_BYTES` is a single row, or damaged. The stats of its SST say
   how large its rows are, up to `MAX_ROW_BYTES`; they are read only then.

Invariant: at any time a source holds its windows, the offsets of what is read ahead, and the key buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import SourceSst
from lithify.datasets.slatedb.format.stats import read_stats
from lithify.datasets.slatedb.kernel.block_ranges import Bounds, Span
from lithify.datasets.slatedb.kernel.layout import REASONS, KernelStatus
from lithify.datasets.slatedb.kernel.read_ahead import WindowReader, Windows
from lithify.kernel.buffers import Bound, bytes_of, new_bytes

FIRST_KEY_CAPACITY = 1 << 10
BELIEVED_BYTES = 256 << 20
"""The limit of an unpacked block, unless its SST has larger rows. One of several rows has at most 64 KiB."""
MAX_ROW_BYTES = (4 << 30) + (64 << 20)
"""A value has less than 4 GiB. Its key is hardly larger than the rest."""
_FIRST_UNPACKED_CAPACITY = 64 << 10
_ROW_ALLOWANCE_BYTES = 64
"""Lengths, sequence number, flags, timestamps, restart point."""
_GREATEST_PREFIX = (1 << 64) - 1


def common_prefix(parts: Sequence[tuple[SourceSst, Bounds]]) -> bytes:
    """Return the prefix that every key inside the bounds has."""
    lowest: bytes | None = None
    highest: bytes | None = None
    for source, bounds in parts:
        first = max(source.sst.info.first_entry or b"", bounds.start or b"")
        lasts = [key for key in (source.sst.info.last_entry, bounds.end) if key is not None]
        if not lasts:
            return b""
        lowest = first if lowest is None else min(lowest, first)
        highest = min(lasts) if highest is None else max(highest, min(lasts))
    if lowest is None or highest is None:
        return b""
    shared = 0
    while shared < min(len(lowest), len(highest)) and lowest[shared] == highest[shared]:
        shared += 1
    return lowest[:shared]


class Input:
    """One source of a merge, with its record."""

    def __init__(
        self, reader: WindowReader, record: np.void, parts: Sequence[tuple[SourceSst, Bounds]], common: bytes
    ) -> None:
        self.bound = Bound(record)
        self.bytes_read = 0
        self._store = reader.store
        self._windows = Windows(reader, parts)
        self._common = common
        self._span: Span | None = None
        self.bound.attach("key", new_bytes(FIRST_KEY_CAPACITY))
        self.bound.attach("common", bytes_of(common))
        self.bound["common_len"] = len(common)
        self.bound["key_capacity"] = FIRST_KEY_CAPACITY
        self.bound["more_ssts"] = 1

    def open_ahead(self) -> None:
        """Begin to open the first SST if that needs a request."""
        self._windows.open_ahead()

    def start(self) -> None:
        """Open the first SST and request its first window."""
        self._refill()
        self._windows.request()

    def request_ahead(self) -> None:
        self._windows.request_ahead()

    def provide(self, status: int) -> bool:
        """Provide what `status` asks of this source. Return false if it asks for nothing."""
        match status:
            case KernelStatus.NEED_INPUT:
                self._refill()
            case KernelStatus.NEED_KEY_SPACE:
                self._grow_key()
            case KernelStatus.NEED_UNPACK_SPACE:
                self._replace("unpacked")
            case KernelStatus.NEED_TRANSCODE_SPACE:
                self._replace("transcoded")
            case KernelStatus.BAD_SIZE:
                return self._allow_large_row()
            case _:
                return False
        return True

    def corrupt(self, status: int) -> CorruptObject:
        """Return the error for the damage in the current object."""
        assert self._span is not None
        block = self._span.first_block + self.bound["block"]
        if (
            status in (KernelStatus.BAD_CHECKSUM, KernelStatus.BAD_COMPRESSION, KernelStatus.BAD_SIZE)
            or self.bound["block"] < 0
        ):
            block += 1  # this block could not be opened
        reason = REASONS[KernelStatus(status)]
        return CorruptObject(self._span.part.key, f"block {block}: {reason}")

    @property
    def key_capacity(self) -> int:
        return self.bound["key_capacity"]

    def _grow_key(self) -> None:
        capacity = max(self.bound["needed"], 2 * self.key_capacity)
        self.bound.grow("key", capacity, self.bound["key_len"])
        self.bound["key_capacity"] = capacity

    def _replace(self, field: str) -> None:
        size = max(self.bound["needed"], _FIRST_UNPACKED_CAPACITY)
        self.bound.attach(field, new_bytes(size))
        self.bound[f"{field}_capacity"] = size

    def _allow_large_row(self) -> bool:
        """Raise the limit of unpacked blocks to the size of all rows of the SST. Return false if it is as
        high already."""
        assert self._span is not None
        part = self._span.part
        stats = read_stats(self._store, part.key, part.sst.info)
        raw_bytes = 0 if stats is None else stats.raw_key_bytes + stats.raw_value_bytes
        limit = min(raw_bytes + _ROW_ALLOWANCE_BYTES, MAX_ROW_BYTES)
        if limit <= self.bound["unpacked_limit"]:
            return False
        self.bound["unpacked_limit"] = limit
        return True

    def _refill(self) -> None:
        """Read the next window, from the next SST if this one is finished."""
        if self._span is not None and self.bound["block"] + 1 < self.bound["block_end"]:
            self._read_window()
        elif (span := self._windows.next_span()) is not None:
            self._open(span)
        else:
            self.bound["more_ssts"] = 0

    def _open(self, span: Span) -> None:
        """Make this the current SST. It may have no block inside the bounds."""
        self._span = span
        self.bound.attach("offsets", span.offsets)
        for field in ("cursor", "rows_end", "shareable", "has_previous", "window_end"):
            self.bound[field] = 0
        self.bound["block"] = -1
        self.bound["unpacked_limit"] = BELIEVED_BYTES
        self.bound["block_end"] = len(span)
        self.bound["codec"] = span.part.sst.info.compression
        self.bound["row_format"] = span.part.sst.format_version
        self._set_bounds(span.bounds)

    def _set_bounds(self, bounds: Bounds) -> None:
        for field, key in (("start", bounds.start), ("end", bounds.end)):
            self.bound.attach(field, bytes_of(key or b""))
            self.bound[f"{field}_len"] = len(key or b"")
            self.bound[f"check_{field}"] = key is not None
        self.bound.record["end_prefix"] = self._end_prefix(bounds.end)

    def _end_prefix(self, end: bytes | None) -> int:
        """Return the least merge prefix that a key at or after `end` can have."""
        if end is None:
            return _GREATEST_PREFIX
        head, tail = end[: len(self._common)], end[len(self._common) :]
        if head != self._common:
            return 0 if head < self._common else _GREATEST_PREFIX
        return int.from_bytes(tail[:8].ljust(8, b"\0"), "big")

    def _read_window(self) -> None:
        window = self._windows.take()
        self.bytes_read += window.size_bytes
        self.bound["window_base"] = window.memory.ctypes.data - window.start
        self.bound["window_end"] = window.end_block


def open_inputs(
    reader: WindowReader,
    records: npt.NDArray[np.void],
    sources: Sequence[Sequence[tuple[SourceSst, Bounds]]],
) -> list[Input]:
    """Return an input for each source, with the records in order. From a remote store their first windows are
    then in flight."""
    common = common_prefix([part for parts in sources for part in parts])
    inputs = [Input(reader, record, parts, common) for record, parts in zip(records, sources, strict=False)]
    if reader.threads is not None:
        for begin in (Input.open_ahead, Input.start, Input.request_ahead):
            for source in inputs:
                begin(source)
    return inputs

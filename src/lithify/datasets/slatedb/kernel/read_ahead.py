"""Windows over a source's data blocks, read one after another into memory.

1. A window is the next blocks up to the window size, at least one, read with one request.
2. Remote stores: a remainder of less than half a window joins it, so that a small SST is one request. A
   thread pool reads each source's windows ahead, in order, across SSTs. A source starts with as many ahead as
   all can have, at most `FIRST_AHEAD`; its limit doubles each time the merge waits for it. So the bytes in
   flight approach latency times the merge's speed. A source's first window is small unless it is the only
   one: a merge begins when all first windows have arrived, and each connection has a limited speed.
3. All windows of a task, including those in flight and in use, share a fixed budget. A source may always have
   one window. When the budget is used up, a source that the merge waits for takes from the one with the
   highest limit, so shares follow need.
4. A response is the window, without a copy. The request includes the bytes past the window that compiled code
   may read; in an SST the index follows the blocks.
5. Local files: a window is read when needed, into the previous one's memory. If whole SSTs are in memory
   already, windows are parts of them.

Invariant: everything except the requests themselves runs in the merge's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import SourceSst
from lithify.datasets.slatedb.kernel.block_ranges import Bounds, Span, knows_blocks, open_span
from lithify.kernel.buffers import Bytes, new_bytes
from lithify.kernel.memory import SLACK
from lithify.store.objects import ObjectStore

WINDOWS_BUDGET_BYTES = 128 << 20
"""For the windows of all sources of a task."""
LOCAL_WINDOW_BYTES = 2 << 20
"""Smaller reads take Python as long as larger ones; much larger windows do not fit into the processor's
cache."""
REMOTE_WINDOW_BYTES = 4 << 20
"""A round trip takes as long as some megabytes, and each request costs money."""
FIRST_WINDOW_BYTES = 512 << 10
"""The first window of a source of a remote store: enough for the merge until the next window arrives."""
MIN_WINDOW_BYTES = 64 << 10
FIRST_AHEAD = 4
"""Windows that each source requests ahead at first, if all can have as many."""
MAX_READERS = 64

_SUSPICIOUS_BLOCK_BYTES = 64 << 20
"""Before allocating memory for a larger block, the object's size is checked."""


def window_bytes(source_count: int, *, reads_ahead: bool) -> int:
    """Return the size of each source's windows. If it reads ahead, two fit into its share of the budget."""
    most, count = (REMOTE_WINDOW_BYTES, 2) if reads_ahead else (LOCAL_WINDOW_BYTES, 1)
    share = WINDOWS_BUDGET_BYTES // (count * max(source_count, 1))
    return min(most, max(MIN_WINDOW_BYTES, share))


def first_ahead(source_count: int, window_size_bytes: int) -> int:
    """Return how many windows each source reads ahead at first: as many as all can have. Otherwise later
    sources would wait until they had regained their share."""
    share = WINDOWS_BUDGET_BYTES // (window_size_bytes * max(source_count, 1))
    return min(FIRST_AHEAD, max(1, share))


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks in memory, from byte `start` of the SST up to, and without, block `end_block` of its span."""

    memory: Bytes
    start: int
    size_bytes: int
    end_block: int


@dataclass(frozen=True, slots=True, eq=False)
class _WindowRequest:
    """A window of this span, requested or already read."""

    span: Span
    start: int
    size_bytes: int
    end_block: int
    memory: Future[Bytes] | Bytes


class WindowReader:
    """The threads, budget and reusable memory that the sources of a task share."""

    def __init__(
        self, store: ObjectStore, source_count: int, *, reads_ahead: bool, is_loaded: bool = False
    ) -> None:
        """`is_loaded`: the SSTs are already in memory."""
        self.store = store
        self.window_bytes = window_bytes(source_count, reads_ahead=reads_ahead)
        self.first_ahead = first_ahead(source_count, self.window_bytes) if reads_ahead else 0
        self.lends = not reads_ahead and not is_loaded
        """Whether windows are read into this reader's memory."""
        self.threads = ThreadPoolExecutor(MAX_READERS, "lithify-read") if reads_ahead else None
        self.sources: list[Windows] = []
        self._held_bytes = 0
        self._spare: list[Bytes] = []
        if source_count and self.lends:
            # One large allocation is backed by large pages.
            whole = new_bytes(source_count * (self.window_bytes + SLACK))
            self._spare = np.array_split(whole, source_count)

    def close(self) -> None:
        """Wait for the running requests; cancel the others."""
        if self.threads is not None:
            self.threads.shutdown(cancel_futures=True)

    def has_room(self, size_bytes: int) -> bool:
        return self._held_bytes + size_bytes <= WINDOWS_BUDGET_BYTES

    def hold(self, size_bytes: int) -> None:
        """Count a requested window of so many bytes."""
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Subtract a window that is not in use any more."""
        self._held_bytes -= size_bytes

    def lend(self, size_bytes: int, usual_bytes: int) -> Bytes:
        """Return memory for a window of `size_bytes`, reused or of at least `usual_bytes`."""
        for number in reversed(range(len(self._spare))):
            if size_bytes + SLACK <= len(self._spare[number]):
                return self._spare.pop(number)
        if self._spare:
            self._spare.pop()  # otherwise unusable memory would add up
        return new_bytes(usual_bytes)

    def take_back(self, memory: Bytes) -> None:
        """Accept lent memory for reuse."""
        if len(memory) <= 2 * (self.window_bytes + SLACK):
            self._spare.append(memory)

    def has_kept_waiting(self, source: Windows) -> None:
        """Let a source read further ahead, because the merge waits for its window."""
        if not self.has_room(self.window_bytes):
            richest = max(self.sources, key=lambda other: other.ahead_limit)
            if richest is not source:
                richest.ahead_limit = max(1, richest.ahead_limit // 2)
        most = WINDOWS_BUDGET_BYTES // self.window_bytes
        source.ahead_limit = min(2 * source.ahead_limit, most)


class Windows:
    """The windows of one source, whose SSTs are `parts` in order."""

    def __init__(self, reader: WindowReader, parts: Iterable[tuple[SourceSst, Bounds]]) -> None:
        self.ahead_limit = reader.first_ahead
        self._reader = reader
        self._parts = deque(parts)
        self._opening: Future[Span] | None = None
        self._current: Span | None = None
        self._coming: deque[Span] = deque()
        """Opened SSTs that `next_span` has not returned yet."""
        self._unplanned: deque[Span] = deque()
        """Opened SSTs of which nothing has been requested yet."""
        self._planned: Span | None = None
        self._next_block = 0
        """The first block of the span `_planned` that has not been requested."""
        self._has_requested = False
        self._ahead: deque[_WindowRequest] = deque()
        self._taken: Window | None = None
        reader.sources.append(self)

    def next_span(self) -> Span | None:
        """Return the blocks to read of the next SST; `None` if there is none. Unused windows of the previous
        SST are discarded."""
        self._give_back()
        while self._ahead and self._ahead[0].span is self._current:
            self._give_up(self._ahead.popleft())
        if self._planned is self._current:
            self._planned = None
        if not self._coming and not self._open_next(must_wait=True):
            self._current, self.ahead_limit = None, 0
            return None
        self._current = self._coming.popleft()
        return self._current

    def take(self) -> Window:
        """Return the SST's next window. It is valid until the next call."""
        self._give_back()
        if not self._ahead:
            self.request()
        request = self._ahead.popleft()
        if request.span is not self._current:
            raise RuntimeError(f"the next window of {request.span.part.key} is not of the SST that is read")
        memory = request.memory
        if isinstance(memory, Future):
            if not memory.done():
                self._reader.has_kept_waiting(self)
            self.request_ahead()
            memory = memory.result()
        self._taken = Window(memory, request.start, request.size_bytes, request.end_block)
        return self._taken

    def open_ahead(self) -> None:
        """Begin to read the first SST's index, if needed."""
        if self._reader.threads is not None:
            self._open_next(must_wait=False)

    def request_ahead(self) -> None:
        """Request windows until the limit is reached."""
        while len(self._ahead) < self.ahead_limit and self.request():
            pass

    def request(self) -> bool:
        """Request one more window. Return false if there is none or no room for it."""
        if not self._plan():
            return False
        span, first = self._planned, self._next_block
        assert span is not None
        start = int(span.offsets[first])
        end = self._end_block(span, first)
        size = int(span.offsets[end]) - start
        has_one = bool(self._ahead) or self._taken is not None
        if has_one and not self._reader.has_room(size):
            return False
        self._check_size(span, start, size)
        self._reader.hold(size)
        self._next_block, self._has_requested = end, True
        self._ahead.append(_WindowRequest(span, start, size, end, self._read(span, start, size)))
        return True

    def _read(self, span: Span, start: int, size: int) -> Future[Bytes] | Bytes:
        reader = self._reader
        if reader.threads is not None:
            return reader.threads.submit(_answer, reader.store, span.part, start, size)
        if not reader.lends:
            return _answer(reader.store, span.part, start, size)
        usual = max(size, min(reader.window_bytes, int(span.offsets[-1]) - start))
        memory = reader.lend(size, usual)
        reader.store.get_range_into(span.part.key, start, memory.data[:size])
        return memory

    def _plan(self) -> bool:
        """Find the next block to request. Return false if there is none, or none is known yet."""
        while self._planned is None or self._next_block >= len(self._planned):
            if not self._unplanned and not self._open_next(must_wait=False):
                return False
            self._planned, self._next_block = self._unplanned.popleft(), 0
        return True

    def _open_next(self, *, must_wait: bool) -> bool:
        """Open the next SST. Return false if there is none, or its index is still being read."""
        if not self._parts:
            return False
        reader, (part, bounds) = self._reader, self._parts[0]
        if self._opening is None and reader.threads is not None and not knows_blocks(part, bounds):
            self._opening = reader.threads.submit(open_span, reader.store, part, bounds)
        if self._opening is None:
            span = open_span(reader.store, part, bounds)
        elif must_wait or self._opening.done():
            span, self._opening = self._opening.result(), None
        else:
            return False
        self._parts.popleft()
        self._coming.append(span)
        self._unplanned.append(span)
        return True

    def _end_block(self, span: Span, first: int) -> int:
        """Return the end of the window that starts with block `first`."""
        offsets, size = span.offsets, self._reader.window_bytes
        start = int(offsets[first])
        most = size if self._reader.threads is None else size + size // 2
        if int(offsets[-1]) - start <= most:
            return max(len(span), first + 1)
        if self._reader.threads is not None and not self._has_requested:
            size = min(size, FIRST_WINDOW_BYTES)
        return max(int(offsets.searchsorted(start + size, "right")) - 1, first + 1)

    def _check_size(self, span: Span, start: int, size: int) -> None:
        key = span.part.key
        if size > _SUSPICIOUS_BLOCK_BYTES and start + size > self._reader.store.head(key).size:
            raise CorruptObject(key, f"a block at {start} ends after the end of the object")

    def _give_back(self) -> None:
        """Release the window that the merge used last."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self._reader.give_back(taken.size_bytes)
            if self._reader.lends:
                self._reader.take_back(taken.memory)

    def _give_up(self, request: _WindowRequest) -> None:
        self._reader.give_back(request.size_bytes)
        if isinstance(request.memory, Future):
            request.memory.cancel()
        elif self._reader.lends:
            self._reader.take_back(request.memory)


def _answer(store: ObjectStore, part: SourceSst, start: int, size: int) -> Bytes:
    """Read these bytes, and the slack after them."""
    if start + size + SLACK <= part.sst.info.index_offset + part.sst.info.index_len:
        return np.frombuffer(store.get_buffer(part.key, start, size + SLACK), np.uint8)
    memory = new_bytes(size)
    store.get_range_into(part.key, start, memory.data[:size])
    return memory

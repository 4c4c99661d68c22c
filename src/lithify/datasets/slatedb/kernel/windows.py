"""Windows over the data blocks of an SST, read one after another into memory.

1. A window is the next blocks up to the window size, at least one, read with one request.
2. On a remote store the next window is requested as soon as one is taken, by another thread, so that
   the merge does not wait for each answer. The local file system answers at once; there that would only
   cost.
3. All sources of a task together stay within a fixed budget, however many there are.

Invariant: memory that a request writes to is not touched, and not freed, before the request has ended.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lithify.datasets.slatedb.kernel.buffers import Bytes, new_bytes
from lithify.errors import CorruptObject
from lithify.store.objects import ObjectStore

WINDOW_BYTES = 1 << 20
"""Smaller requests cost as much as larger ones."""
MIN_WINDOW_BYTES = 64 << 10
WINDOWS_BUDGET_BYTES = 128 << 20
"""For the windows of all sources of a task."""
MAX_READERS = 16

_SUSPICIOUS_BLOCK_BYTES = 64 << 20
"""Before memory is taken for a larger block, the object is asked for its size."""
_LOCAL_SCHEMES = ("file:", "memory:")


def is_local(store: ObjectStore) -> bool:
    """Whether the store answers without waiting for a network."""
    return store.url.startswith(_LOCAL_SCHEMES)


def window_bytes(store: ObjectStore, source_count: int) -> int:
    """The size of each source's windows."""
    local = is_local(store)
    buffers = source_count if local else 2 * source_count
    share = WINDOWS_BUDGET_BYTES // max(buffers, 1)
    return min(WINDOW_BYTES, max(MIN_WINDOW_BYTES, share))


@dataclass(frozen=True, slots=True)
class Window:
    """Some blocks in memory: from byte `start` of the SST, up to and without block `end_block`."""

    memory: Bytes
    start: int
    size_bytes: int
    end_block: int


class Windows:
    """The windows of one SST. `offsets` are those of the blocks to read, and the end of the last."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        offsets: npt.NDArray[np.int64],
        window_size: int,
        readers: Executor | None,
        spare: Bytes | None = None,
    ) -> None:
        """`spare` is memory to begin with."""
        self._store, self._key, self._offsets = store, key, offsets
        self._window_size = window_size
        self._readers = readers
        self._spare = spare
        self._taken: Bytes | None = None
        self._ahead: Future[Window] | None = None

    def take(self, first_block: int) -> Window:
        """The window that starts with `first_block`. It is valid until the next one is taken."""
        ahead, self._ahead = self._ahead, None
        if self._taken is not None:
            self._spare, self._taken = self._taken, None
        window = self._read(first_block, self._memory(first_block)) if ahead is None else ahead.result()
        self._taken = window.memory
        if self._readers is not None and window.end_block < len(self._offsets) - 1:
            memory = self._memory(window.end_block)
            self._ahead = self._readers.submit(self._read, window.end_block, memory)
        return window

    def _extent(self, first_block: int) -> tuple[int, int]:
        """Bytes of the window that starts with a block, and the block it ends before."""
        start = int(self._offsets[first_block])
        end_block = int(np.searchsorted(self._offsets, start + self._window_size, "right")) - 1
        end_block = max(end_block, first_block + 1)
        return int(self._offsets[end_block]) - start, end_block

    def _memory(self, first_block: int) -> Bytes:
        """Memory for a window: the spare one if it fits and is not far too large."""
        size, _ = self._extent(first_block)
        spare, self._spare = self._spare, None
        start, data_end = int(self._offsets[first_block]), int(self._offsets[-1])
        if size > _SUSPICIOUS_BLOCK_BYTES and start + size > self._store.head(self._key).size:
            raise CorruptObject(self._key, f"a block at {start} ends behind the object")
        usual = max(size, min(self._window_size, data_end - start))
        if spare is not None and len(new_bytes(size)) <= len(spare) <= 2 * len(new_bytes(usual)):
            return spare
        return new_bytes(usual)

    def _read(self, first_block: int, memory: Bytes) -> Window:
        start = int(self._offsets[first_block])
        size, end_block = self._extent(first_block)
        self._store.get_range_into(self._key, start, memory.data[:size])
        return Window(memory, start, size, end_block)

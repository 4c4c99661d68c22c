"""A file written asynchronously past the page cache.

1. A thread writes large page-aligned data to the disk directly from the caller's memory (`O_DIRECT`), while
   the caller prepares the next data. On a busy machine, finding free pages is most of the cost of buffered
   writing, and these outputs, which a merge does not read again, would evict pages that readers use.
2. All other data are collected in a buffer of whole pages, which is written the same way when it is full.
3. The remainder at the end is written through the page cache, which accepts any length.

On a file system without support (EINVAL at the first write), and on systems other than Linux, all bytes are
written through the page cache.

Invariants: at most one write is in progress, so the bytes reach the file in order. Every later call raises an
error of the thread, so that no file with a gap is committed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

PAGE_BYTES = 4096
"""The boundary that every disk accepts for address, offset and length."""
BUFFER_BYTES = 1 << 20
_MIN_UNCOPIED_BYTES = 256 << 10
"""Shorter requests leave the disk idle in between."""
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """A writer that owns a descriptor, open for writing at the start of an empty file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_direct = False
        self._can_be_direct = bool(_O_DIRECT)
        self._buffer = mmap.mmap(-1, BUFFER_BYTES)
        self._used = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lithify-write")
        self._under_way: Future[None] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`, which must not change until the next call returns."""
        self._finish_write()
        rest = memoryview(data).cast("B")
        if not self._used and len(rest) >= _MIN_UNCOPIED_BYTES and _starts_on_page(rest):
            whole = len(rest) - len(rest) % PAGE_BYTES
            self._begin_write(rest[:whole])
            rest = rest[whole:]
        while rest:
            if self._used == BUFFER_BYTES:
                self._begin_buffer()
                self._finish_write()
            part = rest[: BUFFER_BYTES - self._used]
            self._buffer[self._used : self._used + len(part)] = part
            self._used += len(part)
            rest = rest[len(part) :]

    def sync_and_close(self) -> None:
        """Flush all bytes to the disk and close the file."""
        self._finish_write()
        self._begin_buffer()
        self._finish_write()
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Close the file without writing the buffer."""
        if self._closed:
            return
        self._closed = True
        if self._under_way is not None:
            wait([self._under_way])
        self._thread.shutdown()
        os.close(self._fd)

    def _begin_buffer(self) -> None:
        used, self._used = self._used, 0
        self._begin_write(memoryview(self._buffer)[:used])

    def _begin_write(self, data: memoryview) -> None:
        self._under_way = self._thread.submit(self._write_all, data)

    def _finish_write(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _set_direct(self, wanted: bool) -> None:
        if wanted == self._is_direct:
            return
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)
        self._is_direct = wanted

    def _write_all(self, data: memoryview) -> None:
        while data:
            data = data[self._write_some(data) :]

    def _write_some(self, data: memoryview) -> int:
        """Write at least the first bytes, directly if all of `data` can be. Return their number."""
        self._set_direct(self._can_be_direct and len(data) % PAGE_BYTES == 0)
        try:
            return os.write(self._fd, data)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        self._can_be_direct = False
        self._set_direct(False)
        return os.write(self._fd, data)


def _starts_on_page(data: memoryview) -> bool:
    return int(np.frombuffer(data, np.uint8).ctypes.data) % PAGE_BYTES == 0

"""A file written past the page cache, while its writer goes on.

1. Many pages at once that lie on page boundaries go to the disk from the caller's memory as they are
   (`O_DIRECT`), by a thread, while the caller prepares the next ones. The kernel copies nothing, and
   takes no page for data that a merge will not read again: pages that a busy machine has to find first
   are the larger part of what buffered writing costs, and these outputs would push out what readers use.
2. Anything else collects in a buffer of whole pages, which is written the same way when it is full.
3. The rest at the end is written through the page cache, which takes any length.

A file system that does not support this (it says EINVAL when the file is first written), and a system
other than Linux, gets the same bytes through the page cache.

Invariants: one write is under way at most, so the bytes reach the file in order. What failed in the
thread is raised by every later call, so that nothing with a gap is ever committed.
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
"""Shorter requests keep a disk waiting for the next one."""
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """Takes over a descriptor that is open for writing and at the start of an empty file."""

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
        """Append. `data` must stay as it is until the next call returns."""
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
        """All bytes are on the disk when this returns."""
        self._finish_write()
        self._begin_buffer()
        self._finish_write()
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Without what is still in the buffer."""
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
        """Write at least the first bytes; how many. Direct, if all of `data` can be."""
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

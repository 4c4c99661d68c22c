"""Data files opened in advance, so that a reader of many small files waits for none.

1. Files are requested in a known order. Ahead of the current file, threads open up to `MAX_AHEAD` files: a
   small file is then read completely, of a larger one the footer (`store_file_io`).
2. At most `MAX_AHEAD_BYTES` are being read or waiting, not counting the next file.
3. Only files in a remote store are opened in advance; others are opened when they are requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from lithify.base import concurrency
from lithify.datasets.iceberg.io.store_file_io import MIB, TAIL_BYTES, StoredFile

MAX_AHEAD = 16
MAX_AHEAD_BYTES = 64 * MIB
WHOLE_BYTES = 8 * MIB
"""The maximum size up to which a file is read completely if some of its rows are needed."""
MAX_WHOLE_BYTES = 32 * MIB
"""The maximum size up to which a file is read completely if all its rows are needed."""


class PrefetchExtent(Enum):
    """The part of a file that is needed."""

    FOOTER = "footer"
    SOME = "some rows"
    ALL = "all rows"


@dataclass(frozen=True, slots=True)
class DataPath:
    """A file to read."""

    path: str
    size_bytes: int
    """The size by its manifest."""
    wanted: PrefetchExtent

    @classmethod
    def of(cls, file: DataFile, wanted: PrefetchExtent) -> DataPath:
        """Return the path of a data or delete file, as its manifest describes it."""
        return cls(file.file_path, file.file_size_in_bytes, wanted)

    @property
    def held_bytes(self) -> int:
        """Return the memory that the file takes while it is open and not read yet."""
        return self.size_bytes if self.size_bytes <= self._whole_bytes else TAIL_BYTES

    @property
    def _whole_bytes(self) -> int:
        """Return the maximum size up to which the file is read completely when it is opened."""
        match self.wanted:
            case PrefetchExtent.FOOTER:
                return TAIL_BYTES
            case PrefetchExtent.SOME:
                return WHOLE_BYTES
            case PrefetchExtent.ALL:
                return MAX_WHOLE_BYTES

    def open(self, io: FileIO) -> Any:
        """Open a stream for random reads."""
        file = io.new_input(self.path)
        if isinstance(file, StoredFile):
            return file.opened(self.size_bytes, self._whole_bytes)
        return file.open()


class OpenedAhead:
    """Files opened in advance, each to be taken once, in this order. A caller that stops early waits for
    none."""

    def __init__(self, io: FileIO, files: Sequence[DataPath]) -> None:
        self._io = io
        self._waiting = deque(files)
        self._opening: deque[tuple[DataPath, Callable[[], Any]]] = deque()
        self._held_bytes = 0

    def take(self) -> Any:
        """Return the next file, opened."""
        self._open_more()
        file, result = self._opening.popleft()
        stream = result()
        self._held_bytes -= file.held_bytes
        self._open_more()
        return stream

    def _open_more(self) -> None:
        while self._waiting and len(self._opening) < MAX_AHEAD:
            file = self._waiting[0]
            if self._opening and self._held_bytes + file.held_bytes > MAX_AHEAD_BYTES:
                return
            self._waiting.popleft()
            self._held_bytes += file.held_bytes
            self._opening.append((file, self._begin(file)))

    def _begin(self, file: DataPath) -> Callable[[], Any]:
        if not isinstance(self._io.new_input(file.path), StoredFile):
            return lambda: file.open(self._io)
        return concurrency.background.start(partial(file.open, self._io))

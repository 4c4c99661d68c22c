"""Data files opened before they are needed, so that a reader of many small ones waits for none.

1. Files are asked for in a known order. Ahead of the one that is being read, up to `MAX_AHEAD` are opened by
   threads: a small one is read whole by that, of another the footer (`stored_files`).
2. No more bytes than `MAX_AHEAD_BYTES` are on their way or wait, but for the file that is next.
3. Only files in a store that is far away are worth it; others are opened when they are asked for.
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
"""A file of which any rows are wanted is read whole up to here."""
MAX_WHOLE_BYTES = 32 * MIB
"""A file of which all rows are wanted is read whole up to here."""


class PrefetchExtent(Enum):
    """What of a file."""

    FOOTER = "footer"
    SOME = "some rows"
    ALL = "all rows"


@dataclass(frozen=True, slots=True)
class DataPath:
    """A file to read."""

    path: str
    size_bytes: int
    """What its manifest says."""
    wanted: PrefetchExtent

    @classmethod
    def of(cls, file: DataFile, wanted: PrefetchExtent) -> DataPath:
        """A data or delete file, as its manifest describes it."""
        return cls(file.file_path, file.file_size_in_bytes, wanted)

    @property
    def held_bytes(self) -> int:
        """What it takes while it is open and not read yet."""
        return self.size_bytes if self.size_bytes <= self._whole_bytes else TAIL_BYTES

    @property
    def _whole_bytes(self) -> int:
        """A larger one is not read whole when it is opened."""
        match self.wanted:
            case PrefetchExtent.FOOTER:
                return TAIL_BYTES
            case PrefetchExtent.SOME:
                return WHOLE_BYTES
            case PrefetchExtent.ALL:
                return MAX_WHOLE_BYTES

    def open(self, io: FileIO) -> Any:
        """A stream that can be read anywhere."""
        file = io.new_input(self.path)
        if isinstance(file, StoredFile):
            return file.opened(self.size_bytes, self._whole_bytes)
        return file.open()


class OpenedAhead:
    """These files, each to be taken once, in this order. Who takes no more of them waits for none."""

    def __init__(self, io: FileIO, files: Sequence[DataPath]) -> None:
        self._io = io
        self._waiting = deque(files)
        self._opening: deque[tuple[DataPath, Callable[[], Any]]] = deque()
        self._held_bytes = 0

    def take(self) -> Any:
        """The next one, opened."""
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
        return concurrency.beside.start(partial(file.open, self._io))

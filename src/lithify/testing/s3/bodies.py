"""Memory for the bytes of requests and objects, or files of a folder."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import numpy as np

MIN_FILE_BYTES = 1024 * 1024
"""Smaller bodies stay in memory."""


class Bodies:
    """Allocates bodies; large ones in files of `folder` if there is one, for more data than memory can hold.
    The files have no name, and disappear with the process or their last use."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def room(self, size: int) -> memoryview | mmap.mmap:
        """Return a writable buffer of `size` bytes. Raise `OSError` if the folder is full or too many files
        are open."""
        if self._folder is None or size < MIN_FILE_BYTES:
            return np.empty(size, np.uint8).data  # a bytearray would be filled with zeros
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)

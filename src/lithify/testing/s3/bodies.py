"""Where the bytes of requests arrive, and of objects stay: in memory, or in files of a folder."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import numpy as np

MIN_FILE_BYTES = 1024 * 1024
"""What is smaller stays in memory."""


class Bodies:
    """Room for bodies; in `folder` if there is one, which then has room for more than memory has. The files
    have no name, and end with the process or with their last use."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def room(self, size: int) -> memoryview | mmap.mmap:
        """So many bytes, to be written to. `OSError` if the folder is full or there are too many files."""
        if self._folder is None or size < MIN_FILE_BYTES:
            return np.empty(size, np.uint8).data  # a bytearray would be filled with zeros
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)

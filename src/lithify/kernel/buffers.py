"""Records, with the memory that their fields point to.

A field with an address is set only through `attach`, which keeps the memory's owner alive until the field or
the record is replaced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lithify.kernel.memory import SLACK

PAGE_BYTES = 4096

Bytes = npt.NDArray[np.uint8]


def new_bytes(size: int) -> Bytes:
    """Return memory for `size` bytes, with slack after them."""
    return np.empty(size + SLACK, np.uint8)


def new_pages(size: int) -> Bytes:
    """Return such memory, aligned to a page."""
    memory = new_bytes(size + PAGE_BYTES)
    return memory[-memory.ctypes.data % PAGE_BYTES :]


def bytes_of(data: bytes) -> Bytes:
    """Copy `data` into memory with slack after it."""
    memory = new_bytes(len(data))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return memory


class Bound:
    """A record, with the owners of the memory that it points to."""

    def __init__(self, record: np.void) -> None:
        self.record = record
        self._owners: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, field: str) -> int:
        return int(self.record[field])

    def __setitem__(self, field: str, value: int) -> None:
        self.record[field] = value

    def attach(self, field: str, memory: npt.NDArray[Any]) -> None:
        """Point the field at the start of `memory`."""
        self._owners[field] = memory
        self.record[field] = memory.ctypes.data

    def owner(self, field: str) -> npt.NDArray[Any]:
        return self._owners[field]

    def grow(self, field: str, size: int, used: int) -> None:
        """Move the field to memory of `size` elements, with the first `used` ones copied."""
        before = self._owners[field]
        after = np.empty(size + SLACK, before.dtype)
        after[:used] = before[:used]
        self.attach(field, after)

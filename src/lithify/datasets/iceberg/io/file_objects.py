"""Files as streams: one for random reads, each of which is a separate request, and one for sequential
writes."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self


class RandomReads(io.RawIOBase, ABC):
    """A file of `size` bytes at `location`."""

    def __init__(self, location: str, size: int) -> None:
        super().__init__()
        self.location = location
        self._size = size
        self._at = 0

    @abstractmethod
    def fetch(self, offset: int, length: int) -> bytes:
        """Read these bytes, which must be inside the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        data = self.fetch(self._at, length)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)


class SequentialWrites(ABC):
    """A sequentially written file that exists, completely, once it is closed, and not at all if its writer
    failed. Nothing is visible before the end."""

    closed = False

    @abstractmethod
    def tell(self) -> int:
        """Return the number of bytes written."""

    @abstractmethod
    def write(self, data: Any) -> int:
        """Append these bytes."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file. It exists when this returns."""

    @abstractmethod
    def abandon(self, error: BaseException | None = None) -> None:
        """Discard the file because of this error; problems while discarding are added to the error as
        notes."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:  # noqa: B027 a file has it, and there is nothing to do
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon(error)

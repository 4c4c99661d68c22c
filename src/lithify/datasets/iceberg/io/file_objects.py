"""A file as a stream: one that can be read anywhere, each read being a request of its own, or one that is
written from its beginning to its end."""

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
        """These bytes of the file, which has them."""

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
        """Bytes of the file."""
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
    """A file that is there, as a whole, once it was closed; and not at all if its writer failed. Nothing is
    anywhere before the end."""

    closed = False

    @abstractmethod
    def tell(self) -> int:
        """Bytes that were written."""

    @abstractmethod
    def write(self, data: Any) -> int:
        """Append these bytes."""

    @abstractmethod
    def close(self) -> None:
        """The file is there when this returns."""

    @abstractmethod
    def abandon(self, error: BaseException | None = None) -> None:
        """Nothing of it is to be there, because of this error; what stands in the way is noted in it."""

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

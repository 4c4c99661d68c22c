"""Finds the files that no name refers to, among very many of both, in little memory.

1. Names and files are added in any order. A name is the key of a file, or only the last part of its path
   (`add_name`, `add_last_part`). Names are held in memory as hashes of eight bytes (`key_set`); files are on
   the local disk, with the hashes of the names that may refer to them.
2. After that, the files are read back in batches and looked up among the names.

Invariant: a named file is never returned as unnamed. A collision of hashes only keeps a file too many.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

import numpy as np

from lithify.base.scratch import Scratch
from lithify.datasets.iceberg.deletes.key_set import KeySet

AT_ONCE = 10_000
"""Files looked up together."""
_HEAD = struct.Struct("<qqqqI")


@dataclass(frozen=True, slots=True)
class File:
    """A listed file."""

    key: str
    """The key in the store."""
    size_bytes: int
    written_ms: int


class Difference:
    """A set of names and a list of files. Use as a context manager: it owns a temporary folder."""

    def __init__(self) -> None:
        self._names = KeySet()
        self._scratch = Scratch()
        self._path = self._scratch.path / "files"
        self._files: BinaryIO = self._path.open("wb")

    def __enter__(self) -> Difference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
        self._scratch.close()

    def add_name(self, key: str) -> None:
        """Add the name of the file with this normalized key."""
        self._names.add(_by_key(key))

    def add_last_part(self, last: str) -> None:
        """Add a name for all files whose keys end with this part."""
        self._names.add(_by_last_part(last))

    def add_file(self, normal: str, file: File) -> None:
        """Add a file and its normalized key."""
        hashes = hash(_by_key(normal)), hash(_by_last_part(posixpath.basename(normal)))
        key = file.key.encode("utf-8", "surrogatepass")
        self._files.write(_HEAD.pack(*hashes, file.size_bytes, file.written_ms, len(key)) + key)

    def unnamed(self) -> Iterator[File]:
        """Yield the files without a name, in the order they were added."""
        self._files.flush()
        with self._path.open("rb") as stored:
            while files := list(_read(stored, AT_ONCE)):
                hashes = np.array([both for _, both in files], np.int64)
                is_named = self._names.has(hashes[:, 0]) | self._names.has(hashes[:, 1])
                yield from (file for (file, _), named in zip(files, is_named, strict=True) if not named)


def _read(stored: BinaryIO, count: int) -> Iterator[tuple[File, tuple[int, int]]]:
    for _ in range(count):
        head = stored.read(_HEAD.size)
        if not head:
            return
        by_key, by_last, size_bytes, written_ms, length = _HEAD.unpack(head)
        key = stored.read(length).decode("utf-8", "surrogatepass")
        yield File(key, size_bytes, written_ms), (by_key, by_last)


def _by_key(key: str) -> str:
    return f"k{key}"


def _by_last_part(last: str) -> str:
    return f"n{last}"

"""Which of very many files none of very many names names, in bounded memory.

1. Names and files come in any order. Each goes to the bucket of the last part of its path, so that a file
   and all names it may have meet in one: the key, or just the last part (`add_name`, `add_last_part`). A name
   is a hash of 16 bytes there. Buckets are on the local disk.
2. Once everything is there, each bucket is compared by itself: the hashes in it fit into memory.

Invariant: a file that is named is never given as unnamed. Two that have the same hash would be a file too
many that is kept.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from zlib import crc32

from lithify.scratch import Scratch

BUCKETS = 256
_BUFFER_BYTES = 64 * 1024
_HASH_BYTES = 16
_HEAD = struct.Struct("<qqI")


@dataclass(frozen=True, slots=True)
class File:
    """A file that was found."""

    key: str
    """Of the store."""
    size_bytes: int
    written_ms: int


class Difference:
    """Names and files. Use as a context manager: it owns a temporary folder."""

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._scratch = Scratch()
        self._names = [_Spilled(self._scratch.path / f"names-{n}") for n in range(buckets)]
        self._files = [_Spilled(self._scratch.path / f"files-{n}") for n in range(buckets)]

    def __enter__(self) -> Difference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.close()

    def add_name(self, key: str) -> None:
        """The file with this normal form of its key is named."""
        self._add_name(posixpath.basename(key), f"k{key}")

    def add_last_part(self, last: str) -> None:
        """All files are named whose keys end with this part."""
        self._add_name(last, f"n{last}")

    def _add_name(self, last: str, name: str) -> None:
        self._names[self._bucket(last)].write(_hash(name))

    def add_file(self, normal: str, file: File) -> None:
        """A file, and the normal form of its key."""
        key, last = _bytes(file.key), posixpath.basename(normal)
        head = _HEAD.pack(file.size_bytes, file.written_ms, len(key))
        record = b"".join((_hash(f"k{normal}"), _hash(f"n{last}"), head, key))
        self._files[self._bucket(last)].write(record)

    def unnamed(self) -> Iterator[File]:
        """The files that no name names."""
        for names, files in zip(self._names, self._files, strict=True):
            data = names.read()
            known = {data[at : at + _HASH_BYTES] for at in range(0, len(data), _HASH_BYTES)}
            data = files.read()
            at = 0
            while at < len(data):
                by_key, by_last = data[at : at + _HASH_BYTES], data[at + _HASH_BYTES : at + 2 * _HASH_BYTES]
                at += 2 * _HASH_BYTES
                size_bytes, written_ms, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                if by_key not in known and by_last not in known:
                    key = data[at - length : at].decode("utf-8", "surrogatepass")
                    yield File(key, size_bytes, written_ms)

    def _bucket(self, last: str) -> int:
        return crc32(_bytes(last)) % len(self._names)


class _Spilled:
    """Bytes that are put on the disk a buffer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = bytearray()

    def write(self, data: bytes) -> None:
        self._held += data
        if len(self._held) >= _BUFFER_BYTES:
            with self._path.open("ab") as file:
                file.write(self._held)
            self._held.clear()

    def read(self) -> bytes:
        before = self._path.read_bytes() if self._path.exists() else b""
        return before + bytes(self._held)


def _hash(text: str) -> bytes:
    return blake2b(_bytes(text), digest_size=_HASH_BYTES).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

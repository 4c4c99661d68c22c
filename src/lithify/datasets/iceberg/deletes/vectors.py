"""Deletion vectors: the deleted positions of a data file, in a blob of a Puffin file (`deletion-vector-v1`).

1. A blob is the length of magic number and bitmap, the magic number, a 64-bit Roaring bitmap in the portable
   form, and a CRC-32 of magic number and bitmap; length and CRC are big-endian, the bitmap little-endian.
2. A vector is applied only if all readers agree about it: the blob is the one that the manifest entry and the
   footer describe, for this data file and with as many positions, and no position is beyond the file's rows.
3. Positions stay compressed. Those of a batch of rows are expanded one batch at a time.

Memory is bounded by the blob, `MAX_VECTOR_BYTES` at most, and its bitmap, which is about as large: 50 MiB for
100 million deleted rows of 200 million.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.puffin import PuffinBlobMetadata
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION, referenced_data_file, vector_place
from lithify.datasets.iceberg.format.puffin import PuffinReader, PuffinWriter

MAX_VECTOR_BYTES = 256 * 1024 * 1024
"""The maximum size of a blob: that of two billion rows in the least regular case."""
_BYTES_AT_LEAST = 64 * 1024
_ROWS_PER_BYTE = 4
"""A bitmap needs a byte for eight rows, and headers."""
_KIND: Final = "deletion-vector-v1"
_MAGIC: Final = b"\xd1\xd3\x39\x64"
_LENGTH_BYTES = _CRC_BYTES = 4
_REFERENCED: Final = "referenced-data-file"
_CARDINALITY: Final = "cardinality"
_POSITION_FIELD_ID: Final = 2147483645
"""The field of a row's position, which the footer names for a vector."""
_ADDED_AT_ONCE = 1 << 20

Positions = npt.NDArray[np.int64]


class DeletionVector:
    """A set of deleted positions."""

    def __init__(self, bitmap: BitMap64) -> None:
        self._bitmap = bitmap

    @classmethod
    def of(cls, positions: Positions) -> DeletionVector:
        """Return the vector of these positions, which are not negative."""
        bitmap = BitMap64()
        for start in range(0, len(positions), _ADDED_AT_ONCE):
            part = positions[start : start + _ADDED_AT_ONCE].astype(np.uint64)
            bitmap |= BitMap64(array("Q", part.tobytes()))
        return cls(bitmap)

    def __len__(self) -> int:
        return len(self._bitmap)

    def __or__(self, other: DeletionVector) -> DeletionVector:
        return DeletionVector(self._bitmap | other._bitmap)

    def __sub__(self, other: DeletionVector) -> DeletionVector:
        return DeletionVector(self._bitmap - other._bitmap)

    @property
    def last(self) -> int:
        """Return the highest position; -1 if there is none."""
        return int(self._bitmap.max()) if len(self._bitmap) else -1

    def between(self, start: int, end: int) -> Positions:
        """Return the positions from start to end (exclusive), ascending."""
        found = (self._bitmap & BitMap64(range(start, end))).to_array()
        return np.frombuffer(found, dtype=np.uint64).astype(np.int64)

    def encoded(self) -> bytes:
        """Return the vector as a blob."""
        bitmap = self._bitmap.copy()
        bitmap.run_optimize()
        content = _MAGIC + bitmap.serialize()
        checksum = zlib.crc32(content)
        return len(content).to_bytes(_LENGTH_BYTES, "big") + content + checksum.to_bytes(_CRC_BYTES, "big")


def decoded(blob: bytes, path: str) -> DeletionVector:
    """Return the vector of a blob in this file. Raise `CorruptObject` if it is none."""
    least_bytes = _LENGTH_BYTES + len(_MAGIC) + _CRC_BYTES
    if len(blob) < least_bytes:
        raise CorruptObject(path, f"has a deletion vector of {len(blob)} bytes, fewer than {least_bytes}")
    stated_bytes = int.from_bytes(blob[:_LENGTH_BYTES], "big")
    content = memoryview(blob)[_LENGTH_BYTES:-_CRC_BYTES]
    if stated_bytes != len(content):
        says = f"states {stated_bytes} bytes in a deletion vector that has {len(content)}"
        raise CorruptObject(path, says)
    if bytes(content[: len(_MAGIC)]) != _MAGIC:
        raise CorruptObject(path, "has a deletion vector with a wrong magic number")
    if zlib.crc32(content) != int.from_bytes(blob[-_CRC_BYTES:], "big"):
        raise CorruptObject(path, "has a deletion vector with a wrong checksum")
    try:
        # Any buffer is decoded, without a copy.
        return DeletionVector(BitMap64.deserialize(content[len(_MAGIC) :]))  # type: ignore[arg-type]
    except (ValueError, IndexError) as error:
        raise CorruptObject(path, f"has a deletion vector that does not decode: {error}") from error


class VectorReader:
    """Reads the vectors of an open Puffin file."""

    def __init__(self, stream: Any, path: str) -> None:
        self._puffin = PuffinReader(stream, path)
        self._path = path

    def read(self, entry: DataFile, data_path: str, rows: int) -> DeletionVector:
        """Return the vector that this manifest entry describes, for a data file with this number of rows.
        Raise `CorruptObject` if it deletes other rows than the entry states, or may for another reader."""
        offset, size_bytes = vector_place(entry)
        if type(offset) is not int or type(size_bytes) is not int:
            raise CorruptObject(self._path, f"has a deletion vector of {size_bytes} bytes at {offset}")
        most_bytes = min(MAX_VECTOR_BYTES, _BYTES_AT_LEAST + rows // _ROWS_PER_BYTE)
        if size_bytes > most_bytes:
            says = f"has a deletion vector of {size_bytes} bytes for a file of {rows} rows"
            raise CorruptObject(self._path, f"{says}, more than {most_bytes}")
        named = referenced_data_file(entry)
        if named != data_path:
            says = f"has a deletion vector that its manifest assigns to {named!r}, not to {data_path!r}"
            raise CorruptObject(self._path, says)
        described, blob = self._puffin.blob(offset, size_bytes)
        self._check_described(described, entry, data_path)
        vector = decoded(blob, self._path)
        if len(vector) != entry.record_count:
            says = (
                f"has a deletion vector of {len(vector)} rows, but its manifest states {entry.record_count}"
            )
            raise CorruptObject(self._path, says)
        if vector.last >= rows:
            says = f"has a deletion vector that deletes row {vector.last} of a file of {rows} rows"
            raise CorruptObject(self._path, says)
        return vector

    def _check_described(self, described: PuffinBlobMetadata, entry: DataFile, data_path: str) -> None:
        """Check the footer, by which some readers choose vectors."""
        if described.type != _KIND or described.compression_codec is not None:
            codec = described.compression_codec or "no compression"
            says = f"has {described.type!r} with {codec} in place of a deletion vector"
            raise CorruptObject(self._path, says)
        stated = described.properties
        if stated.get(_REFERENCED, data_path) != data_path:
            says = f"has a deletion vector of {stated[_REFERENCED]!r}, but its manifest states {data_path!r}"
            raise CorruptObject(self._path, says)
        rows = str(entry.record_count)
        if stated.get(_CARDINALITY, rows) != rows:
            says = f"states {stated[_CARDINALITY]!r} rows in a deletion vector, but its manifest {rows}"
            raise CorruptObject(self._path, says)


@dataclass(frozen=True, slots=True)
class NewVector:
    """A vector to write."""

    data_path: str
    """The data file whose rows it deletes."""
    vector: DeletionVector
    """At least one position."""
    spec_id: int
    """The data file's partition spec."""
    partition: Record
    """The data file's partition."""


def write_vectors(io: FileIO, path: str, vectors: Iterable[NewVector]) -> list[DataFile]:
    """Write these vectors to one new Puffin file, and return their descriptions for a manifest."""
    placed: list[tuple[NewVector, int, int]] = []
    output = io.new_output(path)
    with output.create() as stream:
        puffin = PuffinWriter(stream)
        for new in vectors:
            blob = new.vector.encoded()
            stated = {_REFERENCED: new.data_path, _CARDINALITY: str(len(new.vector))}
            placed.append((new, puffin.add(_KIND, [_POSITION_FIELD_ID], blob, stated), len(blob)))
        puffin.finish()
    return [_entry(path, puffin.size_bytes, new, offset, length) for new, offset, length in placed]


def _entry(path: str, size_bytes: int, new: NewVector, offset: int, length: int) -> DataFile:
    file = DataFile.from_args(
        ENTRY_VERSION,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PUFFIN,
        partition=new.partition,
        record_count=len(new.vector),
        file_size_in_bytes=size_bytes,
        referenced_data_file=new.data_path,
        content_offset=offset,
        content_size_in_bytes=length,
    )
    file.spec_id = new.spec_id
    return file

"""Puffin files: blobs of any kind, and a footer that describes them (Puffin specification, version 1).

1. A file is a magic number, the blobs, and the footer: a magic number, JSON, the size of the JSON, flags
   and a magic number. The JSON may be compressed, as one frame of LZ4.
2. Any program may have written a file: sizes and offsets are checked against the file's size before memory is
   allocated, and blobs may not overlap.

Memory is bounded by `MAX_FOOTER_BYTES` and the blob that is read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import IO, Any

import lz4.frame
from pyiceberg.table.puffin import MAGIC_BYTES, Footer, PuffinBlobMetadata

from lithify import __version__
from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.errors import said

MAX_FOOTER_BYTES = 64 * 1024 * 1024
"""The maximum size of a footer's JSON: that of 200,000 blobs."""
_END_BYTES = 12
"""The size of the JSON, the flags and the last magic number."""
_COMPRESSED = 1
"""The flag of a compressed footer; all others are reserved."""


class PuffinReader:
    """The blobs of an open Puffin file."""

    def __init__(self, stream: Any, path: str) -> None:
        """Read the footer. Raise `CorruptObject` if it is damaged."""
        self._stream = stream
        self._path = path
        stream.seek(0, io.SEEK_END)
        self._size_bytes = stream.tell()
        self._blobs = {(blob.offset, blob.length): blob for blob in self._footer()}

    def blob(self, offset: int, length: int) -> tuple[PuffinBlobMetadata, bytes]:
        """Return the blob at this place, as it is stored. Raise `CorruptObject` if there is none."""
        found = self._blobs.get((offset, length))
        if found is None:
            raise self._damaged(f"has no blob of {length} bytes at {offset}, which a manifest names")
        return found, self._read(offset, length)

    def _footer(self) -> Sequence[PuffinBlobMetadata]:
        if self._size_bytes < 2 * len(MAGIC_BYTES) + _END_BYTES:
            raise self._damaged(f"has {self._size_bytes} bytes, fewer than any Puffin file")
        end = self._read(self._size_bytes - _END_BYTES, _END_BYTES)
        if end[8:] != MAGIC_BYTES:
            raise self._damaged("does not end as a Puffin file")
        stored_bytes = int.from_bytes(end[:4], "little", signed=True)
        flags = int.from_bytes(end[4:8], "little")
        start = self._size_bytes - _END_BYTES - stored_bytes - len(MAGIC_BYTES)
        if not 0 <= stored_bytes <= MAX_FOOTER_BYTES or start < len(MAGIC_BYTES):
            raise self._damaged(f"states a footer of {stored_bytes} bytes")
        if flags & ~_COMPRESSED:
            raise self._damaged(f"has unknown flags ({flags:#x}) in its footer")
        stored = self._read(start, len(MAGIC_BYTES) + stored_bytes)
        if stored[: len(MAGIC_BYTES)] != MAGIC_BYTES:
            raise self._damaged("has a footer that does not begin as one")
        text = stored[len(MAGIC_BYTES) :]
        try:
            blobs = Footer.model_validate_json(_decompressed(text) if flags else text).blobs
        except (ValueError, RuntimeError) as error:
            raise self._damaged(f"has a footer that does not decode: {said(error)}") from error
        self._check_places(blobs, start)
        return blobs

    def _check_places(self, blobs: Sequence[PuffinBlobMetadata], end: int) -> None:
        """Check that the blobs lie between the first magic number and the footer, one after the other."""
        taken = len(MAGIC_BYTES)
        for blob in sorted(blobs, key=lambda blob: blob.offset):
            if blob.length < 0 or blob.offset < taken or blob.offset + blob.length > end:
                place = f"a blob of {blob.length} bytes at {blob.offset}"
                raise self._damaged(f"states {place}, outside the file or over another blob")
            taken = blob.offset + blob.length

    def _read(self, offset: int, length: int) -> bytes:
        self._stream.seek(offset)
        data = bytes(self._stream.read(length))
        if len(data) < length:
            raise self._damaged(f"ends at {offset + len(data)}, {length - len(data)} bytes early")
        return data

    def _damaged(self, reason: str) -> CorruptObject:
        return CorruptObject(self._path, reason)


def _decompressed(data: bytes) -> bytes:
    """Return the content of a frame of LZ4; raise `ValueError` if it is too long or cut off."""
    decompressor = lz4.frame.LZ4FrameDecompressor()
    text: bytes = decompressor.decompress(data, max_length=MAX_FOOTER_BYTES)
    if not decompressor.eof:
        raise ValueError("the LZ4 frame is cut off, or too long")
    return text


class PuffinWriter:
    """A writer of uncompressed blobs to a stream."""

    def __init__(self, stream: IO[bytes] | Any) -> None:
        self._stream = stream
        self._blobs: list[PuffinBlobMetadata] = []
        stream.write(MAGIC_BYTES)
        self.size_bytes = len(MAGIC_BYTES)

    def add(self, kind: str, fields: Sequence[int], content: bytes, properties: Mapping[str, str]) -> int:
        """Append a blob that belongs to no snapshot. Return its offset."""
        offset = self.size_bytes
        self._write(content)
        self._blobs.append(
            PuffinBlobMetadata.model_validate(
                {
                    "type": kind,
                    "fields": list(fields),
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": offset,
                    "length": len(content),
                    "properties": dict(properties),
                }
            )
        )
        return offset

    def finish(self) -> None:
        """Write the footer."""
        footer = Footer(blobs=self._blobs, properties={"created-by": f"Lithify {__version__}"})
        text = footer.model_dump_json(by_alias=True, exclude_none=True).encode()
        end = len(text).to_bytes(4, "little", signed=True) + bytes(4) + MAGIC_BYTES
        self._write(MAGIC_BYTES + text + end)

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self.size_bytes += len(data)

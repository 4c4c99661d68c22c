"""Bodies in chunks: HTTP's `Transfer-Encoding: chunked`, and `aws-chunked` of S3's clients.

Both have the same form, except for the extension after a size, which is ignored (S3's is a signature):

    SIZE[;EXTENSION]\\r\\n BYTES \\r\\n … 0[;EXTENSION]\\r\\n [TRAILER\\r\\n …] \\r\\n
"""

from __future__ import annotations

from lithify.testing.s3.answers import S3Error

_LINE_END = b"\r\n"


class ChunkReader:
    """Finds the chunks in a buffer that may still grow."""

    def __init__(self, raw: bytearray) -> None:
        self.raw = raw
        self.end = 0
        """End of the bytes parsed so far."""
        self.size = 0
        self._spans: list[tuple[int, int]] = []
        self._in_trailer = False

    def advance(self) -> bool:
        """Parse further. Return whether the body is complete. Raise `S3Error` if it is malformed."""
        while not self._in_trailer:
            line = self.raw.find(_LINE_END, self.end)
            if line < 0:
                return False
            size = _size(bytes(self.raw[self.end : line]))
            start = line + 2
            if size == 0:
                self.end, self._in_trailer = start, True
                break
            if start + size + 2 > len(self.raw):
                return False
            self._spans.append((start, start + size))
            self.size += size
            self.end = start + size + 2
        while (line := self.raw.find(_LINE_END, self.end)) >= 0:
            is_last = line == self.end
            self.end = line + 2
            if is_last:
                return True
        return False

    def pieces(self) -> list[memoryview]:
        """Return the body's bytes so far. They reference `raw`, which cannot grow any more."""
        raw = memoryview(self.raw)
        return [raw[start:end] for start, end in self._spans]


def unchunked(body: bytearray, size: int | None) -> list[memoryview]:
    """Return the pieces of a complete `aws-chunked` body, whose header gives its `size` in bytes."""
    reader = ChunkReader(body)
    reader.advance()
    if not reader._in_trailer or (size is not None and reader.size != size):
        raise S3Error(400, "IncompleteBody", f"{reader.size} bytes came of {size}.")
    return reader.pieces()


def _size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise S3Error(400, "InvalidRequest", f"No size of a chunk: {line[:40]!r}") from error

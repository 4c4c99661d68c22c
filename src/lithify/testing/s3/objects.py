"""One object: its bytes in pieces, and its metadata.

Pieces are never joined: an object put in one request is one piece (or several, of an `aws-chunked` body); one
uploaded in parts has at least one piece per part. Ranges are cut out without copying.

The etag of an object up to `MD5_BYTES` is the MD5 of its bytes, as on S3, so for a conditional write equal
bytes are the same version. A digest of a larger object would cost more than everything else; its etag is a
number, as on S3 for objects encrypted by KMS.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import time
from collections.abc import Iterable, Mapping
from itertools import accumulate

MD5_BYTES = 64 * 1024
Buffer = bytes | bytearray | memoryview
_numbers = itertools.count(1)


class StoredObject:
    """Bytes with their etag, time of modification (seconds since 1970) and stored headers. Immutable except
    for `modified_s`."""

    __slots__ = ("_ends", "_pieces", "etag", "headers", "modified_s", "size")

    def __init__(self, pieces: Iterable[Buffer], headers: Mapping[str, str], etag: str = "") -> None:
        self._pieces = [memoryview(piece) for piece in pieces if len(piece)]
        self._ends = list(accumulate(map(len, self._pieces)))
        self.size = self._ends[-1] if self._ends else 0
        self.etag = etag or _etag(self._pieces, self.size)
        self.headers = headers
        self.modified_s = time.time()

    def cut(self, start: int, end: int) -> list[memoryview]:
        found = []
        for number in range(bisect.bisect_right(self._ends, start), len(self._pieces)):
            piece = self._pieces[number]
            base = self._ends[number] - len(piece)
            if base >= end:
                break
            found.append(piece[max(0, start - base) : end - base])
        return found

    def copy(self, headers: Mapping[str, str]) -> StoredObject:
        """Return an object with the same bytes, written now."""
        return StoredObject(self._pieces, headers, self.etag)


def numbered_etag(parts: int = 0) -> str:
    """Return a unique etag; for an upload, with the number of its `parts`."""
    suffix = f"-{parts}" if parts else ""
    return f'"{next(_numbers):032x}{suffix}"'


def _etag(pieces: list[memoryview], size: int) -> str:
    if size > MD5_BYTES:
        return numbered_etag()
    return f'"{hashlib.md5(b"".join(pieces), usedforsecurity=False).hexdigest()}"'

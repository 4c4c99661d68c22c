"""Uploads in parts.

A completed upload can be completed again with the same answer, as on S3, while the object is still the one
that it made: a client whose first answer was lost must succeed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from lithify.testing.s3.answers import S3Error
from lithify.testing.s3.objects import Buffer, StoredObject, numbered_etag

MIN_PART_BYTES = 5 * 1024 * 1024
"""Minimum size of every part but the last."""


class Upload:
    """The parts of one upload so far, by number."""

    def __init__(self, key: str, headers: Mapping[str, str]) -> None:
        self.key = key
        self.made: StoredObject | None = None
        """The object made from the parts."""
        self._headers = headers
        self._parts: dict[int, tuple[str, Sequence[Buffer]]] = {}

    def put(self, number: int, pieces: Sequence[Buffer]) -> str:
        """Store a part, replacing any with the same number. Return its etag."""
        etag = numbered_etag()
        self._parts[number] = etag, pieces
        return etag

    def join(self, named: Sequence[tuple[int, str]]) -> StoredObject:
        """Return the object made of the parts `named` by number and etag. Raise `S3Error` if they do not form
        one."""
        if not named:
            raise S3Error(400, "MalformedXML", "No part is named.")
        if any(before >= after for (before, _), (after, _) in itertools.pairwise(named)):
            raise S3Error(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        pieces: list[Buffer] = []
        for place, (number, etag) in enumerate(named, start=1):
            there = self._parts.get(number)
            if there is None or there[0].strip('"') != etag.strip('"'):
                raise S3Error(400, "InvalidPart", f"There is no part {number} with this etag.")
            if place < len(named) and sum(map(len, there[1])) < MIN_PART_BYTES:
                raise S3Error(400, "EntityTooSmall", f"Part {number} is too small.")
            pieces += there[1]
        self.made = StoredObject(pieces, self._headers, numbered_etag(len(named)))
        self._parts.clear()
        return self.made

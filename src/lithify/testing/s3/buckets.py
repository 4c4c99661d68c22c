"""Buckets: objects by key, keys in order, uploads in progress.

Keys are ordered by their code points, which is the order of their UTF-8 bytes, as in S3's listings.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence

from lithify.testing.s3.answers import S3Error
from lithify.testing.s3.objects import Buffer, StoredObject, numbered_etag

LAST_CHARACTER = "\U0010ffff"


class S3Bucket:
    def __init__(self, name: str) -> None:
        self.name = name
        self.uploads: dict[str, Upload] = {}
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: str) -> StoredObject:
        """Return an object. Raise `S3Error` if there is none."""
        found = self._objects.get(key)
        if found is None:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def find(self, key: str) -> StoredObject | None:
        return self._objects.get(key)

    def put(self, key: str, stored: StoredObject) -> None:
        if key not in self._objects:
            bisect.insort(self._keys, key)
        self._objects[key] = stored

    def delete(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def keys_under(self, prefix: str) -> Sequence[str]:
        """Return all keys that start with `prefix`, in order."""
        first = bisect.bisect_left(self._keys, prefix)
        after = beyond(prefix)
        return self._keys[first : bisect.bisect_left(self._keys, after) if after else None]

    def begin(self, key: str, headers: dict[str, str]) -> str:
        """Begin an upload in parts. Return its id."""
        upload_id = f"upload-{next(self._numbers):016x}"
        self.uploads[upload_id] = Upload(key, headers)
        return upload_id

    def upload(self, key: str, upload_id: str) -> Upload:
        """Return an upload. Raise `S3Error` if there is none for that key."""
        found = self.uploads.get(upload_id)
        if found is None or found.key != key:
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.")
        return found


class Buckets:
    def __init__(self) -> None:
        self._buckets: dict[str, S3Bucket] = {}

    def names(self) -> list[str]:
        return sorted(self._buckets)

    def get(self, name: str) -> S3Bucket:
        """Return a bucket. Raise `S3Error` if there is none."""
        found = self._buckets.get(name)
        if found is None:
            raise S3Error(404, "NoSuchBucket", "The specified bucket does not exist")
        return found

    def create(self, name: str) -> S3Bucket:
        """Return the bucket with that name, created if there is none."""
        return self._buckets.setdefault(name, S3Bucket(name))

    def delete(self, name: str) -> None:
        """Delete a bucket. Raise `S3Error` if it has objects."""
        if len(self.get(name)):
            raise S3Error(409, "BucketNotEmpty", "The bucket you tried to delete is not empty")
        del self._buckets[name]


def beyond(prefix: str) -> str:
    """Return the smallest text greater than all that start with `prefix`; empty if there is none."""
    stem = prefix.rstrip(LAST_CHARACTER)
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else ""


MIN_PART_BYTES = 5 * 1024 * 1024
"""Minimum size of every part but the last."""


class Upload:
    """The parts of one upload so far, by number. A completed upload can be completed again with the same
    answer, as on S3, while the object is still the one that it made: a client whose first answer was lost
    must succeed."""

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

"""Buckets: objects by key, keys in order, uploads in progress.

Keys are ordered by their code points, which is the order of their UTF-8 bytes, as in S3's listings.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from lithify.testing.s3.answers import S3Error
from lithify.testing.s3.objects import StoredObject
from lithify.testing.s3.uploads import Upload

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

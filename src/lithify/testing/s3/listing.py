"""Pages of ListObjectsV2.

1. A page has only keys that start with the prefix, after the continuation token or else after `start-after`.
2. With a delimiter, keys that contain it after the prefix are listed once, as their common prefix, and
   skipped by bisection. A common prefix of an earlier page is not listed again: a token is the last listed
   key or common prefix.
3. Keys and common prefixes both count towards the page size.
"""

from __future__ import annotations

import base64
import binascii
import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from lithify.testing.s3.answers import S3Error
from lithify.testing.s3.buckets import S3Bucket, beyond
from lithify.testing.s3.objects import StoredObject

MAX_KEYS = 1000


@dataclass(slots=True)
class Page:
    """Objects and common prefixes in order, and the continuation token if there are more."""

    objects: list[tuple[str, StoredObject]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str | None = None

    @property
    def count(self) -> int:
        return len(self.objects) + len(self.prefixes)


def page_of(bucket: S3Bucket, prefix: str, delimiter: str, after: str, limit: int) -> Page:
    keys, page, last = bucket.keys_under(prefix), Page(), after
    at = bisect.bisect_right(keys, after) if after else 0
    while at < len(keys) and limit > 0:
        key = keys[at]
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        common = key[: end + len(delimiter)] if end >= 0 else ""
        if common and after.startswith(common):
            at = _skip(keys, common)
            continue
        if page.count == limit:
            page.token = _token(last)
            break
        if common:
            page.prefixes.append(common)
            at, last = _skip(keys, common), common
        else:
            page.objects.append((key, bucket.get(key)))
            at, last = at + 1, key
    return page


def _skip(keys: Sequence[str], common: str) -> int:
    after = beyond(common)
    return bisect.bisect_left(keys, after) if after else len(keys)


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def last_of(token: str) -> str:
    """Return the last listed key or common prefix that `token` encodes."""
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise S3Error(400, "InvalidArgument", "The continuation token provided is incorrect") from error

"""Patterns of datasets: a URL in which `*` stands for any name, or a part of one. Pure.

| pattern | matches |
|---|---|
| `s3://bucket/my-db` | this one |
| `s3://bucket/tenants/*/db` | the folder `db` of every folder below `tenants` |
| `s3://bucket/logs-*` | every folder of the bucket whose name begins so |
| `scheme://catalog/namespace.*` | everything in a namespace of a catalog |

1. A `*` never stands for a slash, and for nothing that is empty. It is not allowed in what comes before the
   path (the bucket, the catalog): that would be a listing of somebody's account.
2. Where nothing is a slash (names in a catalog, with dots) a `*` may stand for several names.
3. A pattern and a URL are compared as written, but for slashes at the end; a `file:` URL is the path it
   names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from lithify.errors import Refused

MAX_PATTERN_CHARS = 4_000
_FILE = re.compile(r"file:(?://(?:localhost)?)?(?=/)")


def is_pattern(text: str) -> bool:
    """Whether it may name several datasets."""
    return "*" in text


def normal(pattern: str) -> str:
    """A pattern or URL as all who write it alike would. `Refused` when it is none."""
    of_file = _FILE.match(pattern)
    pattern = (unquote(pattern[of_file.end() :]) if of_file else pattern).rstrip("/")
    if not pattern or len(pattern) > MAX_PATTERN_CHARS or any(ord(c) < 0x20 for c in pattern):
        raise Refused(f"{pattern[:120]!r} is no URL or pattern of datasets")
    if "://" not in pattern and not pattern.startswith("/"):
        raise Refused(
            f"{pattern}: is relative, so it would be another place for each process; write all of it"
        )
    root = pattern.partition("://")[2].partition("/")[0] if "://" in pattern else ""
    if "*" in root or "*" in pattern.partition("://")[0].partition("/")[0]:
        raise Refused(f"{pattern}: a '*' can only stand in the path, not in {root or 'the scheme'!r}")
    if "**" in pattern:
        raise Refused(f"{pattern}: write one '*' for each level; there is no '**'")
    return pattern


def match(pattern: str, url: str) -> tuple[str, ...] | None:
    """What each `*` stands for in `url`; `None` when that does not match."""
    found = _compiled(pattern).fullmatch(normal(url))
    return None if found is None else found.groups()


@lru_cache(maxsize=100_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("([^/]+)".join(re.escape(part) for part in normal(pattern).split("*")))

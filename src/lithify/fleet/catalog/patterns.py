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
3. A pattern and a URL are compared in one form, whoever wrote them (`canonical`): a `file:` URL is the path
   it names, of a path dots and double slashes are gone, and in all other URLs stands quoted what cannot stand
   in one as it is. Slashes at the end do not count.
4. Of two patterns that match a URL the one that has more characters besides `*` is the more specific: where
   one matches only what the other does too, it is that one.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from lithify.base.errors import Refused

MAX_PATTERN_CHARS = 4_000
_FILE = re.compile(r"file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)
_AS_IT_IS = "!$&'()+,:;=@~"
"""What stands in a URL as it is, besides letters, digits, `-`, `_` and what has a meaning there."""
_QUOTED = re.compile("%([0-9A-Fa-f]{2})")
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_PLAIN = re.compile(rf"[A-Za-z0-9_./*?#{re.escape(_AS_IT_IS)}-]*")


def is_pattern(text: str) -> bool:
    """Whether it may name several datasets."""
    return "*" in text


def breadth(pattern: str) -> tuple[bool, int]:
    """Is less for the more specific of two that match the same URL. A URL is before all patterns."""
    return is_pattern(pattern), pattern.count("*") - len(pattern)


def canonical(url: str) -> str:
    """A URL, or a pattern, as all who write it alike would. Not checked."""
    of_file = _FILE.match(url)
    if of_file:
        url = unquote(url[of_file.end() :])
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = posixpath.normpath(url) if url else ""
        return f"/{path.lstrip('/')}".rstrip("/") if path.startswith("/") else path
    root, slash, path = rest.partition("/")
    if not _PLAIN.fullmatch(path):
        path = _QUOTED.sub(_settled, quote(_LONE_PERCENT.sub("%25", path), safe=f"%/*?#{_AS_IT_IS}"))
    return f"{scheme.lower()}{separator}{root}{slash}{path}".rstrip("/")


def _settled(quoted: re.Match[str]) -> str:
    """Quoted once more only if it has to be. A dot may stand for another one than it does as it is."""
    character = chr(int(quoted[1], 16))
    is_plain = character.isascii() and (character.isalnum() or character in f"-_{_AS_IT_IS}")
    return character if is_plain else quoted[0].upper()


def normal(pattern: str) -> str:
    """The canonical form. `Refused` when it is no pattern or URL of datasets."""
    if any(ord(c) < 0x20 or 0xD800 <= ord(c) < 0xE000 for c in pattern):
        raise Refused(f"{pattern[:120]!r} is no URL or pattern of datasets")
    pattern = canonical(pattern)
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise Refused(f"{pattern[:120]!r} is no URL or pattern of datasets")
    scheme, is_url, rest = pattern.partition("://")
    if not is_url and not pattern.startswith("/"):
        raise Refused(
            f"{pattern}: is relative, so it would be another place for each process; write all of it"
        )
    root, _, path = rest.partition("/")
    if "*" in root or "*" in scheme.partition("/")[0]:
        raise Refused(f"{pattern}: a '*' can only stand in the path, not in {root or 'the scheme'!r}")
    if "**" in pattern:
        raise Refused(f"{pattern}: write one '*' for each level; there is no '**'")
    if "//" in f"/{path}" or "?" in path or "#" in path:
        raise Refused(
            f"{pattern}: an empty name, a '?' or a '#' cannot be part of the path; write %3F or %23"
        )
    return pattern


def match(pattern: str, url: str) -> tuple[str, ...] | None:
    """What each `*` stands for in `url`; `None` when that does not match."""
    found = _compiled(pattern).fullmatch(canonical(url))
    return None if found is None else found.groups()


@lru_cache(maxsize=100_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("([^/]+)".join(re.escape(part) for part in canonical(pattern).split("*")), re.DOTALL)

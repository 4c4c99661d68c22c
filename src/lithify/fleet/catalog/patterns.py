"""Patterns of datasets: a URL in which `*` stands for any name or a part of one. Pure.

| pattern | matches |
|---|---|
| `s3://bucket/my-db` | this dataset |
| `s3://bucket/tenants/*/db` | the folder `db` of every folder below `tenants` |
| `s3://bucket/logs-*` | every folder of the bucket whose name begins with `logs-` |
| `scheme://catalog/namespace.*` | everything in a namespace of a catalog |

1. A `*` never matches a slash or an empty text. It is not allowed before the path (in the bucket or the
   catalog): that would require listing an account.
2. Where there are no slashes (names in a catalog, with dots), a `*` may match several names.
3. A pattern and a URL are compared in one form (`canonical`): a `file:` URL becomes the path it names; dots
   and double slashes are removed from paths; in all other URLs, characters that a URL cannot contain are
   quoted. Trailing slashes are ignored.
4. Of two patterns that match a URL, the one with more characters besides `*` is the more specific: if one
   pattern matches a subset of what the other matches, it is that one.
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
"""Characters that are not quoted in a URL, besides letters, digits, `-`, `_` and those with a meaning."""
_QUOTED = re.compile("%([0-9A-Fa-f]{2})")
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_PLAIN = re.compile(rf"[A-Za-z0-9_./*?#{re.escape(_AS_IT_IS)}-]*")


def is_pattern(text: str) -> bool:
    """Return whether the text may name several datasets."""
    return "*" in text


def breadth(pattern: str) -> tuple[bool, int]:
    """Return a sort key that is less for the more specific of two patterns that match the same URL. A URL
    comes before all patterns."""
    return is_pattern(pattern), pattern.count("*") - len(pattern)


def canonical(url: str) -> str:
    """Return the one form of all spellings of a URL or pattern, without checking it."""
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
    """Unquote a character unless necessary. Dots remain quoted: unquoted, they may mean something else."""
    character = chr(int(quoted[1], 16))
    is_plain = character.isascii() and (character.isalnum() or character in f"-_{_AS_IT_IS}")
    return character if is_plain else quoted[0].upper()


def normal(pattern: str) -> str:
    """Return the canonical form. Raise `Refused` if it is no pattern or URL of datasets."""
    if any(ord(c) < 0x20 or 0xD800 <= ord(c) < 0xE000 for c in pattern):
        raise Refused(f"{pattern[:120]!r} is not a URL or pattern of datasets")
    pattern = canonical(pattern)
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise Refused(f"{pattern[:120]!r} is not a URL or pattern of datasets")
    scheme, is_url, rest = pattern.partition("://")
    if not is_url and not pattern.startswith("/"):
        raise Refused(
            f"{pattern}: is relative, so its meaning depends on the process; write an absolute path"
        )
    root, _, path = rest.partition("/")
    if "*" in root or "*" in scheme.partition("/")[0]:
        raise Refused(f"{pattern}: a '*' is allowed only in the path, not in {root or 'the scheme'!r}")
    if "**" in pattern:
        raise Refused(f"{pattern}: '**' is not supported; write one '*' for each level")
    if "//" in f"/{path}" or "?" in path or "#" in path:
        raise Refused(
            f"{pattern}: an empty name, a '?' or a '#' cannot be part of the path; write %3F or %23"
        )
    return pattern


def match(pattern: str, url: str) -> tuple[str, ...] | None:
    """Return the text that each `*` matches in `url`; `None` if the URL does not match."""
    found = _compiled(pattern).fullmatch(canonical(url))
    return None if found is None else found.groups()


@lru_cache(maxsize=100_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("([^/]+)".join(re.escape(part) for part in canonical(pattern).split("*")), re.DOTALL)

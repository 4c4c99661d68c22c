"""Which paths name the same place: the one answer for expiry, orphans, garbage, neighbours and readers.

A table's files are named by paths that several programs wrote, each in its own way: `s3`, `s3a` or `s3n`,
`file:/t`, `file:///t` or `/t`. There are two questions, and a wrong answer to each does another harm.

- *May it be the same?* is asked before a file is deleted that something else may name, so a doubt means yes:
  `key_of`, `keys_of`, `place_of`, `is_within`.
- *Is it surely the same?* is asked before a file is taken for the table's own, or one place for another, so a
  doubt means no: `canonical`, `is_inside`, `spellings`.

1. Paths *may* be the same when they are alike but for the scheme, the bucket (one bucket can have several
   names), percent signs, `//` and `..`, or when they are for the local file system and lead to the same place
   through links. A path also counts as what PyIceberg makes of it: it cuts at `#` and `?` and leaves tabs and
   line ends out.
2. Paths are *surely* the same when they differ in nothing but how the scheme of one store is written, and a
   slash at the end.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from lithify.store.urls import split_scheme

MAX_FOLDERS = 100_000
"""Local folders of which is remembered where they lead."""
FILE = "file"
_FAMILIES = (("s3", "s3a", "s3n"), ("abfss", "abfs"), ("wasbs", "wasb"))
"""Schemes of one store; the first stands for all."""
_CANONICAL = {scheme: family[0] for family in _FAMILIES for scheme in family}
_NOT_PLAIN = re.compile(r"[#?*\[\x00-\x1f]")

Follow = Callable[[str], str]
"""Where a local path leads, through links."""


def is_local(path: str) -> bool:
    """Whether a path is one of the local file system (pure)."""
    return split_scheme(path)[0] in (None, FILE)


# Surely the same


def canonical(path: str) -> str:
    """The one spelling of a path that all its spellings share (pure)."""
    scheme, rest = split_scheme(path)
    if scheme in (None, FILE):
        host, slash, inside = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest)
        if host or not slash or not rest.startswith("/"):
            return path  # of a host, which PyIceberg takes for a folder, or relative
        return f"{FILE}:///{inside.strip('/')}"
    return f"{_CANONICAL.get(scheme, scheme)}:{rest.rstrip('/')}"


def is_inside(path: str, folder: str) -> bool:
    """Whether a path surely is one of a file below a folder (pure)."""
    root, key = _folder(folder)
    return (path.startswith(f"{folder}/") or canonical(path).startswith(root)) and key_of(path).startswith(
        key
    )


@lru_cache(maxsize=1_000)
def _folder(folder: str) -> tuple[str, str]:
    """How canonical spellings and keys begin of what lies in a folder."""
    key = key_of(folder)
    return f"{canonical(folder)}/", f"{key}/" if key else ""


def spellings(path: str) -> tuple[str, ...]:
    """All ways to write a path, but for slashes at its end; the first is as it is given (pure)."""
    path = path.rstrip("/")
    found = canonical(path)
    scheme, rest = split_scheme(found)
    if scheme == FILE and found.startswith(f"{FILE}:///"):
        ways = tuple(f"{begin}{rest[2:]}" for begin in (f"{FILE}://", f"{FILE}:", ""))
    else:
        family = next((names for names in _FAMILIES if scheme in names), ())
        ways = tuple(f"{name}:{rest}" for name in family)
    return tuple(dict.fromkeys((path, *ways)))


# Maybe the same


def key_of(path: str) -> str:
    """What two paths of the same file have in common (pure)."""
    scheme, rest = split_scheme(path)
    if scheme not in (None, FILE):
        rest = rest.removeprefix("//").partition("/")[2]
    return key_in_store(rest)


def key_in_store(key: str) -> str:
    """The same of the key of an object, or of a local path (pure)."""
    return posixpath.normpath(f"/{unquote(key)}").lstrip("/")


def keys_of(path: str, follow: Follow = os.path.realpath) -> set[str]:
    """All keys that a path may be of."""
    shortened = path
    if not is_plain(path) or path != path.strip():
        shortened = re.sub(r"[\t\r\n]", "", re.split("[#?]", path, maxsplit=1)[0]).strip()
    keys = {key_of(name) for name in {path, shortened}}
    if is_local(path):
        for name in {path, shortened}:
            keys.add(key_of(follow(f"/{split_scheme(name)[1].lstrip('/')}")))
    return keys


def place_of(folder: str) -> str:
    """What two paths of the same folder have in common, links followed."""
    if is_local(folder):
        return key_of(os.path.realpath(f"/{split_scheme(folder)[1].lstrip('/')}"))
    return key_of(folder)


def is_within(key: str, folder: str) -> bool:
    """Whether what `key_of` or `place_of` gave lies in such a folder, or is that folder (pure)."""
    return key == folder or not folder or key.startswith(f"{folder}/")


def is_plain(path: str) -> bool:
    """Whether a path names the one file that it seems to name (pure). PyIceberg takes paths for URLs, and
    fsspec takes them for patterns."""
    return _NOT_PLAIN.search(path) is None


def followed_by_folder() -> Follow:
    """As `os.path.realpath`, but looks at each folder only once."""
    real_folder = lru_cache(MAX_FOLDERS)(os.path.realpath)

    def follow(path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        real = f"{real_folder(folder)}/{name}"
        return os.path.realpath(path) if Path(real).is_symlink() else real

    return follow

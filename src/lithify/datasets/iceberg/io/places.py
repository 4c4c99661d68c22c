"""Comparison of paths, common to expiry, orphans, garbage, neighbours and readers.

A table's files are named by paths that several programs wrote in different forms: `s3`, `s3a` or `s3n`,
`file:/t`, `file:///t` or `/t`. There are two questions, and a wrong answer does different harm for each.

- *May it be the same?* is checked before a file is deleted that another object may name, so a doubt means
  yes: `key_of`, `keys_of`, `place_of`, `is_within`.
- *Is it surely the same?* is checked before a file is treated as the table's own, or two locations as one, so
  a doubt means no: `canonical`, `is_inside`, `spellings`.

1. Paths *may* be the same when they differ only in the scheme, the bucket (one bucket can have several
   names), percent signs, `//` and `..`, or when they are local and links resolve them to the same file.
   PyIceberg's interpretation of a path counts too: it cuts at `#` and `?` and removes tabs and line ends.
2. Paths are *surely* the same when they differ only in how the scheme of one store is written, and in a
   trailing slash.
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
"""The maximum number of local folders whose resolved path is cached."""
FILE = "file"
_FAMILIES = (("s3", "s3a", "s3n"), ("abfss", "abfs"), ("wasbs", "wasb"))
"""Equivalent schemes of one store; the first is the canonical one."""
_CANONICAL = {scheme: family[0] for family in _FAMILIES for scheme in family}
_NOT_PLAIN = re.compile(r"[#?*\[\x00-\x1f]")

Follow = Callable[[str], str]
"""Resolve the links of a local path."""


def is_local(path: str) -> bool:
    """Return whether a path is in the local file system (pure)."""
    return split_scheme(path)[0] in (None, FILE)


# Surely the same


def canonical(path: str) -> str:
    """Return the canonical spelling of a path (pure)."""
    scheme, rest = split_scheme(path)
    if scheme in (None, FILE):
        host, slash, inside = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest)
        if host or not slash or not rest.startswith("/"):
            return path  # with a host, which PyIceberg treats as a folder, or relative
        return f"{FILE}:///{inside.strip('/')}"
    return f"{_CANONICAL.get(scheme, scheme)}:{rest.rstrip('/')}"


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path is surely that of a file below a folder (pure)."""
    root, key = _folder(folder)
    return (path.startswith(f"{folder}/") or canonical(path).startswith(root)) and key_of(path).startswith(
        key
    )


@lru_cache(maxsize=1_000)
def _folder(folder: str) -> tuple[str, str]:
    """Return the prefixes of canonical spellings and keys of the files in a folder."""
    key = key_of(folder)
    return f"{canonical(folder)}/", f"{key}/" if key else ""


def spellings(path: str) -> tuple[str, ...]:
    """Return all spellings of a path, except for trailing slashes; the first is the given one (pure)."""
    path = path.rstrip("/")
    found = canonical(path)
    scheme, rest = split_scheme(found)
    if scheme == FILE and found.startswith(f"{FILE}:///"):
        ways = tuple(f"{begin}{rest[2:]}" for begin in (f"{FILE}://", f"{FILE}:", ""))
    else:
        family = next((names for names in _FAMILIES if scheme in names), ())
        ways = tuple(f"{name}:{rest}" for name in family)
    return tuple(dict.fromkeys((path, *ways)))


# Possibly the same


def key_of(path: str) -> str:
    """Return a key that all paths of the same file share (pure)."""
    scheme, rest = split_scheme(path)
    if scheme not in (None, FILE):
        rest = rest.removeprefix("//").partition("/")[2]
    return key_in_store(rest)


def key_in_store(key: str) -> str:
    """Return the same key for an object's key or a local path (pure)."""
    return posixpath.normpath(f"/{unquote(key)}").lstrip("/")


def keys_of(path: str, follow: Follow = os.path.realpath) -> set[str]:
    """Return all keys that a path may have."""
    shortened = path
    if not is_plain(path) or path != path.strip():
        shortened = re.sub(r"[\t\r\n]", "", re.split("[#?]", path, maxsplit=1)[0]).strip()
    keys = {key_of(name) for name in {path, shortened}}
    if is_local(path):
        for name in {path, shortened}:
            keys.add(key_of(follow(f"/{split_scheme(name)[1].lstrip('/')}")))
    return keys


def place_of(folder: str) -> str:
    """Return a key that all paths of the same folder share, with links resolved."""
    if is_local(folder):
        return key_of(os.path.realpath(f"/{split_scheme(folder)[1].lstrip('/')}"))
    return key_of(folder)


def is_within(key: str, folder: str) -> bool:
    """Return whether a result of `key_of` or `place_of` is in such a folder, or is that folder (pure)."""
    return key == folder or not folder or key.startswith(f"{folder}/")


def is_plain(path: str) -> bool:
    """Return whether a path names the file that it appears to name (pure). PyIceberg interprets paths as
    URLs, and fsspec as patterns."""
    return _NOT_PLAIN.search(path) is None


def followed_by_folder() -> Follow:
    """Return a function like `os.path.realpath` that resolves each folder only once."""
    real_folder = lru_cache(MAX_FOLDERS)(os.path.realpath)

    def follow(path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        real = f"{real_folder(folder)}/{name}"
        return os.path.realpath(path) if Path(real).is_symlink() else real

    return follow

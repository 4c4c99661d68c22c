"""Object keys as text: joining, checking, and the names of numbered versions and staged files.

A *staging name* is `<name>#<digits>` in the folder of the future object. SlateDB's local store uses the same
form and hides such names from its listings, so leftovers of killed processes are harmless.
"""

from __future__ import annotations

import re

from lithify.base.errors import CorruptObject, StoreError

_STAGING_NAME = re.compile(r"(#[0-9]+)+\Z")
_LOCK_SUFFIX = "#0"
MAX_VERSION_ID = (1 << 64) - 1
_ID_DIGITS = 20
_CANONICAL_ID = re.compile(rf"[0-9]{{{_ID_DIGITS}}}")
_BOUNDARY = re.compile(rb"\s*([0-9]{1,20})\s*")
_MAX_SHOWN_BYTES = 40


def join(*parts: str) -> str:
    """Join the non-empty parts with slashes."""
    return "/".join(part for part in parts if part)


def url_of(root: str, key: str) -> str:
    """Return the URL of an object in the store with the URL `root`."""
    return f"{root}{'' if root.endswith('/') else '/'}{key}"


def is_staging_name(key: str) -> bool:
    """Return whether `key` names a file that is being written, or was when its writer died."""
    return _STAGING_NAME.search(key) is not None


def is_object_name(key: str) -> bool:
    """Return whether `key` can be an object's."""
    return not is_staging_name(key)


def is_leftover_name(key: str) -> bool:
    """Return whether `key` names a staged file that may be deleted. `<name>#0` is a lock, which is kept."""
    return is_staging_name(key) and not key.endswith(_LOCK_SUFFIX)


def unstaged(key: str) -> str:
    """Return the key of the object that a staged file was to become."""
    return _STAGING_NAME.sub("", key)


def check_key(key: str) -> str:
    """Return `key`. Raise `StoreError` if no object may have it: keys can come from untrusted bytes, and must
    not lead out of their folder."""
    if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(f"object key {key!r} is not valid: it has an empty, '.' or '..' part or a NUL byte")
    if is_staging_name(key):
        raise StoreError(f"object key {key!r} is not valid: '#' and digits at the end mark staged files")
    return key


def format_id(version_id: int) -> str:
    """Format a version's number as in the object's name."""
    return f"{version_id:0{_ID_DIGITS}d}"


def parse_key(key: str, folder: str, suffix: str) -> int | None:
    """Return the number of the version that `key` names, or `None` if it names something else. Raise
    `CorruptObject` if the name would mislead a client."""
    if not key.endswith(suffix):
        return None
    stem = key.removeprefix(f"{folder}/").removesuffix(suffix)
    if not _CANONICAL_ID.fullmatch(stem) or not 1 <= int(stem) <= MAX_VERSION_ID:
        raise CorruptObject(
            key,
            f"the name is not a number from 1 with exactly {_ID_DIGITS} digits and {suffix!r}; clients "
            "can hang on such a name, so find out which program wrote it and move it away",
        )
    return int(stem)


def parse_boundary(data: bytes, key: str) -> int:
    """Parse the number in a boundary object."""
    match = _BOUNDARY.fullmatch(data)
    if match is None or int(match[1]) > MAX_VERSION_ID:
        raise CorruptObject(key, f"is not a decimal number of 64 bits: {data[:_MAX_SHOWN_BYTES]!r}")
    return int(match[1])

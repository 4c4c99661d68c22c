"""Object keys as text: joining, checking, and the names of staged files.

A *staging name* is `<name>#<digits>` in the folder of the future object. SlateDB's local store uses the same
form and hides such names from its listings, so leftovers of killed processes are harmless.
"""

from __future__ import annotations

import re

from lithify.base.errors import StoreError

_STAGING_NAME = re.compile(r"(#[0-9]+)+\Z")
_LOCK_SUFFIX = "#0"


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

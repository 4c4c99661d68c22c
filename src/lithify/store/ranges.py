"""Validation of byte ranges in objects.

Offsets and lengths can come from untrusted bytes, so only possible ranges reach a library or the operating
system.
"""

from __future__ import annotations

from lithify.base.errors import StoreError

MAX_OFFSET = (1 << 62) - 1


def check_range(key: str, offset: int, length: int) -> None:
    """Raise `StoreError` if no object can have these bytes."""
    if offset < 0 or length < 0 or offset + length > MAX_OFFSET:
        raise StoreError(f"get {key}: no object has {length} bytes at {offset}")

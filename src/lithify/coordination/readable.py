"""Validation of documents before they are written.

If every change begins with reading the document, an unreadable one makes all changes fail, and no command can
repair it. So a document is decoded before it is written.
"""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.errors import CorruptObject, Refused
from lithify.base.jsonvalues import UNDECODABLE


def readable(encode: Callable[[], bytes], read: Callable[[bytes], object], where: str) -> bytes:
    """Return the result of `encode`, to be written to `where`. Raise `Refused` if `read` cannot decode it."""
    try:
        data = encode()
        read(data)
    except (CorruptObject, *UNDECODABLE) as error:
        why = error.reason if isinstance(error, CorruptObject) else str(error)
        raise Refused(f"{where}: nothing was written, because it could not be read back: {why}") from error
    return data

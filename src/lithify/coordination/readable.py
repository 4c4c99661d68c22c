"""What is written can be read again.

Where every change begins with reading what is there, a document that cannot be read ends all changes, and no
command is left to repair it. So it is read before it is written.
"""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.errors import CorruptObject, Refused
from lithify.base.jsonvalues import UNDECODABLE


def readable(encode: Callable[[], bytes], read: Callable[[bytes], object], where: str) -> bytes:
    """What `encode` gives, for what is at `where`. `Refused` when `read` cannot read it."""
    try:
        data = encode()
        read(data)
    except (CorruptObject, *UNDECODABLE) as error:
        why = error.reason if isinstance(error, CorruptObject) else str(error)
        raise Refused(f"{where}: nothing was written, since it could not be read again: {why}") from error
    return data

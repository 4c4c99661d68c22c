"""Sizes with units: `256MB`, `1GiB`, `14.6 kB`; a number alone is bytes.

kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024; case does not matter. A letter
alone, such as `1G`, is refused, because it means different things to Spark and Kubernetes.
"""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = {f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", start=1)}
_DECIMAL = {f"{letter}B": 1000**power for power, letter in enumerate("kMGTP", start=1)}
_UNITS = {unit.lower(): factor for unit, factor in ({"": 1, "B": 1} | _BINARY | _DECIMAL).items()}
_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", re.ASCII)
_MAX_SHOWN_CHARS = 40


class Bytes(int):
    """A number of bytes that is displayed with a unit."""

    __slots__ = ()


def parse_size(text: str) -> int:
    """Parse a size and return bytes. Raise `ValueError` if it is not a size, or not a whole number of
    bytes."""
    found = _SIZE.fullmatch(text)
    factor = _UNITS.get(found[2].lower()) if found is not None else None
    shown = text[:_MAX_SHOWN_CHARS]
    if found is None or factor is None:
        raise ValueError(
            f'{shown!r} is not a size; write bytes, or a number and a unit, such as "256MB" or "1GiB"'
        )
    size = Decimal(found[1]) * factor
    if size != int(size):
        raise ValueError(f"{shown!r} is not a whole number of bytes")
    return int(size)


def format_size(size_bytes: int) -> str:
    """Format a size in the unit that gives the smallest whole number; `parse_size` reads it back."""
    whole = [(factor, unit) for unit, factor in (_BINARY | _DECIMAL).items() if size_bytes % factor == 0]
    if not size_bytes or not whole:
        return str(size_bytes)
    factor, unit = max(whole)
    return f"{size_bytes // factor}{unit}"


def to_size(value: object) -> object:
    """Convert a size from text to bytes; return anything else unchanged."""
    return parse_size(value) if isinstance(value, str) else value

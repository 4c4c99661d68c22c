"""ULIDs and UUIDs as values and as a port.

A ULID is 128 bits: 48 bits of wall-clock milliseconds, then 80 random bits. It travels as its
canonical text, 26 upper-case Crockford base-32 digits, whose order as text is the order of the
number, so ids compare, sort and print without conversion.

A manifest holds tens of thousands of them, so text and number are converted here by single calls of the
interpreter; the library checks text of unknown origin.
"""

from __future__ import annotations

import random
import uuid
from typing import NewType, Protocol

from ulid import ULID

Ulid = NewType("Ulid", str)

MAX_ULID_MS = (1 << 48) - 1
_RANDOM_BITS = 80
_HALF_BITS = 64
_HALF_MASK = (1 << _HALF_BITS) - 1
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TO_PYTHONS_DIGITS = str.maketrans(_DIGITS, "0123456789abcdefghijklmnopqrstuv")
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_PAIR_BITS = 10
_MAX_PAIR = (1 << _PAIR_BITS) - 1
_MAX_ULID = (1 << 128) - 1
_PAIR_SHIFTS = tuple(range(12 * _PAIR_BITS, -1, -_PAIR_BITS))


def ulid_from_int(value: int) -> Ulid:
    """Return the ULID of a 128-bit unsigned number."""
    if not 0 <= value <= _MAX_ULID:
        raise ValueError(f"{value} is not an unsigned number of 128 bits")
    return Ulid("".join([_PAIRS[value >> shift & _MAX_PAIR] for shift in _PAIR_SHIFTS]))


def ulid_to_int(value: Ulid) -> int:
    """Return the 128-bit unsigned number of a ULID."""
    return int(value.translate(_TO_PYTHONS_DIGITS), 32)


def ulid_from_halves(high: int, low: int) -> Ulid:
    """Return the ULID of two unsigned 64-bit halves."""
    return ulid_from_int(high << _HALF_BITS | low)


def ulid_to_halves(value: Ulid) -> tuple[int, int]:
    """Return the two unsigned 64-bit halves of a ULID, high first."""
    number = ulid_to_int(value)
    return number >> _HALF_BITS, number & _HALF_MASK


def ulid_ms(value: Ulid) -> int:
    """Return the wall-clock milliseconds in a ULID."""
    return ulid_to_int(value) >> _RANDOM_BITS


def parse_ulid(text: str) -> Ulid:
    """Parse `text` as a ULID, in canonical upper case. Raise `ValueError` if it is not one."""
    return Ulid(str(ULID.from_str(text.upper())))


class Ids(Protocol):
    """A source of new identifiers."""

    def ulid(self, at_ms: int) -> Ulid:
        """Return a new ULID whose time part is `at_ms`."""
        ...

    def uuid(self) -> uuid.UUID:
        """Return a new random UUID (version 4)."""
        ...


class RandomIds:
    """Ids from the system's randomness, or from a seeded generator."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng if rng is not None else random.SystemRandom()

    def ulid(self, at_ms: int) -> Ulid:
        if not 0 <= at_ms <= MAX_ULID_MS:
            raise ValueError(f"ULID time {at_ms} ms is outside 0..{MAX_ULID_MS}")
        return ulid_from_int(at_ms << _RANDOM_BITS | self._rng.getrandbits(_RANDOM_BITS))

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

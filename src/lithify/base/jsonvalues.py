"""Checks for untrusted JSON values, before they are used."""

from __future__ import annotations

from typing import Any

UNDECODABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that reading a malformed document can raise: a list instead of an object, too deep a
nesting, an unbounded number."""

_MAX_SHOWN = 1 << 64


def whole_number(value: Any, *, least: int = 0, most: int) -> int:
    """Return `value`. Raise `ValueError` unless it is an integer in the range; floats and booleans are
    not."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{shown_number(value)} is not a whole number from {least} to {most}")
    return value


def shown_number(value: object) -> str:
    """Return a number for a message. Python refuses to print an integer of thousands of digits."""
    if isinstance(value, int) and abs(value) > _MAX_SHOWN:
        return "a number of more than 64 bits"
    return repr(value)


def text(value: Any) -> str:
    """Return `value`. Raise `ValueError` unless it is a string without lone surrogates, which UTF-8 cannot
    encode."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} contains a lone surrogate, half a character") from None
    return value

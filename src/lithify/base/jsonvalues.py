"""Values in JSON that anybody may have written, each checked before it is used."""

from __future__ import annotations

from typing import Any

UNDECODABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What taking such a document apart raises where it is not what it should be, whatever is in it: a list for
an object, too deep a nesting, a number without bound."""


def whole_number(value: Any, *, least: int = 0, most: int) -> int:
    """`ValueError` for what is out of range; also for floats, infinite ones among them, and truth values."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is no whole number from {least} to {most}")
    return value


def text(value: Any) -> str:
    """`ValueError` for what is no text, or has half a character in it: that can be written nowhere."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} has half a character in it") from None
    return value


def name(value: Any) -> str:
    """`ValueError` for what is no text, or no name of one object: with a slash it names another place."""
    found = text(value)
    if not found or "/" in found or "\0" in found:
        raise ValueError(f"{found[:120]!r} is no name")
    return found

"""Durations in the notation of SlateDB's settings: `5s`, `100ms`, `1m 30s`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_SHOWN_CHARS = 40
_DURATION_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|m|h|d)")
FOREVER = timedelta.max
"""Written `forever`, in settings that allow it (`Wait`)."""
MAX_DURATION_MS = 100 * 365 * 86_400_000
"""A hundred years. Longer durations are mistakes, and exceed the limits of clocks and threads."""


def parse_duration(text: str) -> timedelta:
    """Parse `5s`, `100ms`, `1m 30s`. Raise `ValueError` for anything else."""
    milliseconds, position = 0.0, 0
    while position < len(text.rstrip()):
        part = _DURATION_PART.match(text, position)
        if part is None:
            break
        milliseconds += float(part[1]) * _UNITS_MS[part[2]]
        position = part.end()
    if not text.strip() or position < len(text.rstrip()):
        shown = text[:_MAX_SHOWN_CHARS]
        raise ValueError(f'{shown!r} is not a duration; write a number and a unit, such as "5s" or "100ms"')
    return timedelta(milliseconds=_bounded_ms(milliseconds, text))


def milliseconds_of(seconds: float) -> int:
    """Convert a user's number of seconds to whole milliseconds. Raise `ValueError` if it is negative, not
    finite, or over a hundred years."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{seconds} is not a valid number of seconds")
    seconds = float(seconds)  # small integers of numpy overflow
    return round(_bounded_ms(seconds * 1000, f"{seconds} s"))


def to_milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def _bounded_ms(milliseconds: float, given: object) -> float:
    if milliseconds > MAX_DURATION_MS:
        raise ValueError(f"{str(given)[:_MAX_SHOWN_CHARS]!r} is longer than a hundred years")
    return milliseconds


def format_duration(value: timedelta) -> str:
    """Format a duration in the largest unit that gives a whole number; `parse_duration` reads it back."""
    if value == FOREVER:
        return "forever"
    microseconds = value // timedelta(microseconds=1)
    for unit in ("d", "h", "m", "s", "ms"):
        unit_us = round(_UNITS_MS[unit] * 1000)
        if microseconds % unit_us == 0 and (microseconds or unit == "s"):
            return f"{microseconds // unit_us}{unit}"
    return f"{microseconds}us"


def _to_duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    shown = repr(value)[:_MAX_SHOWN_CHARS]
    raise ValueError(f'a duration needs a unit: write text such as "5s" or "100ms", not {shown}')


def _to_wait(value: object) -> timedelta:
    return FOREVER if value == "forever" else _to_duration(value)


def at_least(least: timedelta) -> AfterValidator:
    """Return a validator that refuses shorter durations."""

    def check(value: timedelta) -> timedelta:
        if value < least:
            raise ValueError(f"must be at least {format_duration(least)}")
        return value

    return AfterValidator(check)


def from_milliseconds(key: str, value: object) -> timedelta:
    """Convert the value of the setting `key`, in whole milliseconds."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}", text):
        raise ValueError(f"{key} must be a whole number of milliseconds, not {value!r}")
    return timedelta(milliseconds=_bounded_ms(int(text), text))


Duration = Annotated[timedelta, BeforeValidator(_to_duration)]
PositiveDuration = Annotated[Duration, at_least(timedelta(milliseconds=1))]
"""At least a millisecond."""
Wait = Annotated[timedelta, BeforeValidator(_to_wait)]
"""A duration, or `forever`."""

"""Times, durations and ages in options. `Refused` says what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime

from lithify.base.errors import Refused


def time_of(text: str) -> datetime:
    """Parse a time; without a zone, it is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text[:40]!r} is not a time; write it like 2025-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def seconds_of(text: str) -> float:
    """Parse a duration as in settings; return seconds."""
    from lithify.config.durations import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise Refused(str(error)) from None


def age_s(flag: str, text: str) -> float:
    """Parse a duration as in settings, or a number of seconds; return seconds."""
    from lithify.config.durations import milliseconds_of

    try:
        return milliseconds_of(float(text)) / 1000 if _is_number(text) else seconds_of(text)
    except (ValueError, Refused):
        shown = text[:40]
        raise Refused(
            f"{flag}: {shown!r} is not an age; write a number and a unit, such as 2h, or a number of seconds"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

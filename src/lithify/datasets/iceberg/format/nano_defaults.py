"""Default values of nanosecond timestamps in a table's metadata (Iceberg format: JSON single-value
serialization), which PyIceberg neither reads nor writes; importing this module adds them to it. They are
numbers of nanoseconds since the Unix epoch."""

from __future__ import annotations

import re

import numpy as np
from pyiceberg.conversions import from_json, to_json
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

_TEXT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?")
_UTC = ("+00:00", "Z")
_NANOSECONDS_PER_SECOND = 1_000_000_000


def _from_text(text: str) -> int:
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is no timestamp in nanoseconds")
    seconds, _, fraction = text.partition(".")
    whole = int(np.datetime64(seconds, "s").astype(np.int64))
    return whole * _NANOSECONDS_PER_SECOND + int(fraction.ljust(9, "0") or 0)


def _as_text(nanos: int) -> str:
    seconds, fraction = divmod(nanos, _NANOSECONDS_PER_SECOND)
    return f"{np.datetime64(seconds, 's')}.{fraction:09d}"


@from_json.register(TimestampNanoType)
def _(_kind: TimestampNanoType, value: str | int) -> int:
    return _from_text(value) if isinstance(value, str) else value


@from_json.register(TimestamptzNanoType)
def _(_kind: TimestamptzNanoType, value: str | int) -> int:
    if not isinstance(value, str):
        return value
    zone = next((zone for zone in _UTC if value.endswith(zone)), None)
    if zone is None:
        raise ValueError(f"{value[:40]!r} is no timestamp in UTC")
    return _from_text(value.removesuffix(zone))


@to_json.register(TimestampNanoType)
def _(_kind: TimestampNanoType, value: int) -> str:
    return _as_text(value)


@to_json.register(TimestamptzNanoType)
def _(_kind: TimestamptzNanoType, value: int) -> str:
    return f"{_as_text(value)}+00:00"

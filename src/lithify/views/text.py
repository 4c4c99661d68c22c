"""Numbers, times and ids as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

MAX_SHOWN = 500
"""Lines of one kind that people are shown: laying out a line takes a millisecond."""
FIRST_SHOWN = 20
"""Lines of one kind that fit on a first screen."""
SHORT_ID_CHARS = 6
_NAMED_IDS = re.compile(r"\b([Cc]ompaction |lithify-)([0-7][0-9A-HJKMNP-TV-Z]{25})\b")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(size_bytes: float) -> str:
    """Return bytes with a decimal unit: `1.4 GB`."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def count(number: int, noun: str, several: str = "") -> str:
    """Return a number and its noun: `1 file`, `1,280 files`. `several` is the plural unless it ends in -s."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def joined(texts: Sequence[str]) -> str:
    """Return texts as a list in a sentence: `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def rate(bytes_per_s: float | None) -> str:
    """Return bytes per second: `1.4 GB/s`; a dash if unknown."""
    return "–" if bytes_per_s is None else f"{size(bytes_per_s)}/s"


def moment(time_ms: int | None) -> str:
    """Return a time in milliseconds since 1970 as `2026-11-23 17:10:40Z`; a dash if unknown."""
    if time_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{time_ms} ms"


def short_id(compaction: str) -> str:
    """Return the end of a ULID: enough to distinguish the compactions of a dataset. Commands accept it
    too."""
    return compaction[-SHORT_ID_CHARS:]


def short_ids(text: str) -> str:
    """Shorten the ids of compactions in a text, also in names of workers."""
    return _NAMED_IDS.sub(lambda found: found[1] + short_id(found[2]), text)


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals; a dash if unknown."""
    return "–" if value is None else f"{value:.2f}"


def key(value: bytes | None, limit: int = 24) -> str:
    """Return a shortened key for a cell: as text if it is printable ASCII, else in hexadecimal."""
    if value is None:
        return "–"
    printable = all(0x20 < byte < 0x7F for byte in value)
    text = value.decode("ascii") if printable else "0x" + value.hex()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def segment(prefix: bytes) -> str:
    return key(prefix) if prefix else "root"


def duration(milliseconds: float | None) -> str:
    """Return a time span in at most two units: `3m 20s`; a dash if unknown."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms" if milliseconds else "0s"
    seconds = round(milliseconds / 1000)
    parts = []
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length_s)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def number(value: float) -> str:
    """Return a number without decimals from 10 on, below with two significant digits."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def print_rest(console: Console, count: int, what: str, most: int = MAX_SHOWN) -> None:
    """Print how many of `count` were not shown, if any, and the option that shows them."""
    if count > most:
        option = "--json" if most >= MAX_SHOWN else "--all"
        console.print(f"And {count - most:,} more {what}; {option} shows all.", highlight=False)

"""What there is to show, before anybody decides how: tables, lines, timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import TimelinePlan
from lithify.views.timeline import TABLE_WORDS, Words


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str = ""
    is_number: bool = False
    is_whole: bool = False
    """Whether its texts stay in one line, such as ids that people copy. Others go on in the next line where
    there is no room."""


class Alarm(str):
    """A text in a table that nobody must overlook."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain texts."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[str, ...]]
    of: str = "rows"
    """What the rows are, where there are too many to show."""
    sums: tuple[str, ...] = ()
    """A last row, set off from the others."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of plain text. What leads it stands out."""

    text: str
    lead: str = ""
    is_bad: bool = False
    """Whether what leads it is bad news."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of one kind, of which there can be very many."""

    texts: Sequence[Line]
    of: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Chunks of time, and what becomes of them."""

    plan: TimelinePlan
    calendar: Calendar
    words: Words = TABLE_WORDS


@dataclass(frozen=True, slots=True)
class LevelPart:
    """A part of a level, such as a file."""

    size_bytes: int
    role: str = "resting"
    """What becomes of it: `resting`, `planned` or `active`."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """What lies side by side, in its order."""

    name: str
    pieces: tuple[LevelPart, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Levels:
    """What lies above what, as a picture only: a table beside it says the same."""

    title: str
    levels: Sequence[Level]
    of: str
    """What the pieces are."""


Block = Table | Line | Lines | Timeline | Levels


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command shows."""

    document: Mapping[str, Any]
    """For scripts: a JSON value."""
    blocks: tuple[Block, ...]
    """The same for people."""


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns by their headings: with `>` before it, of numbers; with `=`, of texts that stay whole."""
    return tuple(
        Column(heading.lstrip(">="), is_number=heading.startswith(">"), is_whole=heading.startswith("="))
        for heading in headings
    )


def notes(texts: Sequence[str]) -> Lines:
    """What a planner says besides."""
    return Lines([Line(f"  {text}") for text in texts], "notes")

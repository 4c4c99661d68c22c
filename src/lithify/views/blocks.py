"""Neutral blocks that commands show, independent of the medium: tables, lines, timelines."""

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
    """Whether the texts stay in one line, such as ids that people copy. Other columns wrap."""


class Alarm(str):
    """A text in a table that must stand out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain texts."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[str, ...]]
    of: str = "rows"
    """The noun for the rows, for the note that not all are shown."""
    sums: tuple[str, ...] = ()
    """A last row of totals, set apart from the others."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of plain text after a highlighted `lead`."""

    text: str
    lead: str = ""
    is_bad: bool = False
    """Whether the lead is an error."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of one kind, possibly very many."""

    texts: Sequence[Line]
    of: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Chunks of time and their plan."""

    plan: TimelinePlan
    calendar: Calendar
    words: Words = TABLE_WORDS


@dataclass(frozen=True, slots=True)
class LevelPart:
    """A part of a level, such as a file."""

    size_bytes: int
    role: str = "resting"
    """`resting`, `planned` or `active`."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """Pieces that lie side by side, in their order."""

    name: str
    pieces: tuple[LevelPart, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels one above the other. Only pictures show them: a table next to them has the same facts."""

    title: str
    levels: Sequence[Level]
    of: str
    """The noun for the pieces."""


Block = Table | Line | Lines | Timeline | Levels


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of a command."""

    document: Mapping[str, Any]
    """The JSON value for scripts."""
    blocks: tuple[Block, ...]
    """The same facts for people."""
    verdict: str = ""
    """The outcome of a plan in one sentence, without its full stop."""

    def _repr_html_(self) -> str:
        """Return the output as a notebook shows it."""
        from lithify.views.drawing import html_of

        return html_of(self.blocks)


def columns(*headings: str) -> tuple[Column, ...]:
    """Return columns with these headings. A leading `>` marks a column of numbers, `=` one that does not
    wrap."""
    return tuple(
        Column(heading.lstrip(">="), is_number=heading.startswith(">"), is_whole=heading.startswith("="))
        for heading in headings
    )


def notes(texts: Sequence[str]) -> Lines:
    """Return a planner's notes as lines."""
    return Lines([Line(f"  {text}") for text in texts], "notes")

"""Tables that become lists on narrow terminals.

1. A table that fits is drawn as a table.
2. So is any table if the terminal has at least `LIST_BELOW` columns: its cells wrap.
3. Otherwise it becomes a list: each row's first cell, then a line with heading and text for each other cell
   that is not empty. Nothing is cut off; only bars, whose columns have no heading, are left out.

Without a terminal, width is unlimited (`consoles`).
"""

from __future__ import annotations

from itertools import zip_longest

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lithify.base.printable import printable

LIST_BELOW = 100
"""Columns of a terminal."""
_UNBOUNDED = 1_000_000
_NOTHING = ("", "–")

Cell = str | Text
"""Markup (`str`), or text that may be foreign (`Text`)."""


def cell(text: str, style: str = "") -> Text:
    """Return foreign text as a cell: without markup, in one line."""
    return Text(printable(text), style)


def print_table(console: Console, table: Table) -> None:
    """Print a table, or a list if there is no room for one. Foreign text in it must be `Text`; strings are
    markup."""
    if console.width >= LIST_BELOW or fits(console, table):
        console.print(table)
    else:
        _print_list(console, table)


def fits(console: Console, table: Table) -> bool:
    options = console.options.update(max_width=_UNBOUNDED)
    return Measurement.get(console, options, table).maximum <= console.width


def _print_list(console: Console, table: Table) -> None:
    if table.title:
        _print_line(console, _text(table.title, "italic"), 0)
    names = [_text(column.header).plain for column in table.columns]
    width = max(map(len, names[1:]), default=0)
    for cells in zip_longest(*(column.cells for column in table.columns), fillvalue=""):
        first, *others = map(_text, cells)
        first.stylize("bold")
        _print_line(console, first, 2)
        for name, text in zip(names[1:], others, strict=True):
            if (name or not width) and text.plain.strip() not in _NOTHING:  # a bar has no name
                _print_line(console, text, 4, f"{name:{width}}  " if width else "")
    if table.caption:
        _print_line(console, _text(table.caption, "dim"), 0)


def _text(cell: object, style: str = "") -> Text:
    if not isinstance(cell, Text):
        return Text.from_markup(printable(str(cell)), style=style, emoji=False)
    text = cell.copy()
    text.style = cell.style or style
    return text


def _print_line(console: Console, text: Text, indent: int, lead: str = "") -> None:
    """Print one text after `lead`; its further lines are indented as far."""
    before = " " * indent + lead
    room = max(console.width - len(before), 1)
    for number, line in enumerate(text.wrap(console, room, overflow="fold") or [Text()]):
        line.rstrip()
        console.print(Text(before if number == 0 else " " * len(before)) + line, soft_wrap=True)

"""Draws blocks on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from lithify.base.printable import printable
from lithify.views.blocks import Alarm, Block, Levels, Line, Lines, Table, Timeline
from lithify.views.consoles import recording_console
from lithify.views.tables import cell, print_table
from lithify.views.text import FIRST_SHOWN, MAX_SHOWN, print_rest
from lithify.views.timeline import print_timeline

HTML_COLUMNS = 120


def draw(console: Console, blocks: Iterable[Block], most: int = MAX_SHOWN) -> None:
    """Draw blocks one below the other; of those with more than `most` lines of one kind, the first part."""
    for block in blocks:
        match block:
            case Table():
                _draw_table(console, block, most)
            case Line():
                _draw_line(console, block)
            case Lines():
                for line in block.texts[:most]:
                    _draw_line(console, line)
                print_rest(console, len(block.texts), block.of, most)
            case Timeline():
                print_timeline(console, block.plan, block.calendar, block.words, most)
            case Levels():
                pass  # a table has the same facts


def html_of(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML, for notebooks: as they are drawn on a terminal of this width, of long ones the
    first part."""
    console = recording_console(HTML_COLUMNS)
    draw(console, blocks, FIRST_SHOWN)
    style = "line-height: 1.2; overflow-x: auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def _draw_table(console: Console, table: Table, most: int) -> None:
    has_headings = any(column.heading for column in table.columns)
    title = Text(printable(table.title)) if table.title else None
    drawn = rich_table.Table(title=title, title_justify="left", show_header=has_headings)
    for column in table.columns:
        drawn.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_whole,
        )
    for row in table.rows[:most]:
        drawn.add_row(*map(_cell, row))
    if table.sums:
        drawn.add_section()
        drawn.add_row(*map(cell, table.sums))
    print_table(console, drawn)
    print_rest(console, len(table.rows), table.of, most)


def _cell(text: str) -> Text:
    return cell(text, "red" if isinstance(text, Alarm) else "")


def _draw_line(console: Console, line: Line) -> None:
    colour = "red" if line.is_bad else "yellow"
    lead = (f"{printable(line.lead)} ", colour) if line.lead else ""
    console.print(Text.assemble(lead, printable(line.text)), highlight=False)

"""Consoles for standard output and standard error that escape foreign text.

Output that does not go to a terminal is neither wrapped nor cut, unless `COLUMNS` sets a width: `grep` and
`less` read lines.

Keys, paths and errors can hold any text. Visible characters are shown as they are (`:100:` is not an emoji);
all others are escaped (`lithify.base.printable`). A printed string is one line; several lines are printed one
by one (`print_text`). Of other renderables, only rich's own control characters pass. Therefore all output to
these two streams goes through this module.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from lithify.base.printable import indented, printable

UNBOUNDED_WIDTH = 100_000
"""Columns; more than any line has."""


class _SafeConsole(Console):
    """A console that escapes control characters in foreign text."""

    def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
        """Escape a string that is printed or stands in a cell."""
        return super().render_str(printable(text), *arguments, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape all other renderables; only rich writes newlines."""
        for segment in super().render(renderable, options):
            is_plain = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if is_plain else segment._replace(text=_without_controls(segment.text))


def standard_output() -> Console:
    return _SafeConsole(emoji=False, width=_width(sys.stdout))


def standard_error(*, quiet: bool = False) -> Console:
    return _SafeConsole(stderr=True, emoji=False, quiet=quiet, width=_width(sys.stderr))


def recording_console(width: int) -> Console:
    """Return a console that keeps its output, to export it."""
    return _SafeConsole(file=io.StringIO(), record=True, emoji=False, width=width, force_terminal=True)


def print_text(console: Console, text: str, *, lead: str = "", style: str = "") -> None:
    """Print `text`, which may have several lines. `lead` is Lithify's own text and may have a `style`. All
    lines but the first are indented, so that none can be mistaken for another message."""
    console.print(Text.assemble((lead, style), indented(text)), highlight=False, soft_wrap=True)


def write_line(text: str, *, at_once: bool = False) -> None:
    """Print a line for scripts, unwrapped."""
    print(printable(text), flush=at_once)


def write_document(text: str, *, at_once: bool = False) -> None:
    """Print a document for programs. It must not contain anything that has to be escaped."""
    print(text, flush=at_once)


def _without_controls(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def flush_output() -> OSError | None:
    """Flush standard output. If that fails, return the error and discard all output, or the interpreter would
    try again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # standard output may not be a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _width(stream: TextIO | None) -> int | None:
    """Return `None` if the terminal or `COLUMNS` sets the width. `stream` is `None` if it was closed before
    the process started."""
    is_terminal = stream is not None and stream.isatty()
    return None if is_terminal or os.environ.get("COLUMNS", "").isdigit() else UNBOUNDED_WIDTH

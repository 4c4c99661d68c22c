"""Where people read what there is to show: standard output and standard error.

What goes to no terminal is neither wrapped nor cut, unless `COLUMNS` says how wide it is to be: programs such
as `grep` and `less` read it by lines.

Texts come from keys, paths and errors of anybody's. What can be seen is shown as it is (`:100:` in one is no
picture), everything else escaped (`lithify.base.printable`), whoever prints it: a string is one line, so
several lines are printed one by one (`print_text`), and from whatever else is drawn no control character
reaches the terminal but rich's own. So nothing writes to standard output or standard error except through
here.
"""

from __future__ import annotations

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
"""Columns: more than any line has."""


class _SafeConsole(Console):
    """A console that shows foreign text as text."""

    def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
        """A string that is printed, or stands in a cell."""
        return super().render_str(printable(text), *arguments, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is drawn of anything; a new line is rich's."""
        for segment in super().render(renderable, options):
            is_plain = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if is_plain else segment._replace(text=_without_controls(segment.text))


def standard_output() -> Console:
    """Where results go."""
    return _SafeConsole(emoji=False, width=_width(sys.stdout))


def standard_error(*, quiet: bool = False) -> Console:
    """Where everything else is said."""
    return _SafeConsole(stderr=True, emoji=False, quiet=quiet, width=_width(sys.stderr))


def print_text(console: Console, text: str, *, lead: str = "", style: str = "") -> None:
    """A text that may have several lines, as it is: what leads it is ours and may have a `style`. All its
    lines but the first are set in, so that none can be taken for another text."""
    console.print(Text.assemble((lead, style), indented(text)), highlight=False, soft_wrap=True)


def write_line(text: str, *, at_once: bool = False) -> None:
    """A line of standard output for scripts, as wide as it is."""
    print(printable(text), flush=at_once)


def write_document(text: str, *, at_once: bool = False) -> None:
    """A document of standard output for programs, which has nothing in it that has to be escaped."""
    print(text, flush=at_once)


def _without_controls(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def flush_output() -> OSError | None:
    """Write what was said on standard output so far. Why that cannot be: then it is dropped, and so is what
    follows, or the interpreter would try again as it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _width(stream: TextIO | None) -> int | None:
    """`None` where the terminal or `COLUMNS` says it. A stream that was closed before is none."""
    is_terminal = stream is not None and stream.isatty()
    return None if is_terminal or os.environ.get("COLUMNS", "").isdigit() else UNBOUNDED_WIDTH

"""Where people read what there is to show: standard output and standard error.

What goes to no terminal is neither wrapped nor cut, unless `COLUMNS` says how wide it is to be: programs such
as `grep` and `less` read it by lines.

Texts come from keys, paths and errors of anybody's. They are shown as they are: `:100:` in one is no picture.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from rich.console import Console

UNBOUNDED_WIDTH = 100_000
"""Columns: more than any line has."""


def standard_output() -> Console:
    """Where results go."""
    return Console(emoji=False, width=_width(sys.stdout))


def standard_error(*, quiet: bool = False) -> Console:
    """Where everything else is said."""
    return Console(stderr=True, emoji=False, quiet=quiet, width=_width(sys.stderr))


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

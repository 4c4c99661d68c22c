"""Where people read what there is to show: standard output and standard error.

Texts come from keys, paths and errors of anybody's. They are shown as they are: `:100:` in one is no picture.
"""

from __future__ import annotations

from rich.console import Console


def standard_output() -> Console:
    """Where results go."""
    return Console(emoji=False)


def standard_error(*, quiet: bool = False) -> Console:
    """Where everything else is said."""
    return Console(stderr=True, emoji=False, quiet=quiet)

"""The help of commands: a first screen, options of one kind of dataset apart, and no text cut off. Imported
only to show help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from typer import rich_utils

from lithify.base.errors import Refused
from lithify.cli.options.of_kinds import panel_of
from lithify.datasets.registry import Registered, all_registered, registered_for

FIRST = ("demo", "plan", "compact", "run", "status", "web", "doctor")
"""The commands of the first screen."""
MORE = "lithify --help lists all commands; lithify COMMAND --help explains one."


class _FoldingTable(Table):
    """A table that folds long words, such as URLs and names of settings. Typer cuts them off."""

    def add_row(self, *cells: Any, **given: Any) -> None:
        super().add_row(*cells, **given)
        for column in self.columns:
            column.overflow = "fold"


def _one_text(items: Iterable[RenderableType]) -> RenderableType:
    """Return the parts of an option's help as one text, which a table can fold; `Columns` cut off words."""
    parts = list(items)
    texts = [part for part in parts if isinstance(part, Text)]
    return Text(" ").join(texts) if len(texts) == len(parts) else Columns(parts)


def prepare(group: Any, context: Any, args: Sequence[str]) -> None:
    """Adapt the commands of a group for a display of help. If the arguments have a URL, options of other
    kinds are hidden. Flags have no placeholder of a value."""
    vars(rich_utils).update(Table=_FoldingTable, Columns=_one_text)
    kinds = {kind.plural: kind for word in args[1:] if (kind := _kind_of(word)) is not None}
    panels = {panel_of(kind): not kinds or kind.plural in kinds for kind in all_registered()}
    for command in _commands(group):
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):
                option.metavar = ""
            option.hidden = not panels.get(
                getattr(option, "rich_help_panel", None) or "", not _is_hidden(option)
            )


def _is_hidden(option: Any) -> bool:
    return bool(getattr(option, "hidden", False))


def _commands(group: Any) -> Iterator[Any]:
    yield group
    for command in getattr(group, "commands", {}).values():
        yield from _commands(command)


def _kind_of(word: str) -> Registered | None:
    """Return the kind of the dataset that an argument names. A word without a slash may be anything."""
    if word.startswith("-") or "/" not in word:
        return None
    try:
        return registered_for(word)
    except Refused:
        return None

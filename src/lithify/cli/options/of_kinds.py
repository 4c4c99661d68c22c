"""Options that only one kind of dataset has; the kinds define them.

The dataset's kind, and so which options make sense, is only known from its URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import Refused
from lithify.datasets.options import CommandArgs, KindOption
from lithify.datasets.registry import Registered, all_registered, registered_for

OptionOfKind = tuple[Registered, KindOption]


@dataclass(frozen=True, slots=True)
class Given:
    """Options of kinds that were given to one command."""

    values: Mapping[str, Any]
    """By name; options that were not given are absent."""
    options: Sequence[OptionOfKind]

    @classmethod
    def taken_from(cls, arguments: dict[str, Any], options: Sequence[OptionOfKind]) -> Given:
        """Remove the values of `options` from the arguments of a command, and return them."""
        values = {option.name: arguments.pop(option.name) for _, option in options}
        return cls({name: value for name, value in values.items() if _was_given(value)}, options)

    def check(self, *urls: str) -> None:
        """Raise `Refused` if an option belongs to a kind of which there is no dataset at `urls`."""
        kinds = [registered_for(url) for url in urls]
        wrong = [(owner, option) for owner, option in self.options if option.name in self.values]
        wrong = [(owner, option) for owner, option in wrong if owner not in kinds]
        if wrong:
            flags = ", ".join(option.flag for _, option in wrong)
            raise Refused(f"{urls[0]} is a {kinds[0].noun}, and {flags} is for {wrong[0][0].plural} only")

    @property
    def settings(self) -> dict[str, tuple[str, object]]:
        """Options that stand for settings: flag and value by setting."""
        return {
            option.setting: (option.flag, self.values[option.name])
            for _, option in self.options
            if option.setting is not None and option.name in self.values
        }

    def args(self, *, full: bool = False) -> CommandArgs:
        """Return the values of the other options."""
        names = {option.name for _, option in self.options if option.setting is None}
        return CommandArgs(full, {name: value for name, value in self.values.items() if name in names})


def panel_of(kind: Registered) -> str:
    """Return the title, in help, of the options that only this kind has."""
    return f"Options for {kind.plural}"


def options_of_kinds(command: str) -> list[OptionOfKind]:
    """Return the options that kinds define for a command."""
    return [
        (kind, option)
        for kind in all_registered()
        for option in kind.load_options().options
        if command in option.commands
    ]


def _was_given(value: object) -> bool:
    return value is not None and value is not False and value != []

"""Options that only one kind of dataset has; the kinds define them.

A command with such options is made with `takes_kind_options` and gets those that were given as one value. The
dataset's kind, and so which options make sense, is only known from its URL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from lithify.base.errors import Refused
from lithify.datasets.options import CommandArgs, KindOption
from lithify.datasets.registry import Registered, all_registered, registered_for


@dataclass(frozen=True, slots=True)
class Given:
    """Options of kinds that were given to one command."""

    values: Mapping[str, Any]
    """By name; options that were not given are absent."""
    options: Sequence[tuple[Registered, KindOption]]

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


NOTHING = Given({}, ())


def takes_kind_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the kinds' options for a command to its function, as the parameter `given`."""
    options = [
        (kind, option)
        for kind in all_registered()
        for option in kind.load_options().options
        if command in option.commands
    ]
    return lambda function: with_options(function, options)


def with_options(
    function: Callable[..., None], options: Sequence[tuple[Registered, KindOption]], **others: Any
) -> Callable[..., None]:
    """Return `function` as a command with these options added. `others` replace annotations of its own
    parameters."""

    def run(**arguments: Any) -> None:
        values = {option.name: arguments.pop(option.name) for _, option in options}
        found = {name: value for name, value in values.items() if _was_given(value)}
        function(**arguments, given=Given(found, options))

    hints = get_type_hints(function, include_extras=True) | others
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "given"
    ]
    added = [_parameter(option) for _, option in options]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    return run


def _was_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def _parameter(option: KindOption) -> inspect.Parameter:
    declared = typer.Option(option.flag, metavar=option.metavar, help=option.help, show_default=False)
    kind = option.type if option.type is bool else option.type | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.type is bool else None,
        annotation=Annotated[kind, declared],
    )

"""The decorator of commands. It adds the options that commands share and those that only one kind of dataset
has; a command gets their values as one `CommandContext`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from lithify.cli.options.common import (
    COMMON_OPTIONS,
    CONFIG,
    JSON,
    LOG_FORMAT,
    SET,
    STORE_OPTION,
    CommonOption,
)
from lithify.cli.options.of_kinds import Given, OptionOfKind, panel_of
from lithify.cli.options.settings import load_settings, set_up_logs_of
from lithify.cli.running import errors, print_shown
from lithify.datasets.options import KindOption

if TYPE_CHECKING:
    from lithify.api.client import Dataset
    from lithify.api.fleets import Fleet
    from lithify.config.loading import Loaded
    from lithify.config.model import Config
    from lithify.views.blocks import Shown


@dataclass(frozen=True)
class CommandContext:
    """The values of the options that `command` has added."""

    as_json: bool
    given: Given
    """The kinds' options."""
    urls: Sequence[str]
    """The datasets that the kinds' options are for."""
    config_file: Path | None
    sets: list[str] | None
    flags: Mapping[str, tuple[str, object]]
    """Options that stand for settings: flag and value by setting."""
    log_level: str
    """The least level shown if the settings have none; `lithify --verbose` wins over both."""

    @cached_property
    def loaded(self) -> Loaded:
        """The effective settings with their origins. Raises `Refused` for wrong settings, and for an option
        of another kind than that of the datasets."""
        self.given.check(*self.urls)
        return load_settings(self.config_file, self.sets, self.flags)

    @cached_property
    def config(self) -> Config:
        """The effective settings. The first access also sets up logs accordingly."""
        set_up_logs_of(self.loaded, self.log_level)
        return self.loaded.config

    def open(self, url: str) -> Dataset:
        from lithify.api import client

        return client.open(url, settings=self.config)

    def fleet(self, url: str) -> Fleet:
        from lithify.api.fleets import Fleet

        return Fleet(url, settings=self.config)

    def show(self, shown: Shown, most: int | None = None) -> None:
        """Print a command's output, for programs or for people; for people at most `most` lines of one
        kind."""
        print_shown(shown, self.as_json, most)


def command(
    *options: CommonOption,
    of_kinds: Sequence[OptionOfKind] = (),
    is_service: bool = False,
    stopped: str = "Stopped.",
    before: Mapping[str, Sequence[CommonOption]] = MappingProxyType({}),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a function that takes a `CommandContext` and the command's own parameters.

    Every command has --config, --set and --store-option; services, which run until stopped, also have
    --log-format, all others --json. `options` and `of_kinds` are further ones. The help shows them last,
    except those to show `before` one of the command's own parameters. `stopped` is the message on an
    interrupt.
    """
    placed = {option for some in before.values() for option in some}
    added = {CONFIG, SET, STORE_OPTION, LOG_FORMAT if is_service else JSON, *options, *placed}
    common = [option for option in COMMON_OPTIONS if option in added]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            values = {option: arguments.pop(option.name) for option in common}
            given = Given.taken_from(arguments, of_kinds)
            flags = {o.setting: (o.flag, value) for o, value in values.items() if o.setting is not None}
            context = CommandContext(
                as_json=values.get(JSON, False),
                given=given,
                urls=(arguments.get("urls") or [arguments["url"]]) if of_kinds else (),
                config_file=values[CONFIG],
                sets=values[SET],
                flags=flags | given.settings,
                log_level="info" if is_service else "warning",
            )
            with errors(context.as_json, stopped=stopped):
                function(context, **arguments)

        parameters: list[inspect.Parameter] = []
        for own in _own_parameters(function):
            parameters += [*map(_parameter, before.get(own.name, ())), own]
        parameters += [_parameter(option) for option in common if option not in placed]
        parameters += [_parameter(option, panel_of(kind)) for kind, option in of_kinds]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _own_parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters after the context."""
    hints = get_type_hints(function, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in own]


def _parameter(option: CommonOption | KindOption, panel: str | None = None) -> inspect.Parameter:
    declared = typer.Option(
        option.flag,
        metavar=option.metavar,
        help=option.help,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=option.complete if isinstance(option, CommonOption) else None,
    )
    kind = option.type if option.type is bool else option.type | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=False if option.type is bool else None,
        annotation=Annotated[kind, declared],
    )

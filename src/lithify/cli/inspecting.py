"""`lithify inspect`: the parts of a dataset. Each kind defines which parts it has."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.options.of_kinds import Given, with_options
from lithify.cli.options.settings import settings
from lithify.cli.running import errors, print_shown
from lithify.datasets.options import Inspection
from lithify.datasets.registry import Registered, all_registered, registered_for

inspect_app = typer.Typer(help="Show what a database or a log consists of.", no_args_is_help=True)


def _add(kind: Registered, inspection: Inspection) -> None:
    def show(
        url: Url,
        as_json: AsJson = False,
        config: ConfigFile = None,
        sets: Sets = None,
        store_option: StoreOptions = None,
        *,
        given: Given,
    ) -> None:
        with errors(as_json):
            if registered_for(url) != kind:
                noun = registered_for(url).noun
                raise Refused(f"{url}: this command works on {kind.plural} only, and this is a {noun}")
            effective = settings(config, sets, store_option=store_option)
            print_shown(kind.load().inspect(url, effective, inspection.part, given.args()), as_json)

    show.__doc__ = inspection.help
    others = {}
    if inspection.url_help is not None:
        argument = typer.Argument(metavar="URL", help=inspection.url_help, show_default=False)
        others["url"] = Annotated[str, argument]
    command = with_options(show, [(kind, option) for option in inspection.options], **others)
    inspect_app.command(inspection.part)(command)


for _kind in all_registered():
    for _inspection in _kind.load_options().inspections:
        _add(_kind, _inspection)

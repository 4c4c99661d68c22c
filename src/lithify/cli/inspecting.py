"""`lithify inspect`: the parts of a dataset. Each kind defines which parts it has."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.datasets.options import Inspection
from lithify.datasets.registry import Registered, all_registered, registered_for

inspect_app = typer.Typer(help="Show the parts of a database or a log.", no_args_is_help=True)


def _add(kind: Registered, inspection: Inspection) -> None:
    def show(context: CommandContext, url: Url) -> None:
        if registered_for(url) != kind:
            noun = registered_for(url).noun
            raise Refused(f"{url}: this command works on {kind.plural} only, and this is a {noun}")
        context.show(kind.load().inspect(url, context.config, inspection.part, context.given.args()))

    show.__doc__ = inspection.help
    if inspection.url_help is not None:
        argument = typer.Argument(metavar="URL", help=inspection.url_help, show_default=False)
        show.__annotations__["url"] = Annotated[str, argument]
    decorated = command(of_kinds=[(kind, option) for option in inspection.options])(show)
    inspect_app.command(inspection.part)(decorated)


for _kind in all_registered():
    for _inspection in _kind.load_options().inspections:
        _add(_kind, _inspection)

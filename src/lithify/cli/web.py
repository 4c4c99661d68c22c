"""`lithify web`: the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import PORT


@command(PORT, is_service=True)
def web(
    context: CommandContext,
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Databases and tables to show.", show_default=False),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(metavar="FLEET", help="Show a fleet and all its databases and tables."),
    ] = None,
) -> None:
    """Show databases, tables and fleets in a browser, and as JSON, until stopped.

    Shows waiting and running compactions, their progress, history, failures and plans; datasets are read only
    while a page is open. With a token (LITHIFY_WEB__TOKEN) it can also retry, cancel and submit compactions,
    and listen on other addresses. Needs the extra `web` (pip install).

    Examples:

        lithify web s3://bucket/my-db iceberg://catalog/namespace.table

        lithify web --fleet s3://bucket/fleet --port 8080
    """
    config = context.config
    if not urls and fleet is None:
        raise Refused("name at least one dataset, or a fleet (--fleet)")
    from lithify.api import wiring
    from lithify.web.serving import served

    with wiring.stop_on_signals() as stop, served(urls or [], fleet, config):
        stop.wait()

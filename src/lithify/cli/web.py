"""`lithify web`: the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import ConfigFile, LogFormat, Sets, StoreOptions
from lithify.cli.options.of_kinds import Given, takes_kind_options
from lithify.cli.options.settings import settings
from lithify.cli.running import errors


@takes_kind_options("web")
def web(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Databases and tables to show.", show_default=False),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(metavar="FLEET", help="Show a fleet and all its databases and tables."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the loopback address (web.host changes that); default: 8090."),
    ] = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Show databases, tables and fleets in a browser, and as JSON, until stopped.

    What waits and runs, how far it is, history, failures and plans; read only while somebody looks. With a
    token (LITHIFY_WEB__TOKEN) it also retries, cancels and submits, and may listen on other addresses.
    It needs the extra `web` (pip install).

    Examples:

        lithify web s3://bucket/my-db iceberg://catalog/namespace.table

        lithify web --fleet s3://bucket/fleet --port 8080
    """
    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            port=port,
            log_format=log_format,
            store_option=store_option,
        )
        given.check(*(urls or ()))
        if not urls and fleet is None:
            raise Refused("name at least one dataset, or a fleet (--fleet)")
        from lithify.api import wiring
        from lithify.web.serving import served

        with wiring.stop_on_signals() as stop, served(urls or [], fleet, effective):
            stop.wait()

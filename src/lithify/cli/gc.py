"""`lithify gc`: says what a database does not need any more, and deletes it when told to."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from lithify.cli.kind_options import Given, takes_kind_options
from lithify.cli.options import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.running import errors, print_json
from lithify.cli.settings import settings


@takes_kind_options("gc")
def gc(
    url: Url,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; without this, only say so.")] = False,
    min_age: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Keep what is younger; default: 300, of a table 3600.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Say what a database or table does not need any more, and with --delete, delete it.

    Safe while it is open and is being compacted. Of a table, only what Lithify wrote is looked at.

    Examples:

        lithify gc s3://bucket/my-db

        lithify gc --delete --min-age 3600 s3://bucket/my-db
    """
    with errors(as_json):
        given.check(url)
        effective = settings(config, sets, given, store_option=store_option)
        from lithify import client
        from lithify.views.drawing import draw

        with client.open(url, settings=effective) as dataset:
            shown = dataset.collect_garbage(delete=delete, min_age_s=min_age, **given.asked().given)
        if as_json:
            print_json(shown.document)
        else:
            draw(Console(), shown.blocks)

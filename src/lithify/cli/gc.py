"""`lithify gc`: lists the garbage of a dataset, and deletes it with `--delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.of_kinds import options_of_kinds
from lithify.cli.options.values import age_s


@command(of_kinds=options_of_kinds("gc"))
def gc(
    context: CommandContext,
    url: Url,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the garbage; without this, only list it.")
    ] = False,
    min_age: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Keep files younger than this, such as 2h, or a number of seconds; "
            "default: from the settings (5m; for tables and logs 1h).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the garbage of a database, table or log, and with --delete, delete it.

    Safe while the dataset is open and being compacted. For a table, only files written by Lithify are
    checked.

    Examples:

        lithify gc s3://bucket/my-db

        lithify gc --delete --min-age 2h s3://bucket/my-db
    """
    min_age_s = None if min_age is None else age_s("--min-age", min_age)
    with context.open(url) as dataset:
        shown = dataset.collect_garbage(delete=delete, min_age_s=min_age_s, **context.given.args().given)
    context.show(shown)

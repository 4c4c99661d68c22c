"""`lithify remove-orphans`: lists files under a table's location that no metadata names, and deletes them
with `--delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.values import time_of
from lithify.views.consoles import standard_error


@command()
def remove_orphans(
    context: CommandContext,
    url: Url,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files; without this, only list them.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only files written before this time, such as 2025-01-31T12:00:00Z; default: three days "
            "ago, and at least one day ago.",
            show_default=False,
        ),
    ] = None,
    max_percent: Annotated[
        int | None,
        typer.Option(
            metavar="PERCENT",
            help="Delete nothing if orphans are more than this percentage of all files there; default: 50.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List files under a table's location that the table does not refer to, and with --delete, delete them.

    Writers that died before they committed leave such files behind. Files that a snapshot, branch or tag
    needs, and files that wait to be deleted after an expiry, are not orphans. Nothing is deleted if another
    table may have files in the same place. Metadata files, hidden files and files that Lithify wrote are kept
    (see `lithify gc`).

    Examples:

        lithify remove-orphans iceberg://catalog/namespace.table

        lithify remove-orphans --delete --older-than 2025-01-31 iceberg://catalog/namespace.table
    """
    before = None if older_than is None else time_of(older_than)
    progress = standard_error(quiet=context.as_json)
    with context.open(url) as dataset:
        shown = dataset.remove_orphans(
            delete=delete,
            older_than=before,
            max_percent=max_percent,
            tell=lambda text: progress.print(text, highlight=False, markup=False),
        )
    context.show(shown)

"""`lithify rewrite-equality-deletes`: deletes rows by position that a table deletes by equal keys."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url


@command()
def rewrite_equality_deletes(
    context: CommandContext,
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
) -> None:
    """Delete rows by position that a table deletes by equal keys.

    Streaming writers delete rows by their keys (equality delete files), and every reader compares the keys of
    all older rows. This command finds these rows once, deletes them by position, and removes the equality
    delete files. Rows do not change. Only key columns are read, in this process. Exit code 1 if commits of
    other writers kept preventing its own.

    Examples:

        lithify rewrite-equality-deletes --dry-run iceberg://catalog/namespace.table

        lithify rewrite-equality-deletes iceberg://catalog/namespace.table
    """
    with context.open(url) as dataset:
        found = dataset.rewrite_equality_deletes(dry_run=dry_run)
    context.show(found.shown)
    if not found.is_done:
        raise typer.Exit(1)

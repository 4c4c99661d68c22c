"""`lithify rewrite-position-delete-files`: drops and merges a table's delete files."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url


@command()
def rewrite_position_delete_files(
    context: CommandContext,
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
) -> None:
    """Drop a table's dangling delete files, and merge small position delete files.

    Rows do not change. Deletes that a running compaction applies are left to it. Counts are those of
    Iceberg's procedure rewrite_position_delete_files. Exit code 1 if commits of other writers kept preventing
    its own.

    Examples:

        lithify rewrite-position-delete-files --dry-run iceberg://catalog/namespace.table

        lithify rewrite-position-delete-files iceberg://catalog/namespace.table
    """
    with context.open(url) as dataset:
        found = dataset.rewrite_position_delete_files(dry_run=dry_run)
    context.show(found.shown)
    if not found.is_done:
        raise typer.Exit(1)

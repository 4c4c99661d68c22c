"""`lithify rewrite-manifests`: merges and sorts a table's manifests."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url


@command()
def rewrite_manifests(
    context: CommandContext,
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
) -> None:
    """Merge small manifests of a table, and sort their entries, so that queries open few of them.

    Manifests that are small, badly clustered or full of deleted entries are rewritten, by partition and time,
    to the table's commit.manifest.target-size-bytes. Rows, files and their sequence numbers do not change.
    Counts are those of Iceberg's procedure rewrite_manifests. Exit code 1 if commits of other writers kept
    preventing its own.

    Examples:

        lithify rewrite-manifests --dry-run iceberg://catalog/namespace.table

        lithify rewrite-manifests iceberg://catalog/namespace.table
    """
    with context.open(url) as dataset:
        found = dataset.rewrite_manifests(dry_run=dry_run)
    context.show(found.shown)
    if not found.is_done:
        raise typer.Exit(1)

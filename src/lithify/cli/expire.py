"""`lithify expire`: removes history of a dataset that is not needed any more."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.values import seconds_of, time_of


@command()
def expire(
    context: CommandContext,
    url: Url,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Expire snapshots older than this, such as 2025-01-31T12:00:00Z; default: from the table's "
            "properties, else 5 days ago.",
            show_default=False,
        ),
    ] = None,
    retain_last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Keep at least the newest N snapshots; default: from the table's properties, else 1.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long to keep files that no snapshot refers to any more; default: 1h.",
            show_default=False,
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Expire although holds or readers that the table records are lost, and respect only those "
            "that exist now.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
) -> None:
    """Expire snapshots of a table that are neither retained by its policy nor needed, and delete their files.

    Snapshots that holds, registered readers, branches, tags or running compactions need are kept. Files are
    deleted by a later run, a grace period after their snapshots. Options and counts are those of Iceberg's
    procedure expire_snapshots. Exit code 1 if something prevents the expiry, such as a reader whose
    checkpoint cannot be read, or holds that are lost because another program removed Lithify's folder.

    Examples:

        lithify expire --dry-run iceberg://catalog/namespace.table

        lithify expire --retain-last 10 iceberg://catalog/namespace.table
    """
    before = None if older_than is None else time_of(older_than)
    grace_s = None if grace is None else seconds_of(grace)
    with context.open(url) as dataset:
        found = dataset.expire(
            older_than=before,
            retain_last=retain_last,
            grace_s=grace_s,
            dry_run=dry_run,
            accept_loss=accept_loss,
        )
    context.show(found.shown)
    if not found.is_done:
        raise typer.Exit(1)

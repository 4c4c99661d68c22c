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
            help="Expire what is older, such as 2025-01-31T12:00:00Z; default: as the table's properties "
            "say, else 5 days.",
            show_default=False,
        ),
    ] = None,
    retain_last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Keep so many of the newest; default: as the table's properties say, else 1.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long files stay that nothing names any more; default: 1h.",
            show_default=False,
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Expire although holds or readers that the table records are lost: those that are there now "
            "are all there are.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Expire snapshots of a table that its policy lets go and nobody needs, and delete their files.

    Nothing is taken from holds, from registered readers, from branches and tags, or from compactions under
    way. Files go a grace period after their snapshots, by a later run. Options and counts are those of
    Iceberg's procedure expire_snapshots. Exit code 1 when something stands in the way, such as a reader whose
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

"""`lithify maintain`: one pass of all maintenance of a table."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import MASTER, SPARK_CONF, TakeOver, Url
from lithify.cli.running import GOES_ON


@command(MASTER, SPARK_CONF, stopped=GOES_ON)
def maintain(
    context: CommandContext,
    url: Url,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Leave out this part: data, deletes, manifests, expiry or files. May be repeated. The "
            "table's property lithify.skip-parts leaves parts out as well.",
        ),
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Do once all that keeps a table in shape: compact its data, expire its history, delete leftovers.

    Data is compacted as `lithify compact` does it. Then delete files are dropped and merged (`lithify
    rewrite-position-delete-files`) and manifests merged and sorted (`lithify rewrite-manifests`). Snapshots
    that nobody needs are expired, and files of those that were expired an hour ago are deleted (`lithify
    expire`), and what Lithify itself left behind (`lithify gc`). What other writers left behind is for
    `lithify remove-orphans`. A part that is refused or fails says why, and the others are done. The exit code
    is that of the first such part, or 1 when a compaction failed or something stands in the way of the
    expiry.

    Examples:

        lithify maintain iceberg://catalog/namespace.table

        lithify maintain --skip expiry iceberg://catalog/namespace.table
    """
    from lithify.cli.once import maintain_once

    maintain_once(context, url, skip or (), take_over=take_over)

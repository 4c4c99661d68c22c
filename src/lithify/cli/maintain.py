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
            help="Skip this part: data, deletes, manifests, expiry or files. May be repeated. The "
            "table's property lithify.skip-parts skips parts as well.",
        ),
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Run all maintenance of a table once: compact data, expire history, delete garbage.

    Compacts data (as `lithify compact`), rewrites equality deletes (`lithify rewrite-equality-deletes`),
    drops and merges delete files (`lithify rewrite-position-delete-files`), merges and sorts manifests
    (`lithify rewrite-manifests`), expires snapshots that are not needed and deletes files of those expired an
    hour ago (`lithify expire`), and deletes Lithify's own garbage (`lithify gc`). Files left behind by other
    writers are deleted by `lithify remove-orphans` only. If a part is refused or fails, the reason is shown
    and the other parts are run. The exit code is that of the first such part, or 1 if a compaction failed or
    something prevents the expiry.

    Examples:

        lithify maintain iceberg://catalog/namespace.table

        lithify maintain --skip expiry iceberg://catalog/namespace.table
    """
    from lithify.cli.once import maintain_once

    maintain_once(context, url, skip or (), take_over=take_over)

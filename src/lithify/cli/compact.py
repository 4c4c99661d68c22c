"""`lithify plan` and `lithify compact`: plan the compactions of a dataset, and run them once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import JSON, MASTER, SPARK_CONF, All, Full, Png, TakeOver, Url
from lithify.cli.options.of_kinds import options_of_kinds
from lithify.cli.running import GOES_ON
from lithify.datasets.options import CommandArgs
from lithify.views.text import FIRST_SHOWN


@command(of_kinds=options_of_kinds("plan"), before={"png": [JSON]})
def plan(
    context: CommandContext, url: Url, full: Full = False, everything: All = False, png: Png = None
) -> None:
    """Show what would be compacted, and why: the outcome, then the most urgent parts. Writes nothing.

    Examples:

        lithify plan /data/my-db

        lithify plan --full --json s3://bucket/my-db

        lithify plan --picture timeline.svg iceberg://catalog/namespace.table

        lithify plan --set slatedb.segments.pattern=events/%Y-%m-%d/ /data/my-db
    """
    _plan(context, url, context.given.args(full=full), png, sys.maxsize if everything else FIRST_SHOWN)


def _plan(
    context: CommandContext, url: str, args: CommandArgs, png: Path | None = None, most: int = FIRST_SHOWN
) -> None:
    with context.open(url) as dataset:
        planned = dataset.plan(full=args.full, **args.given)
    if png is not None:
        from lithify.views.timeline_picture import save_picture

        if planned.timeline is None:
            raise Refused(
                f"{url}: --picture draws a timeline, but the parts of this dataset have no known times; omit "
                "it, or for a database, set slatedb.segments.pattern"
            )
        save_picture(planned.timeline.plan, planned.timeline.calendar, png, planned.timeline.words)
    context.show(planned.shown, most)


@command(
    SPARK_CONF,
    of_kinds=options_of_kinds("compact"),
    stopped=GOES_ON,
    before={"dry_run": [MASTER]},
)
def compact(
    context: CommandContext,
    url: Url,
    full: Full = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as `lithify plan`.")] = False,
    take_over: TakeOver = False,
) -> None:
    """Compact a database, table or log once: plan, rewrite on Spark, commit, until nothing is left to do.

    A database must not have a coordinator of its own: the program that writes to it must have opened it with
    compactor_options = null, or be closed. Readers and writers may continue meanwhile.

    Examples:

        lithify compact /data/my-db

        lithify compact --full --master spark://host:7077 s3://bucket/my-db

        lithify compact iceberg://catalog/namespace.table
    """
    args = context.given.args(full=full)
    if dry_run:
        _plan(context, url, args)
        return
    from lithify.cli.once import compact_once

    compact_once(context, url, args, take_over=take_over)

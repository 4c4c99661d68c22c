"""`lithify history`: commits with their reasons and costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.values import seconds_of, time_of

DEFAULT_LAST = 50


@command()
def history(
    context: CommandContext,
    url: Url,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only commits since this time, 2025-01-31T12:00:00Z, or within this duration, such as 7d.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Only the newest N commits; default: {DEFAULT_LAST}, with --since all.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show commits: when, why, how many bytes and rows, and how long each took. Writes nothing.

    Each commit leaves a small record next to the database, table or log. Garbage collection keeps it, and it
    is deleted by age (service.keep_history). A commit whose process was killed immediately has no record.

    Examples:

        lithify history s3://bucket/my-db

        lithify history --since 7d --json iceberg://catalog/namespace.table
    """
    from_when = None if since is None else _time_of(since)
    with context.open(url) as dataset:
        most = DEFAULT_LAST if last is None and since is None else last
        context.show(dataset.show_history(last=most, since=from_when))


def _time_of(text: str) -> datetime:
    """Parse a time, or a duration before now."""
    try:
        return time_of(text)
    except Refused:
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds_of(text))
        except (Refused, OverflowError):
            raise Refused(
                f"--since: {text[:40]!r} is neither a time nor a duration; write 2025-01-31T12:00:00Z, or 7d"
            ) from None

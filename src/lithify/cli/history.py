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
            help="Only what was committed since: 2025-01-31T12:00:00Z, or so long ago, such as 7d.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Only the newest so many; default: {DEFAULT_LAST}, with --since all.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say what was committed, when, why, how many bytes and rows that took, and how long. Writes nothing.

    Each commit leaves a small record beside the database, table or log, which garbage collection leaves
    alone and which goes by age (service.keep_history). Of a commit whose process was killed at once there is
    none.

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
                f"--since: {text[:40]!r} is no time and no duration; write 2025-01-31T12:00:00Z, or 7d"
            ) from None

"""`lithify history`: commits with their reasons and costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.options.settings import settings
from lithify.cli.options.values import seconds_of, time_of
from lithify.cli.running import errors, print_shown

DEFAULT_LAST = 50


def history(
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
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say what was committed, when, why, how many bytes and rows that took, and how long. Writes nothing.

    Each commit leaves a small record beside the database, table or log, which garbage collection leaves
    alone and which goes by age (service.keep_history). Of a commit whose process was killed at once there is
    none.

    Examples:

        lithify history s3://bucket/my-db

        lithify history --since 7d --json iceberg://catalog/namespace.table
    """
    with errors(as_json):
        from_when = None if since is None else _time_of(since)
        effective = settings(config, sets, store_option=store_option)
        from lithify.api import client

        with client.open(url, settings=effective) as dataset:
            most = DEFAULT_LAST if last is None and since is None else last
            print_shown(dataset.show_history(last=most, since=from_when), as_json)


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

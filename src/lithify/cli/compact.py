"""`lithify plan` and `lithify compact`: plan the compactions of a dataset, and run them once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import (
    AsJson,
    ConfigFile,
    Full,
    Master,
    Png,
    Sets,
    SparkConf,
    StoreOptions,
    TakeOver,
    Url,
)
from lithify.cli.options.of_kinds import Given, takes_kind_options
from lithify.cli.options.settings import settings
from lithify.cli.running import GOES_ON, errors, print_json
from lithify.datasets.options import CommandArgs
from lithify.views.consoles import standard_output

if TYPE_CHECKING:
    from lithify.config.model import Config


@takes_kind_options("plan")
def plan(
    url: Url,
    full: Full = False,
    as_json: AsJson = False,
    png: Png = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Say what would be compacted, and why. Writes nothing.

    Examples:

        lithify plan /data/my-db

        lithify plan --full --json s3://bucket/my-db

        lithify plan --png timeline.png iceberg://catalog/namespace.table

        lithify plan --set slatedb.segments.pattern=events/%Y-%m-%d/ /data/my-db
    """
    with errors(as_json):
        given.check(url)
        effective = settings(config, sets, given, store_option=store_option)
        _plan(url, effective, given.args(full=full), as_json, png)


def _plan(url: str, config: Config, args: CommandArgs, as_json: bool, png: Path | None = None) -> None:
    from lithify.api import client
    from lithify.views.drawing import draw

    with client.open(url, settings=config) as dataset:
        planned = dataset.plan(full=args.full, **args.given)
    if png is not None:
        from lithify.views.timeline_picture import save_picture

        if planned.timeline is None:
            raise Refused(
                f"{url}: --png draws a timeline, and nothing says what times the parts of this dataset "
                "have; of a database, set slatedb.segments.pattern"
            )
        save_picture(planned.timeline.plan, planned.timeline.calendar, png, planned.timeline.words)
    if as_json:
        print_json(planned.document)
    else:
        draw(standard_output(), planned.shown.blocks)


@takes_kind_options("compact")
def compact(
    url: Url,
    full: Full = False,
    master: Master = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as `lithify plan`.")] = False,
    take_over: TakeOver = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
    *,
    given: Given,
) -> None:
    """Compact a database, table or log once: plan, rewrite on Spark, commit, until nothing is left to do.

    Needs a database's own coordinator to be absent: the program that writes to it must have been opened
    with compactor_options = null, or be closed. Readers and writers may go on meanwhile.

    Examples:

        lithify compact /data/my-db

        lithify compact --full --master spark://host:7077 s3://bucket/my-db

        lithify compact iceberg://catalog/namespace.table
    """
    with errors(as_json, stopped=GOES_ON):
        given.check(url)
        effective = settings(
            config, sets, given, master=master, store_option=store_option, spark_conf=spark_conf
        )
        args = given.args(full=full)
        if dry_run:
            _plan(url, effective, args, as_json)
            return
        from lithify.cli.once import compact_once

        compact_once(url, effective, args, take_over=take_over, as_json=as_json)

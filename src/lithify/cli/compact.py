"""`lithify plan` and `lithify compact`: look at a database or table once, and compact it once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lithify.cli import tables
from lithify.cli.options import (
    AsJson,
    BlockSize,
    CompactionFilter,
    Compression,
    ConfigFile,
    Full,
    Master,
    MaxSstSize,
    MergeOperator,
    Png,
    SchedulerOptions,
    Segment,
    Sets,
    SparkConf,
    StoreOptions,
    TakeOver,
    Url,
)
from lithify.cli.running import errors, print_json
from lithify.cli.settings import settings
from lithify.errors import Refused

if TYPE_CHECKING:
    from lithify.config.model import Config


def plan(
    url: Url,
    full: Full = False,
    segment: Segment = None,
    as_json: AsJson = False,
    png: Png = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
) -> None:
    """Say what would be compacted, and why. Writes nothing.

    Examples:

        lithify plan /data/my-db

        lithify plan --full --json s3://bucket/my-db

        lithify plan --png timeline.png iceberg://catalog/namespace.table

        lithify plan --set compactor_options.segments.pattern=events/%Y-%m-%d/ /data/my-db
    """
    with errors(as_json):
        tables.refuse(url, segment=segment, scheduler_option=scheduler_option)
        effective = settings(config, sets, store_option=store_option, scheduler_option=scheduler_option)
        _plan(url, effective, full, segment, as_json, png)


def _plan(
    url: str, config: Config, full: bool, segment: str | None, as_json: bool, png: Path | None = None
) -> None:
    if tables.is_table(url):
        tables.plan(url, config, full, as_json, png)
        return
    from lithify.cli import render, wiring
    from lithify.compaction.model import Ledger

    dataset = wiring.open_dataset(url, config)
    ledger = dataset.ledger() or Ledger()
    manifest = dataset.snapshot()
    timeline = dataset.segments(manifest, ledger)
    proposed = wiring.planner(dataset, full, segment)(manifest, ledger)
    if png is not None:
        if timeline is None:
            raise Refused(
                f"{url}: --png draws a timeline, and nothing says what times the segments of this database "
                "have; set compactor_options.segments.pattern"
            )
        render.draw_segments(timeline, png)
    if as_json:
        print_json(render.plan_json(dataset.url, manifest, proposed, timeline))
    else:
        render.print_plan(Console(), manifest, proposed, timeline)


def compact(
    url: Url,
    full: Full = False,
    segment: Segment = None,
    master: Master = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as `lithify plan`.")] = False,
    take_over: TakeOver = False,
    merge_operator: MergeOperator = None,
    compaction_filter: CompactionFilter = None,
    block_size: BlockSize = None,
    compression: Compression = None,
    max_sst_size: MaxSstSize = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Compact a database or table once: plan, rewrite on Spark, commit, until nothing is left to do.

    Needs a database's own coordinator to be absent: the program that writes to it must have been opened
    with compactor_options = null, or be closed. Readers and writers may go on meanwhile.

    Examples:

        lithify compact /data/my-db

        lithify compact --full --master spark://host:7077 s3://bucket/my-db

        lithify compact iceberg://catalog/namespace.table
    """
    with errors(as_json):
        tables.refuse(
            url,
            segment=segment,
            merge_operator=merge_operator,
            compaction_filter=compaction_filter,
            block_size=block_size,
            compression=compression,
            max_sst_size=max_sst_size,
            scheduler_option=scheduler_option,
        )
        effective = settings(
            config,
            sets,
            master=master,
            merge_operator=merge_operator,
            compaction_filter=compaction_filter,
            block_size=block_size,
            compression=compression,
            max_sst_size=max_sst_size,
            store_option=store_option,
            scheduler_option=scheduler_option,
            spark_conf=spark_conf,
        )
        if dry_run:
            _plan(url, effective, full, segment, as_json)
        else:
            _compact(url, effective, full, segment, take_over, as_json)


def _compact(
    url: str, config: Config, full: bool, segment: str | None, take_over: bool, as_json: bool
) -> None:
    if tables.is_table(url):
        tables.compact(url, config, full, take_over, as_json)
        return
    from lithify.cli import render, wiring
    from lithify.cli.once import View, compact_once
    from lithify.datasets.slatedb.shape import shape_of

    dataset = wiring.open_dataset(url, config)
    view = View(lambda: shape_of(dataset.snapshot()), render.result_json, render.print_result)
    planner = wiring.planner(dataset, full, segment)
    compact_once(dataset, config, view, planner=planner, take_over=take_over, as_json=as_json)

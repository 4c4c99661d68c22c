"""`lithify doctor`: what is wrong with a database, a table or a set-up, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lithify.cli import tables
from lithify.cli.options import AsJson, ConfigFile, Master, Sets, SparkConf, StoreOptions
from lithify.cli.running import errors, print_json
from lithify.cli.settings import settings
from lithify.views import text

if TYPE_CHECKING:
    from lithify.compaction.finding import Finding
    from lithify.config.model import Config

UNHEALTHY = 10
"""Exit code when there is a problem."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="A database or table; without one, only this machine.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark and run a task on it (some seconds).")
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write nothing: leave out what is tried with a probe object."),
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Say what is wrong with this machine, the cluster, the store, a database or table, and what to do.

    With a URL it writes, and removes again, one small object below lithify/doctor/ of the database or table,
    to see what the store can do. Exit code 0 when there is no problem (warnings are none), 10 otherwise.

    Examples:

        lithify doctor

        lithify doctor --spark --master spark://host:7077 s3://bucket/my-db
    """
    with errors(as_json):
        effective = settings(config, sets, master=master, store_option=store_option, spark_conf=spark_conf)
        findings = list(_examine(url, effective, spark, read_only))
        if as_json:
            print_json([{**asdict(f), "severity": f.severity.value} for f in findings])
        else:
            _print(findings)
        if any(f.severity.value == "problem" for f in findings):
            raise typer.Exit(UNHEALTHY)


def _examine(url: str | None, config: Config, spark: bool, read_only: bool) -> Iterable[Finding]:
    from lithify.cli import wiring
    from lithify.doctor import setup

    yield setup.check_java(os.environ)
    yield setup.check_cache(os.environ)
    if spark:
        with wiring.spark_engine(config, [url or ""]) as engine:
            yield setup.check_spark(engine, config.spark.master)
    if url is None:
        return
    examine = _examine_table if tables.is_table(url) else _examine_database
    yield from examine(url, config, read_only)


def _examine_database(url: str, config: Config, read_only: bool) -> Iterable[Finding]:
    from lithify.cli import wiring
    from lithify.clock import SystemClock
    from lithify.compaction.finding import Severity
    from lithify.doctor.database import check_database
    from lithify.doctor.storage import check_storage
    from lithify.ids import RandomIds

    clock = SystemClock()
    dataset = wiring.open_dataset(url, config)
    findings = list(check_database(dataset, clock.now_ms(), wiring.heartbeat_timeout_ms(config)))
    yield from findings
    if not read_only and findings[0].severity is Severity.OK:
        yield from check_storage(dataset.store, dataset.paths.own_folder, clock, RandomIds())


def _examine_table(url: str, config: Config, read_only: bool) -> Iterable[Finding]:
    from functools import partial

    from lithify.cli import wiring
    from lithify.clock import SystemClock
    from lithify.compaction.finding import Severity
    from lithify.doctor.storage import check_storage
    from lithify.doctor.table import check_table
    from lithify.ids import RandomIds

    clock = SystemClock()
    open_table = partial(tables.open_table, url, config)
    findings = list(check_table(open_table, clock.now_ms(), wiring.heartbeat_timeout_ms(config)))
    yield from findings
    if not read_only and findings[0].severity is Severity.OK:
        dataset = open_table()
        yield from check_storage(dataset.store, dataset.own_folder, clock, RandomIds())


def _print(findings: list[Finding]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for f in findings[: text.MAX_SHOWN]:
        colour = _COLOURS[f.severity.value]
        table.add_row(f"[{colour}]{f.severity.value}[/]", f.check, escape(f.says))
        if f.do:
            table.add_row("", "", f"→ {escape(f.do)}")
    console = Console()
    console.print(table, highlight=False)
    text.print_rest(console, len(findings), "findings")

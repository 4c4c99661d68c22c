"""`lithify doctor`: problems of a dataset or an installation, and their remedies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import MASTER, SPARK_CONF
from lithify.cli.running import print_json
from lithify.datasets.registry import registered_for
from lithify.views import text
from lithify.views.consoles import standard_output
from lithify.views.tables import cell

if TYPE_CHECKING:
    from lithify.config.model import Config
    from lithify.protocol.finding import Finding

UNHEALTHY = 10
"""Exit code if there is a problem."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@command(MASTER, SPARK_CONF)
def doctor(
    context: CommandContext,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="A database, table or log; without one, check only this machine."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark and run a task on it (some seconds).")
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write nothing: leave out checks that need a probe object."),
    ] = False,
) -> None:
    """Show problems of this machine, the cluster, the store, a database, table or log, and their remedies.

    With a URL it writes and removes small objects in Lithify's folder next to the data, to test the store;
    with --read-only it writes nothing. Exit code 0 if there is no problem (warnings do not count), 10
    otherwise.

    Examples:

        lithify doctor

        lithify doctor --spark --master spark://host:7077 s3://bucket/my-db
    """
    print_findings(list(_examine(url, context.config, spark, read_only)), context.as_json)


def print_findings(findings: list[Finding], as_json: bool) -> None:
    """Print the findings, and exit with `UNHEALTHY` if there is a problem among them."""
    if as_json:
        print_json([{**asdict(f), "severity": f.severity.value} for f in findings])
    else:
        _draw(findings)
    if any(f.severity.value == "problem" for f in findings):
        raise typer.Exit(UNHEALTHY)


def _examine(url: str | None, config: Config, spark: bool, read_only: bool) -> Iterable[Finding]:
    from lithify.api import wiring
    from lithify.doctor import setup

    yield setup.check_java(os.environ)
    yield setup.check_cache(os.environ)
    if spark:
        with wiring.spark_engine(config, [url or ""]) as engine:
            yield setup.check_spark(engine, engine.master)
            yield setup.check_connections(engine.master, engine.is_open)
    if url is None:
        return
    yield from _examine_dataset(url, config, read_only)


def _examine_dataset(url: str, config: Config, read_only: bool) -> Iterable[Finding]:
    from functools import partial

    from lithify.api import wiring
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.doctor.storage import check_storage
    from lithify.protocol.finding import Severity
    from lithify.service.status import status

    clock, kind = SystemClock(), registered_for(url).load()
    now_ms, timeout_ms = clock.now_ms(), config.service.worker_heartbeat_timeout_ms
    open_dataset = partial(wiring.open_to_read if read_only else wiring.open_dataset, url, config)
    find = partial(status, clock=clock, heartbeat_timeout_ms=timeout_ms)
    found = list(kind.check(open_dataset, find, config, now_ms))
    yield from found
    if not read_only and found[0].severity is Severity.OK:
        store, folder = kind.own_place(open_dataset())
        yield from check_storage(store, folder, clock, RandomIds())


def _draw(findings: list[Finding]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for f in findings[: text.MAX_SHOWN]:
        colour = _COLOURS[f.severity.value]
        table.add_row(cell(f.severity.value, colour), cell(f.check), cell(text.short_ids(f.says)))
        if f.do:
            table.add_row("", "", cell(f"→ {f.do}"))
    console = standard_output()
    console.print(table, highlight=False)
    text.print_rest(console, len(findings), "findings")

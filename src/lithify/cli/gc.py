"""`lithify gc`: says what a database does not need any more, and deletes it when told to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from lithify.cli import tables
from lithify.cli.options import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.running import errors, print_json
from lithify.cli.settings import settings
from lithify.errors import Refused
from lithify.views import text

if TYPE_CHECKING:
    from lithify.datasets.slatedb.garbage import Count, Report

_NAMES = {
    "manifest": "manifests",
    "compactions": "compactions files",
    "compacted": "SSTs",
    "wal": "write-ahead log files",
    "wal_fence": "write-ahead log fences",
    "checkpoint": "expired checkpoints",
    "detach": "ties to parents of a clone",
    "progress": "progress notes",
    "attempts": "notes on attempts",
    "staged": "half-written files",
}
"""By `Kind`, in the order they are shown."""


def gc(
    url: Url,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; without this, only say so.")] = False,
    min_age: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Keep what is younger; default: 300, of a table 3600.", show_default=False
        ),
    ] = None,
    wal_fences: Annotated[
        bool,
        typer.Option(
            "--wal-fences",
            help="Also the empty files by which a writer fences older ones. SlateDB keeps them by default: "
            "an old writer that is still alive could go on.",
        ),
    ] = False,
    max_percent: Annotated[
        int | None,
        typer.Option(
            metavar="PERCENT",
            help="Of a table: delete nothing if it is more than this share of all files beside the table; "
            "default: 50.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say what a database or table does not need any more, and with --delete, delete it.

    Safe while it is open and is being compacted. Of a table, only what Lithify wrote is looked at.

    Examples:

        lithify gc s3://bucket/my-db

        lithify gc --delete --min-age 3600 s3://bucket/my-db
    """
    with errors(as_json):
        tables.refuse(url, wal_fences=wal_fences)
        min_age_ms = None if min_age is None else _milliseconds(min_age)
        effective = settings(config, sets, store_option=store_option)
        if tables.is_table(url):
            tables.gc(url, effective, delete, min_age_ms, max_percent, as_json)
            return
        if max_percent is not None:
            raise Refused(f"{url} is a database, and --max-percent is for tables only")
        from lithify.clock import SystemClock
        from lithify.datasets.slatedb.garbage import (
            DEFAULT_KINDS,
            DEFAULT_MIN_AGE_MS,
            GarbageOptions,
            Kind,
            collect,
        )
        from lithify.datasets.slatedb.paths import DatabasePaths
        from lithify.store.urls import open_store

        kinds = DEFAULT_KINDS | {Kind.WAL_FENCE} if wal_fences else DEFAULT_KINDS
        age_ms = DEFAULT_MIN_AGE_MS if min_age_ms is None else min_age_ms
        options = GarbageOptions(min_age_ms=age_ms, dry_run=not delete, kinds=kinds)
        store, root = open_store(url, effective.store_options)
        report = collect(store, DatabasePaths(root), SystemClock(), options)
        if as_json:
            print_json({"url": url, **asdict(report)})
        else:
            _print_report(Console(), report)


def _milliseconds(min_age_s: float) -> int:
    from lithify.config.durations import milliseconds_of

    try:
        return milliseconds_of(min_age_s)
    except ValueError as error:
        raise Refused(f"--min-age: {error}") from None


def _print_report(console: Console, report: Report) -> None:
    table = Table(title="Would delete (dry run)" if report.dry_run else "Deleted", title_justify="left")
    table.add_column("")
    for heading in ("found", "deletable" if report.dry_run else "deleted", "bytes"):
        table.add_column(heading, justify="right")
    counts = {kind.value: count for kind, count in report.counts.items()}
    for kind, name in _NAMES.items():
        if kind in counts:
            table.add_row(name, *_cells(counts[kind]))
    table.add_section()
    table.add_row(
        "all",
        str(sum(count.found for count in counts.values())),
        str(report.deletable),
        text.size(sum(count.deletable_bytes for count in counts.values())),
    )
    console.print(table)
    console.print(f"How young an SST may be is limited by: {report.sst_cutoff.reason}.", highlight=False)
    if report.dry_run and report.deletable:
        console.print("Nothing was deleted; add --delete to do it.")


def _cells(count: Count) -> tuple[str, str, str]:
    return str(count.found), str(count.deletable), text.size(count.deletable_bytes)

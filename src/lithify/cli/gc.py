"""`lithify gc`: says what a database does not need any more, and deletes it when told to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lithify.cli import text
from lithify.cli.options import AsJson, StoreOptions, Url
from lithify.cli.running import errors, pairs, print_json
from lithify.clock import SystemClock
from lithify.datasets.slatedb.garbage import DEFAULT_MIN_AGE_MS, GarbageOptions, Report, collect
from lithify.datasets.slatedb.paths import DatabasePaths
from lithify.store.urls import open_store


def gc(
    url: Url,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; without this, only say so.")] = False,
    min_age: Annotated[
        float, typer.Option(metavar="SECONDS", help="Keep what is younger.")
    ] = DEFAULT_MIN_AGE_MS / 1000,
    as_json: AsJson = False,
    store_option: StoreOptions = None,
) -> None:
    """Say what a database does not need any more: SSTs, manifests, compactions files, checkpoints.

    Safe while the database is open and is being compacted. The write-ahead log is left to SlateDB.
    """
    with errors(as_json):
        options = GarbageOptions(min_age_ms=round(min_age * 1000), dry_run=not delete)
        store, root = open_store(url, pairs(store_option))
        report = collect(store, DatabasePaths(root), SystemClock(), options)
        if as_json:
            print_json({"url": url, **asdict(report)})
        else:
            _print_report(Console(), report)


def _print_report(console: Console, report: Report) -> None:
    table = Table(title="Would delete (dry run)" if report.dry_run else "Deleted", title_justify="left")
    table.add_column("")
    for heading in ("found", "deletable" if report.dry_run else "deleted", "bytes"):
        table.add_column(heading, justify="right")
    for name, count in (
        ("manifests", report.manifests),
        ("compactions files", report.compactions),
        ("SSTs", report.ssts),
        ("checkpoints", report.checkpoints),
    ):
        table.add_row(name, str(count.found), str(count.deletable), text.size(count.deletable_bytes))
    console.print(table)
    console.print(f"How young an SST may be is limited by: {report.sst_cutoff.reason}.", highlight=False)
    if report.dry_run:
        console.print("Nothing was deleted; add --delete to do it.")

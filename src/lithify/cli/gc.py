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
from lithify.datasets.slatedb.garbage import (
    DEFAULT_KINDS,
    DEFAULT_MIN_AGE_MS,
    Count,
    GarbageOptions,
    Kind,
    Report,
    collect,
)
from lithify.datasets.slatedb.paths import DatabasePaths
from lithify.store.urls import open_store

_NAMES = {
    Kind.MANIFEST: "manifests",
    Kind.COMPACTIONS: "compactions files",
    Kind.COMPACTED: "SSTs",
    Kind.WAL: "write-ahead log files",
    Kind.WAL_FENCE: "write-ahead log fences",
    Kind.CHECKPOINT: "expired checkpoints",
    Kind.DETACH: "ties to parents of a clone",
    Kind.PROGRESS: "progress notes",
    Kind.ATTEMPTS: "notes on attempts",
    Kind.STAGED: "half-written files",
}


def gc(
    url: Url,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; without this, only say so.")] = False,
    min_age: Annotated[
        float, typer.Option(metavar="SECONDS", help="Keep what is younger.")
    ] = DEFAULT_MIN_AGE_MS / 1000,
    wal_fences: Annotated[
        bool,
        typer.Option(
            "--wal-fences",
            help="Also the empty files by which a writer fences older ones. SlateDB keeps them by default: "
            "an old writer that is still alive could go on.",
        ),
    ] = False,
    as_json: AsJson = False,
    store_option: StoreOptions = None,
) -> None:
    """Say what a database does not need any more, and with --delete, delete it.

    Safe while the database is open and is being compacted.
    """
    with errors(as_json):
        kinds = DEFAULT_KINDS | {Kind.WAL_FENCE} if wal_fences else DEFAULT_KINDS
        options = GarbageOptions(min_age_ms=round(min_age * 1000), dry_run=not delete, kinds=kinds)
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
    for kind, name in _NAMES.items():
        if kind in report.counts:
            table.add_row(name, *_cells(report.counts[kind]))
    total = Count(
        sum(count.found for count in report.counts.values()),
        report.deletable,
        sum(count.deletable_bytes for count in report.counts.values()),
    )
    table.add_section()
    table.add_row("all", *_cells(total))
    console.print(table)
    console.print(f"How young an SST may be is limited by: {report.sst_cutoff.reason}.", highlight=False)
    if report.dry_run and report.deletable:
        console.print("Nothing was deleted; add --delete to do it.")


def _cells(count: Count) -> tuple[str, str, str]:
    return str(count.found), str(count.deletable), text.size(count.deletable_bytes)

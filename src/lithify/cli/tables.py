"""The commands on Iceberg tables: the same names and options, other facts to show.

A URL `iceberg://CATALOG/NAMESPACE.TABLE` leads here. Options `--store-option` are properties of the catalog.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from lithify.cli import text
from lithify.cli.running import print_json
from lithify.telemetry import each

if TYPE_CHECKING:
    from lithify.cli.progress import Totals
    from lithify.config.model import Config
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.datasets.iceberg.model import TableState
    from lithify.oneshot import Result

SCHEME = "iceberg://"


def is_table(url: str) -> bool:
    """Whether a URL names an Iceberg table."""
    return url.startswith(SCHEME)


def open_table(url: str, config: Config) -> IcebergDataset:
    """The table at `url`."""
    from lithify.clock import SystemClock
    from lithify.datasets.iceberg.catalogs import open_catalog, parse_url
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.ids import RandomIds

    parsed = parse_url(url)
    catalog = open_catalog(parsed.catalog, config.store_options)
    return IcebergDataset(catalog, parsed, SystemClock(), RandomIds())


def plan(url: str, config: Config, as_json: bool, png: Path | None) -> None:
    """Show the timeline and what would be started now."""
    from lithify.cli.timeline import print_timeline, timeline_json
    from lithify.compaction.model import Ledger
    from lithify.datasets.iceberg.plan import timeline_policy

    dataset = open_table(url, config)
    ledger = dataset.ledger() or Ledger()
    state = dataset.snapshot()
    calendar = timeline_policy(state.policy).calendar
    timeline = dataset.timeline(state, ledger)
    proposed = dataset.propose(state, ledger)
    if png is not None:
        from lithify.cli.drawing import save_picture

        save_picture(timeline, calendar, png)
    if as_json:
        print_json(
            {
                "url": dataset.url,
                "table": _facts(state),
                **timeline_json(timeline, calendar),
                "starts": [proposal.spec.task for proposal in proposed.proposals],
                "notes": list(proposed.notes),
            }
        )
        return
    console = Console()
    print_timeline(console, timeline, calendar)
    _print_notes(console, proposed.notes)


def compact(url: str, config: Config, take_over: bool, as_json: bool) -> None:
    """Compact a table once."""
    from lithify import oneshot
    from lithify.cli import building
    from lithify.cli.logs import EventLog
    from lithify.cli.progress import ProgressBars, Totals
    from lithify.clock import SystemClock
    from lithify.datasets.iceberg.guard import TableGuard
    from lithify.ids import RandomIds

    dataset = open_table(url, config)
    clock, ids, totals = SystemClock(), RandomIds(), Totals()
    before = dataset.snapshot()
    started_s = clock.monotonic_s()
    engine = building.spark_engine(config, building.TABLE_PRELOAD)
    with ProgressBars(Console(stderr=True)) as bars:
        observe = each(totals, EventLog(clock), *([] if as_json else [bars]))
        try:
            result = oneshot.run(
                dataset,
                engine,
                clock,
                ids,
                TableGuard(dataset, clock, ids),
                take_over=take_over,
                options=building.worker_options(config),
                worker_heartbeat_timeout_ms=building.heartbeat_timeout_ms(config),
                observer=observe,
            )
        finally:
            engine.close()
    seconds = clock.monotonic_s() - started_s
    after = dataset.snapshot()
    if as_json:
        print_json(_result_json(dataset.url, before, after, result, totals, seconds))
    elif not result.started:
        console = Console()
        console.print("Nothing to compact.")
        _print_notes(console, result.plan.notes)
    else:
        _print_result(Console(), before, after, result, totals, seconds)
    if result.failures:
        raise typer.Exit(1)


def status(url: str, config: Config, as_json: bool) -> None:
    """Show the active compactions, the failures, and the totals of the timeline."""
    from lithify.clock import SystemClock
    from lithify.compaction.model import Ledger
    from lithify.store.keys import join
    from lithify.store.leases import read_lease

    dataset = open_table(url, config)
    ledger = dataset.ledger()
    state = dataset.snapshot()
    timeline = dataset.timeline(state, ledger or Ledger())
    lease = read_lease(dataset.store, join(dataset.root, "lithify", "coordinator.json"))
    now_ms = SystemClock().now_ms()
    active = ledger.active() if ledger is not None else ()
    failures = dataset.journal.failures()
    document = {
        "url": dataset.url,
        "table": _facts(state),
        "coordinator": {
            "epoch": ledger.epoch if ledger is not None else 0,
            "holder": lease.holder if lease is not None else None,
            "is_alive": lease is not None and lease.is_live(now_ms),
        },
        "compactions": [
            {
                "id": c.id,
                "state": c.state.value,
                "task": c.spec.task,
                "files": len(c.spec.inputs),
                "worker": c.worker.id if c.worker is not None else None,
                "heartbeat_age_ms": now_ms - c.worker.last_heartbeat_ms if c.worker is not None else None,
                "ranges": len(c.progress.ranges) if c.progress is not None else None,
                "ranges_done": sum(bool(r.outputs) for r in c.progress.ranges) if c.progress else None,
            }
            for c in active
        ],
        "failures": [{"id": f.compaction, "reason": f.reason, "at_ms": f.at_ms} for f in failures],
        "totals": {name.value: asdict(amount) for name, amount in timeline.totals.items()},
        "notes": list(state.notes),
    }
    if as_json:
        print_json(document)
    else:
        _print_status(Console(), document)


def gc(url: str, config: Config, delete: bool, min_age_s: float | None, as_json: bool) -> None:
    """Show what nothing needs any more, and delete it when told to."""
    from lithify.clock import SystemClock
    from lithify.datasets.iceberg.garbage import DEFAULT_MIN_AGE_MS, collect

    dataset = open_table(url, config)
    min_age_ms = DEFAULT_MIN_AGE_MS if min_age_s is None else round(min_age_s * 1000)
    report = collect(dataset, SystemClock(), min_age_ms=min_age_ms, dry_run=not delete)
    if as_json:
        garbage = [{"kind": g.kind.value, "path": g.path, "size_bytes": g.size_bytes} for g in report.garbage]
        print_json({"url": dataset.url, "dry_run": report.dry_run, "garbage": garbage})
        return
    console = Console()
    shown = Table(title="Would delete (dry run)" if report.dry_run else "Deleted", title_justify="left")
    shown.add_column("kind")
    shown.add_column("path", overflow="fold")
    shown.add_column("bytes", justify="right")
    for found in report.garbage:
        shown.add_row(found.kind.value, found.path, text.size(found.size_bytes))
    console.print(shown if report.garbage else "There is no garbage.")
    if report.dry_run and report.garbage:
        console.print("Nothing was deleted; add --delete to do it.")


def _facts(state: TableState) -> dict[str, Any]:
    return {
        "snapshot_id": state.snapshot_id,
        "files": len(state.files),
        "bytes": sum(file.size_bytes for file in state.files),
        "rows": sum(file.rows for file in state.files),
        "delete_files": state.delete_files,
    }


def _result_json(
    url: str, before: TableState, after: TableState, result: Result, totals: Totals, seconds: float
) -> dict[str, Any]:
    return {
        "url": url,
        "started": result.started,
        "seconds": round(seconds, 3),
        "before": _facts(before),
        "after": _facts(after),
        "committed": list(result.committed),
        "refused": [asdict(f) for f in result.refused],
        "failures": [asdict(f) for f in result.failures],
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "ranges": totals.ranges,
        "cpu_s": round(totals.cpu_s, 3),
        "peak_task_memory_bytes": totals.peak_task_memory_bytes,
        "notes": list(result.plan.notes),
    }


def _print_result(
    console: Console, before: TableState, after: TableState, result: Result, totals: Totals, seconds: float
) -> None:
    shown = Table(title=f"{len(result.committed)} compaction(s) in {seconds:.1f} s", title_justify="left")
    shown.add_column("")
    for heading in ("files", "bytes", "rows", "delete files"):
        shown.add_column(heading, justify="right")
    for name, facts in (("before", _facts(before)), ("after", _facts(after))):
        shown.add_row(
            name,
            f"{facts['files']:,}",
            text.size(facts["bytes"]),
            f"{facts['rows']:,}",
            f"{facts['delete_files']:,}",
        )
    console.print(shown)
    console.print(
        f"Read {text.size(totals.bytes_read)} and wrote {text.size(totals.bytes_written)} in "
        f"{totals.ranges} task(s), {totals.cpu_s:.1f} s of processor time.",
        highlight=False,
    )
    for failure in (*result.refused, *result.failures):
        console.print(f"[yellow]{failure.compaction}[/] {failure.reason}", highlight=False)
    _print_notes(console, result.plan.notes)


def _print_status(console: Console, document: dict[str, Any]) -> None:
    coordinator, facts = document["coordinator"], document["table"]
    alive = "runs" if coordinator["is_alive"] else "does not run"
    console.print(
        f"{document['url']}: {facts['files']:,} files, {text.size(facts['bytes'])}, "
        f"{facts['delete_files']:,} delete files; "
        f"Lithify's coordinator {alive} (epoch {coordinator['epoch']}).",
        highlight=False,
    )
    if document["compactions"]:
        shown = Table(title="Compactions", title_justify="left")
        for heading in ("id", "state", "task", "files", "ranges", "worker", "heartbeat"):
            shown.add_column(heading, overflow="fold")
        for c in document["compactions"]:
            ranges = "" if c["ranges"] is None else f"{c['ranges_done']}/{c['ranges']}"
            age = "" if c["heartbeat_age_ms"] is None else f"{c['heartbeat_age_ms'] / 1000:.0f} s ago"
            shown.add_row(c["id"], c["state"], c["task"], str(c["files"]), ranges, c["worker"] or "", age)
        console.print(shown)
    totals = Table(title="Totals", title_justify="left")
    totals.add_column("")
    for heading in ("chunks", "files", "bytes", "rows"):
        totals.add_column(heading, justify="right")
    for name, amount in document["totals"].items():
        totals.add_row(
            name,
            f"{amount['chunks']:,}",
            f"{amount['files']:,}",
            text.size(amount["size_bytes"]),
            f"{amount['rows']:,}",
        )
    console.print(totals)
    for failure in document["failures"]:
        console.print(f"[yellow]Failed:[/] {failure['id']} {failure['reason']}", highlight=False)
    _print_notes(console, document["notes"])


def _print_notes(console: Console, notes: Any) -> None:
    for note in notes:
        console.print(f"  {note}", highlight=False)

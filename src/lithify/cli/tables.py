"""The commands on Iceberg tables: the same names and options, other facts to show.

A URL `iceberg://CATALOG/NAMESPACE.TABLE` leads here. Options `--store-option` are properties of the catalog.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lithify.cli.running import print_json
from lithify.errors import Refused
from lithify.views import text

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyicebergTable

    from lithify.compaction.proposal import Total
    from lithify.config.model import Config, DirectorySettings, GarbageCollectorSettings
    from lithify.datasets.collecting import PeriodicCollector
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.datasets.iceberg.garbage import Kind
    from lithify.datasets.iceberg.model import ChunkSpec, TableState
    from lithify.datasets.kind import Dataset
    from lithify.events import Observer
    from lithify.observe.metrics import Metrics
    from lithify.observe.progress import Totals
    from lithify.service.one_shot import Result
    from lithify.service.status import Status
    from lithify.store.objects import ObjectStore

SCHEME = "iceberg://"


def is_table(url: str) -> bool:
    """Whether a URL names an Iceberg table."""
    return url.startswith(SCHEME)


def refuse(url: str, **given: object) -> None:
    """`Refused` when `url` is a table and an option is given that only databases have."""
    wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if wrong and is_table(url):
        raise Refused(f"{url} is a table, and {', '.join(wrong)} is for SlateDB databases only")


def open_table(url: str, config: Config, metrics: Metrics | None = None) -> IcebergDataset:
    """The table at `url`; `metrics` counts the requests to the store beside it, not those of its catalog."""
    from lithify.clock import SystemClock
    from lithify.datasets.iceberg.catalogs import open_catalog, parse_url, store_of
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.ids import RandomIds

    def open_place(opened: PyicebergTable) -> tuple[ObjectStore, str]:
        store, root = store_of(opened)
        if metrics is not None:
            from lithify.store.metered import MeteredStore

            store = MeteredStore(store, metrics.count_request)
        return store, root

    parsed = parse_url(url)
    catalog = open_catalog(parsed.catalog, config.store_options)
    options = config.table_options
    return IcebergDataset(catalog, parsed, SystemClock(), RandomIds(), options=options, open_place=open_place)


def requested(
    url: str, config: Config, chunks: list[str] | None
) -> tuple[Dataset, list[Any], tuple[str, ...]]:
    """A table, the specs of what is asked for (all that is not compact, or given chunks), and notes."""
    from lithify.clock import SystemClock
    from lithify.compaction.model import Ledger
    from lithify.datasets.iceberg.request import request

    dataset = open_table(url, config)
    ledger = dataset.ledger() or Ledger()
    plan = request(dataset.snapshot(), ledger, SystemClock().now_ms() * 1000, chunks or None)
    return dataset, [proposal.spec for proposal in plan.proposals], plan.notes


def plan(url: str, config: Config, full: bool, as_json: bool, png: Path | None) -> None:
    """Show the timeline and what would be started now; `full`: as if nothing had to wait."""
    from lithify.clock import SystemClock
    from lithify.compaction.model import Ledger
    from lithify.datasets.iceberg import request
    from lithify.datasets.iceberg.plan import timeline_policy
    from lithify.views.timeline import print_timeline, timeline_json

    dataset = open_table(url, config)
    ledger = dataset.ledger() or Ledger()
    state = dataset.snapshot()
    calendar = timeline_policy(state.policy).calendar
    if full:
        now_us = SystemClock().now_ms() * 1000
        timeline, proposed = request.everything(state, ledger, now_us), request.request(state, ledger, now_us)
    else:
        timeline, proposed = dataset.timeline(state, ledger), dataset.propose(state, ledger)
    if png is not None:
        from lithify.views.timeline_picture import save_picture

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
    if not proposed.proposals:
        console.print("Nothing to compact now.")
    _print_notes(console, proposed.notes)


def compact(url: str, config: Config, full: bool, take_over: bool, as_json: bool) -> None:
    """Compact a table once; `full`: as if nothing had to wait."""
    from lithify.cli.once import View, compact_once
    from lithify.clock import SystemClock
    from lithify.compaction.proposal import NOTHING_HELD, Held, Plan
    from lithify.datasets.iceberg.request import request

    dataset, clock = open_table(url, config), SystemClock()
    view = View(dataset.snapshot, _result_json, _print_result)

    def everything(state: Any, ledger: Any, held: Held = NOTHING_HELD, /) -> Plan:
        return request(state, ledger, clock.now_ms() * 1000, held=held)

    planner = everything if full else None
    compact_once(dataset, config, view, planner=planner, take_over=take_over, as_json=as_json)


def status_json(found: Status) -> dict[str, Any]:
    """What the status of a table has besides, as a JSON value."""
    return {
        "table": _facts(found.snapshot),
        "totals": {name: _total_json(total) for name, total in found.plan.totals.items()},
    }


def _total_json(total: Total) -> dict[str, int]:
    return {
        "chunks": total.units,
        "files": total.files,
        "bytes": total.size_bytes,
        "rows": total.rows,
    }


def spec_json(spec: ChunkSpec) -> dict[str, Any]:
    """A compaction of a table as a JSON value."""
    return {"kind": "chunks", "task": spec.task, "snapshot_id": spec.snapshot_id, "inputs": list(spec.inputs)}


def collector(
    dataset: IcebergDataset, settings: GarbageCollectorSettings, observer: Observer
) -> PeriodicCollector[Kind]:
    """What collects the garbage of a table. Its files are compacted ones, manifests, and versions of a list
    of compactions, as those of a database are, so the same settings say how; a minimum age that nobody has
    set is that of tables."""
    from lithify.clock import SystemClock
    from lithify.datasets.collecting import DirectoryOptions
    from lithify.datasets.iceberg.garbage import DEFAULT_MIN_AGE_MS, Kind, table_collector

    millisecond = timedelta(milliseconds=1)

    def directory(of: DirectorySettings) -> DirectoryOptions:
        is_set = "min_age" in of.model_fields_set
        min_age_ms = of.min_age // millisecond if is_set else DEFAULT_MIN_AGE_MS
        return DirectoryOptions(of.interval // millisecond, min_age_ms, of.dry_run)

    options = {
        Kind.DATA: directory(settings.compacted_options),
        Kind.MANIFEST: directory(settings.manifest_options),
        Kind.VERSION: directory(settings.compactions_options),
        Kind.NOTE: directory(settings.lithify_options),
        Kind.STAGED: directory(settings.lithify_options),
    }
    return table_collector(dataset, SystemClock(), options, observer)


def gc(
    url: str, config: Config, delete: bool, min_age_ms: int | None, max_percent: int | None, as_json: bool
) -> None:
    """Show what nothing needs any more, and delete it when told to."""
    from lithify.clock import SystemClock
    from lithify.datasets.iceberg.garbage import (
        DEFAULT_MAX_PERCENT,
        DEFAULT_MIN_AGE_MS,
        GarbageOptions,
        collect,
    )

    options = GarbageOptions(
        min_age_ms=DEFAULT_MIN_AGE_MS if min_age_ms is None else min_age_ms,
        dry_run=not delete,
        max_percent=DEFAULT_MAX_PERCENT if max_percent is None else max_percent,
    )
    dataset = open_table(url, config)
    report = collect(dataset, SystemClock(), options)
    if as_json:
        garbage = [{"kind": g.kind.value, "path": g.path, "size_bytes": g.size_bytes} for g in report.garbage]
        print_json(
            {
                "url": dataset.url,
                "dry_run": report.dry_run,
                "garbage": garbage,
                "notes": list(report.notes),
            }
        )
        return
    console = Console()
    shown = Table(title="Would delete (dry run)" if report.dry_run else "Deleted", title_justify="left")
    shown.add_column("kind")
    shown.add_column("path", overflow="fold")
    shown.add_column("bytes", justify="right")
    for found in report.garbage:
        shown.add_row(found.kind.value, found.path, text.size(found.size_bytes))
    console.print(shown if report.garbage else "There is no garbage.")
    _print_notes(console, report.notes)
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
        "did_anything": result.started,
        "committed": list(result.committed),
        "dropped": [asdict(f) for f in result.dropped],
        "refused": [asdict(f) for f in result.refused],
        "failed": [asdict(f) for f in result.failures],
        "before": _facts(before),
        "after": _facts(after),
        "ranges": totals.ranges,
        "rows": dict(totals.rows),
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "task_cpu_seconds": totals.cpu_s,
        "peak_task_memory_bytes": totals.peak_task_memory_bytes,
        "seconds": seconds,
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
    for failure in (*result.dropped, *result.refused, *result.failures):
        console.print(f"[yellow]{failure.compaction}[/] {escape(failure.reason)}", highlight=False)
    _print_notes(console, result.plan.notes)


def print_status(console: Console, found: Status) -> None:
    """What the status of a table has besides."""
    facts = _facts(found.snapshot)
    console.print(
        f"{facts['files']:,} files, {text.size(facts['bytes'])}, {facts['rows']:,} rows, "
        f"{facts['delete_files']:,} delete files",
        highlight=False,
    )
    totals = Table(title="Totals", title_justify="left")
    totals.add_column("")
    for heading in ("chunks", "files", "bytes", "rows"):
        totals.add_column(heading, justify="right")
    for name, total in found.plan.totals.items():
        totals.add_row(
            name, f"{total.units:,}", f"{total.files:,}", text.size(total.size_bytes), f"{total.rows:,}"
        )
    if found.plan.totals:
        console.print(totals)


def _print_notes(console: Console, notes: Any) -> None:
    for note in notes:
        console.print(f"  {note}", highlight=False, markup=False)

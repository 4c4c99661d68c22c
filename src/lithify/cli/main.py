"""The commands. Each parses its options, calls one function of the library and renders the result.

Exit codes: 0 done (also when there was nothing to do), 1 unexpected failure or a compaction that
failed, and the `exit_code` of the error's class in `lithify.errors`.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from lithify import __version__, telemetry
from lithify.cli import render
from lithify.cli.gc import gc
from lithify.cli.options import (
    DEFAULT_MAX_SST_SIZE,
    AsJson,
    BlockSize,
    CompactionFilter,
    Compression,
    Full,
    Master,
    MaxSstSize,
    MergeOperator,
    SchedulerOptions,
    Segment,
    SparkConf,
    StoreOptions,
    TakeOver,
    Url,
)
from lithify.cli.progress import ProgressBars, Totals
from lithify.cli.running import errors as _errors
from lithify.cli.running import pairs as _pairs
from lithify.cli.running import print_json as _print_json
from lithify.clock import SystemClock
from lithify.compaction.model import Ledger
from lithify.errors import Refused
from lithify.ids import RandomIds
from lithify.telemetry import Event, Observer

PRELOAD = "lithify.datasets.slatedb.kernel.warm_up:warm_up"

app = typer.Typer(
    help="Compact data in object storage, on Spark, while its owners keep working.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
inspect_app = typer.Typer(help="Show what a SlateDB database consists of.", no_args_is_help=True)
app.add_typer(inspect_app, name="inspect")
app.command()(gc)


def _version(value: bool) -> None:
    if value:
        print(f"lithify {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every event to stderr.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )


@app.command()
def plan(
    url: Url,
    full: Full = False,
    segment: Segment = None,
    as_json: AsJson = False,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
) -> None:
    """Say what would be compacted, and why. Writes nothing."""
    with _errors(as_json):
        dataset = _open(url, store_option, scheduler_option=scheduler_option)
        ledger = dataset.ledger()
        manifest = dataset.snapshot()
        planner = _planner(dataset, full, segment)
        proposed = planner(manifest, ledger if ledger is not None else Ledger())
        if as_json:
            _print_json(render.plan_json(dataset.url, manifest, proposed))
        else:
            render.print_plan(Console(), manifest, proposed)


@app.command()
def compact(
    url: Url,
    full: Full = False,
    segment: Segment = None,
    master: Master = "local[*]",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as `lithify plan`.")] = False,
    take_over: TakeOver = False,
    merge_operator: MergeOperator = None,
    compaction_filter: CompactionFilter = None,
    block_size: BlockSize = None,
    compression: Compression = None,
    max_sst_size: MaxSstSize = DEFAULT_MAX_SST_SIZE,
    as_json: AsJson = False,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Compact a database once: plan, merge on Spark, commit, until nothing is left to do.

    Needs the database's coordinator to be absent: the program that writes to it must have been opened
    with compactor_options = null, or be closed. Readers and that writer may go on meanwhile.
    """
    if dry_run:
        plan(url, full, segment, as_json, store_option, scheduler_option)
        return
    with _errors(as_json):
        dataset = _open(
            url,
            store_option,
            scheduler_option=scheduler_option,
            merge_operator=merge_operator,
            compaction_filter=compaction_filter,
            block_size=block_size,
            compression=compression,
            max_sst_size=max_sst_size,
        )
        _compact(dataset, full, segment, master, take_over, as_json, _pairs(spark_conf))


def _compact(
    dataset: Any,
    full: bool,
    segment: str | None,
    master: str,
    take_over: bool,
    as_json: bool,
    spark_conf: dict[str, str],
) -> None:
    from lithify import oneshot
    from lithify.datasets.slatedb.guard import CoordinatorGuard
    from lithify.datasets.slatedb.shape import shape_of
    from lithify.engine.spark import SparkEngine

    clock, ids, totals = SystemClock(), RandomIds(), Totals()
    console = Console(stderr=True)
    before = shape_of(dataset.snapshot())
    started_s = clock.monotonic_s()
    engine = SparkEngine(master, conf=spark_conf, preload=PRELOAD)
    with ProgressBars(console) as bars:
        observers: list[Observer] = [totals, telemetry.log_event, *([] if as_json else [bars])]

        def observe(event: Event) -> None:
            for observer in observers:
                observer(event)

        try:
            result = oneshot.run(
                dataset,
                engine,
                clock,
                ids,
                CoordinatorGuard(dataset, clock, ids),
                planner=_planner(dataset, full, segment),
                take_over=take_over,
                observer=observe,
            )
        finally:
            engine.close()
    seconds = clock.monotonic_s() - started_s
    after = shape_of(dataset.snapshot())
    if as_json:
        _print_json(render.result_json(dataset.url, before, after, result, totals, seconds))
    elif not result.started:
        out = Console()
        out.print("Nothing to compact.")
        for note in result.plan.notes:
            out.print(f"  {note}", highlight=False)
    else:
        render.print_result(Console(), before, after, result, totals, seconds)
    if result.failures:
        raise typer.Exit(1)


@app.command()
def worker(
    urls: Annotated[
        list[str], typer.Argument(metavar="URL…", help="Databases to work on.", show_default=False)
    ],
    master: Master = "local[*]",
    merge_operator: MergeOperator = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Work for the coordinators of one or more databases until stopped.

    The coordinator may be SlateDB's own, inside the process that holds the database, or Lithify's.
    Any number of workers may run; each claims what is free. SIGTERM gives back what is unfinished.
    """
    from lithify.service import LoopOptions, run_workers

    with _errors(False), _spark(master, spark_conf) as engine:
        workers = [_worker(_open(url, store_option, merge_operator=merge_operator), engine) for url in urls]
        run_workers(workers, _stop_on_signals(), random.Random(), LoopOptions())


@app.command()
def coordinator(
    url: Url,
    take_over: TakeOver = False,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
) -> None:
    """Coordinate a database until stopped: schedule, take back, commit. Workers do the work."""
    from lithify.service import LoopOptions, run_coordinator

    with _errors(False):
        dataset = _open(url, store_option, scheduler_option=scheduler_option)
        run_coordinator(
            _coordinator(dataset),
            _guard(dataset),
            _stop_on_signals(),
            random.Random(),
            LoopOptions(),
            take_over=take_over,
        )


@app.command()
def run(
    url: Url,
    master: Master = "local[*]",
    take_over: TakeOver = False,
    merge_operator: MergeOperator = None,
    store_option: StoreOptions = None,
    scheduler_option: SchedulerOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Coordinate a database and work on it, in one process, until stopped."""
    from lithify.service import LoopOptions, run_coordinator

    with _errors(False), _spark(master, spark_conf) as engine:
        dataset = _open(url, store_option, scheduler_option=scheduler_option, merge_operator=merge_operator)
        run_coordinator(
            _coordinator(dataset),
            _guard(dataset),
            _stop_on_signals(),
            random.Random(),
            LoopOptions(),
            take_over=take_over,
            worker=_worker(dataset, engine),
        )


def _spark(master: str, spark_conf: list[str] | None) -> Any:
    from lithify.engine.spark import SparkEngine

    return SparkEngine(master, conf=_pairs(spark_conf), preload=PRELOAD)


def _coordinator(dataset: Any) -> Any:
    from lithify.coordinator import Coordinator

    return Coordinator(dataset, SystemClock(), RandomIds(), observer=telemetry.log_event)


def _worker(dataset: Any, engine: Any) -> Any:
    from lithify.worker import Worker

    clock = SystemClock()
    name = f"lithify-{RandomIds().ulid(clock.now_ms())}"
    return Worker(dataset, engine, clock, name, observer=telemetry.log_event)


def _guard(dataset: Any) -> Any:
    from lithify.datasets.slatedb.guard import CoordinatorGuard

    return CoordinatorGuard(dataset, SystemClock(), RandomIds())


def _stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@inspect_app.command("manifest")
def inspect_manifest(
    url: Url,
    manifest_id: Annotated[int | None, typer.Option("--id", help="A version; default: the latest.")] = None,
    as_json: AsJson = False,
    store_option: StoreOptions = None,
) -> None:
    """Show a manifest: every tree, run and SST, checkpoints and clones."""
    with _errors(as_json):
        dataset = _open(url, store_option)
        if manifest_id is None:
            manifest_id, manifest = dataset.latest_manifest()
        else:
            manifest = dataset.manifest(manifest_id)
        if as_json:
            _print_json(render.manifest_json(manifest_id, manifest))
        else:
            render.print_manifest(Console(), manifest_id, manifest)


@inspect_app.command("compactions")
def inspect_compactions(url: Url, as_json: AsJson = False, store_option: StoreOptions = None) -> None:
    """Show the ledger: every compaction, its state, its worker and its progress."""
    with _errors(as_json):
        ledger = _open(url, store_option).ledger()
        if ledger is None:
            raise Refused(f"{url} has no compactions file: no coordinator has ever run on it")
        if as_json:
            _print_json(render.ledger_json(ledger))
        else:
            render.print_ledger(Console(), ledger)


@inspect_app.command("sst")
def inspect_sst(
    url: Annotated[str, typer.Argument(help="The SST itself: …/compacted/<ULID>.sst", show_default=False)],
    as_json: AsJson = False,
    store_option: StoreOptions = None,
) -> None:
    """Show one SST: its descriptor, blocks and statistics."""
    from lithify.datasets.slatedb.inspect import inspect_sst as facts_of
    from lithify.store.urls import open_store

    with _errors(as_json):
        store, key = open_store(url, _pairs(store_option))
        facts = facts_of(store, key)
        if as_json:
            _print_json(render.plain(facts))
        else:
            render.print_facts(Console(), key, facts)


def _open(
    url: str,
    store_option: list[str] | None,
    *,
    scheduler_option: list[str] | None = None,
    compression: str | None = None,
    **options: Any,
) -> Any:
    from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
    from lithify.datasets.slatedb.model import Codec
    from lithify.planning.tiered import parse_scheduler_options
    from lithify.store.urls import open_store

    if compression is not None and compression.upper() not in Codec.__members__:
        raise Refused(
            f"unknown compression {compression!r}; use one of {', '.join(Codec.__members__).lower()}"
        )
    parsed = parse_scheduler_options(_pairs(scheduler_option))
    for warning in parsed.warnings:
        Console(stderr=True).print(f"[yellow]Warning:[/] {warning}", highlight=False)
    store_options = _pairs(store_option)
    store, root = open_store(url, store_options)
    return SlateDataset(
        store,
        root,
        SystemClock(),
        RandomIds(),
        store_options=store_options,
        options=SlateOptions(
            policy=parsed.policy,
            compression=Codec[compression.upper()] if compression is not None else None,
            **options,
        ),
    )


def _planner(dataset: Any, full: bool, segment: str | None) -> Callable[[Any, Any], Any]:
    if segment is None:
        return dataset.planner(full=full)  # type: ignore[no-any-return]
    try:
        prefix = bytes.fromhex(segment)
    except ValueError:
        raise Refused(
            f"--segment {segment!r} is not hexadecimal; `lithify inspect manifest` shows the prefixes"
        ) from None
    return dataset.planner(full=full, segment=prefix)  # type: ignore[no-any-return]


if __name__ == "__main__":
    app()

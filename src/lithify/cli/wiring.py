"""From settings to the objects that do the work. Imports what it builds only when it builds it, so that
`lithify --help` and refusals stay quick."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.markup import escape

from lithify.cli import tables
from lithify.errors import Refused

if TYPE_CHECKING:
    from lithify.compaction.proposal import Planner
    from lithify.config.model import Config, DirectorySettings, SegmentSettings
    from lithify.coordination.leadership import Leadership
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.datasets.kind import Dataset
    from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
    from lithify.datasets.slatedb.timeline import SegmentTimes
    from lithify.engine.spark import SparkEngine
    from lithify.events import Observer
    from lithify.observe.metrics import Metrics
    from lithify.service.coordinator import Coordinator
    from lithify.service.garbage_loop import Collector
    from lithify.service.loops import LoopOptions
    from lithify.service.room import Room
    from lithify.service.worker import Worker, WorkerOptions
    from lithify.service.worker_pool import WorkerPool

_PRELOADS = {
    False: "lithify.datasets.slatedb.kernel.warm_up:warm_up",
    True: "lithify.datasets.iceberg.warm_up:warm_up",
}
"""By whether the dataset is a table."""


def open_any(url: str, config: Config, metrics: Metrics | None = None) -> Dataset:
    """The database or table at `url`; `metrics` sees what is read of it."""
    dataset: Dataset
    if tables.is_table(url):
        dataset = tables.open_table(url, config, metrics)
    else:
        dataset = open_dataset(url, config, metrics)
    if metrics is None:
        return dataset
    from lithify.clock import SystemClock
    from lithify.service.metered import metered

    return metered(dataset, metrics, SystemClock())


def open_dataset(url: str, config: Config, metrics: Metrics | None = None) -> SlateDataset:
    """The database at `url`; `metrics` counts the requests to its store."""
    if tables.is_table(url):
        raise Refused(f"{url}: this command works on SlateDB databases only, and this is an Iceberg table")
    from lithify.clock import SystemClock
    from lithify.datasets.slatedb.dataset import SlateDataset
    from lithify.ids import RandomIds
    from lithify.store.urls import open_store

    options = _slate_options(config)
    store, root = open_store(url, config.store_options)
    store_options = config.store_options
    if metrics is not None:
        from lithify.store.metered import MeteredStore

        store = MeteredStore(store, metrics.count_request)
    return SlateDataset(store, root, SystemClock(), RandomIds(), store_options=store_options, options=options)


def _slate_options(config: Config) -> SlateOptions:
    from lithify.datasets.slatedb.dataset import SlateOptions
    from lithify.datasets.slatedb.model import Codec
    from lithify.planning.tiered import TieredPolicy, parse_scheduler_options

    compactor, worker = config.compactor_options, config.compactor_options.worker
    codec = worker.compression_codec
    if codec is not None and codec.upper() not in Codec.__members__:
        raise Refused(f"unknown compression {codec!r}; use one of {', '.join(Codec.__members__).lower()}")
    parsed = parse_scheduler_options(
        compactor.scheduler_options,
        TieredPolicy(max_concurrent_compactions=compactor.max_concurrent_compactions),
    )
    for warning in parsed.warnings:
        Console(stderr=True).print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False)
    return SlateOptions(
        policy=parsed.policy,
        segment_times=_segment_times(compactor.segments),
        l0_max_ssts=config.l0_max_ssts,
        checkpoint_lifetime_s=round(compactor.checkpoint_lifetime.total_seconds()),
        enable_trivial_move=compactor.enable_trivial_move,
        max_sst_size=worker.max_sst_size,
        block_size=worker.block_size,
        compression=Codec[codec.upper()] if codec is not None else None,
        min_filter_keys=worker.min_filter_keys,
        merge_operator=worker.merge_operator,
        compaction_filter=worker.compaction_filter,
    )


def _segment_times(settings: SegmentSettings) -> SegmentTimes | None:
    from lithify.datasets.slatedb.timeline import SegmentTimes
    from lithify.planning.timeline.calendar import Calendar, Granularity

    if settings.pattern is None:
        return None
    microsecond = timedelta(microseconds=1)
    return SegmentTimes(
        settings.pattern,
        Calendar(Granularity(settings.granularity), settings.time_zone),
        settings.skip_from_now // microsecond,
        settings.skip_from_latest // microsecond,
    )


def planner(dataset: SlateDataset, full: bool, segment: str | None) -> Planner:
    """What a run compacts: everything, or what the scheduler finds; everywhere or in one segment."""
    return dataset.planner(full=full, segment=None if segment is None else segment_prefix(segment))


def segment_prefix(segment: str) -> bytes:
    """A segment as a person gives it."""
    try:
        return bytes.fromhex(segment)
    except ValueError:
        raise Refused(
            f"--segment {segment!r} is not hexadecimal; `lithify inspect manifest` shows the prefixes"
        ) from None


def spark_engine(config: Config, urls: Iterable[str]) -> SparkEngine:
    """The engine for these datasets; it starts Spark with its first call."""
    from lithify.engine.spark import SparkEngine

    return SparkEngine(config.spark.master, conf=config.spark.conf, preload=preload(urls))


def preload(urls: Iterable[str]) -> str:
    """What Python workers for these datasets begin with."""
    kinds = {tables.is_table(url) for url in urls}
    return ",".join(hook for is_table, hook in _PRELOADS.items() if is_table in kinds)


def leadership(dataset: Dataset) -> Leadership:
    """What keeps two coordinators apart."""
    from lithify.clock import SystemClock
    from lithify.coordination.leadership import Leadership
    from lithify.ids import RandomIds

    return Leadership(dataset, SystemClock(), RandomIds())


def coordinator(dataset: Dataset, config: Config, observer: Observer) -> Coordinator:
    """The coordinator of `dataset`."""
    from lithify.clock import SystemClock
    from lithify.ids import RandomIds
    from lithify.service.coordinator import Coordinator

    return Coordinator(
        dataset,
        SystemClock(),
        RandomIds(),
        worker_heartbeat_timeout_ms=heartbeat_timeout_ms(config),
        max_attempts=config.compactor_options.max_attempts,
        observer=observer,
    )


def worker_pool(
    urls: Sequence[str],
    open_dataset: Callable[[str], Dataset],
    engine: SparkEngine,
    config: Config,
    observer: Observer,
) -> WorkerPool:
    """Workers of all these datasets."""
    from lithify.clock import SystemClock
    from lithify.service.worker_pool import UrlList, WorkerPool

    def open_worker(url: str, shared: Room) -> Worker:
        return worker(open_dataset(url), engine, config, observer, room=shared)

    return WorkerPool(
        UrlList(urls),
        open_worker,
        room(engine, config),
        SystemClock(),
        heartbeat_interval_ms=worker_options(config).heartbeat_interval_ms,
        observer=observer,
    )


def room(engine: SparkEngine, config: Config) -> Room:
    """What the workers of this process share."""
    from concurrent.futures import ThreadPoolExecutor

    from lithify.service.room import Room

    options = worker_options(config)
    threads = ThreadPoolExecutor(options.max_concurrent_compactions, thread_name_prefix="lithify-prepare")
    return Room(engine, options, threads)


def worker(
    dataset: Dataset,
    engine: SparkEngine,
    config: Config,
    observer: Observer,
    name: str | None = None,
    *,
    room: Room,
) -> Worker:
    """A worker of `dataset`, under a new name unless it has one."""
    from lithify.clock import SystemClock
    from lithify.ids import RandomIds
    from lithify.service.worker import Worker

    clock = SystemClock()
    return Worker(
        dataset,
        engine,
        clock,
        f"lithify-{RandomIds().ulid(clock.now_ms())}" if name is None else name,
        options=worker_options(config),
        room=room,
        observer=observer,
    )


def worker_options(config: Config) -> WorkerOptions:
    """How a worker works."""
    from lithify.service.worker import WorkerOptions

    worker = config.compactor_options.worker
    return WorkerOptions(
        max_concurrent_compactions=worker.max_concurrent_compactions,
        heartbeat_interval_ms=_ms(worker.heartbeat_interval),
        heartbeat_min_interval_ms=_ms(worker.heartbeat_min_interval),
        heartbeat_bytes=worker.heartbeat_bytes,
        spare_claim_delay_ms=_ms(worker.compactions_poll_interval),
        range_start_timeout_ms=_ms(worker.range_start_timeout),
        first_retry_pause_ms=_ms(worker.first_retry_pause),
        max_retry_pause_ms=_ms(worker.max_retry_pause),
    )


def heartbeat_timeout_ms(config: Config) -> int:
    """After how much silence a worker counts as lost."""
    return _ms(config.compactor_options.worker_heartbeat_timeout)


def collector(dataset: Dataset, config: Config, observer: Observer) -> Collector | None:
    """What collects the garbage of `dataset`; `None` when the settings say that nothing does."""
    from lithify.clock import SystemClock
    from lithify.datasets.collecting import DirectoryOptions
    from lithify.datasets.slatedb.collector import GarbageCollectorOptions, garbage_collector
    from lithify.ids import RandomIds

    settings = config.garbage_collector_options
    if not settings.enabled:
        return None
    if tables.is_table(dataset.url):
        return tables.collector(cast("IcebergDataset", dataset), settings, observer)

    def directory(of: DirectorySettings) -> DirectoryOptions:
        return DirectoryOptions(_ms(of.interval), _ms(of.min_age), of.dry_run)

    options = GarbageCollectorOptions(
        manifest_options=directory(settings.manifest_options),
        wal_options=directory(settings.wal_options),
        wal_fence_options=directory(settings.wal_fence_options),
        compacted_options=directory(settings.compacted_options),
        compactions_options=directory(settings.compactions_options),
        detach_options=directory(settings.detach_options),
        lithify_options=directory(settings.lithify_options),
    )
    return garbage_collector(
        cast("SlateDataset", dataset), SystemClock(), RandomIds(), options=options, observer=observer
    )


def loop_options(config: Config) -> LoopOptions:
    """How often the loops look."""
    from lithify.service.loops import LoopOptions

    compactor = config.compactor_options
    return LoopOptions(
        poll_interval_s=compactor.poll_interval.total_seconds(),
        commit_compacted_interval_s=compactor.commit_compacted_interval.total_seconds(),
        compactions_poll_interval_s=compactor.worker.compactions_poll_interval.total_seconds(),
    )


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _ms(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))

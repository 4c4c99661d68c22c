"""Constructs objects from settings. Modules are imported when they are needed, so that `lithify --help` and
refusals are fast."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lithify.base.redaction import redact
from lithify.datasets.registry import all_registered, registered_for

SHOWN_STORE_WAIT = "2s"
"""How long a dashboard waits for a store."""
COMPILING_AFTER_S = 4.0
"""Shorter runs do not mention compilation."""
COMPILING = (
    "The code that merges rows is compiled once for this machine: the first compaction waits about half a "
    "minute for it. `lithify warm-up` compiles it ahead of time."
)

if TYPE_CHECKING:
    from lithify.base.clock import Clock
    from lithify.base.events import Observer
    from lithify.base.ids import Ids
    from lithify.config.model import Config
    from lithify.coordination.commit_records import CommitRecords
    from lithify.coordination.groups import GroupFiles
    from lithify.coordination.leadership import Leadership
    from lithify.datasets.collecting import PeriodicCollector
    from lithify.datasets.kind import DatasetPort
    from lithify.datasets.registry import Registered
    from lithify.engine.ports import Engine
    from lithify.engine.spark import SparkEngine
    from lithify.fleet.catalog.model import DatasetRule
    from lithify.fleet.files import FleetFiles
    from lithify.fleet.members import FleetRole
    from lithify.fleet.metrics import FleetMetrics
    from lithify.mirror.commit_recording import Recorder
    from lithify.mirror.dataset_mirror import DatasetMirror
    from lithify.observe.metrics import Metrics
    from lithify.service.coordinator import Coordinator
    from lithify.service.options import CoordinatorOptions, WorkerOptions
    from lithify.service.slots import WorkerSlots
    from lithify.service.worker import Worker
    from lithify.service.worker_pool import WorkerPool
    from lithify.store.metered import RequestOutcome, Verb
    from lithify.store.objects import ObjectStore
    from lithify.store.resilience.waiting import WaitPolicy


def open_dataset(
    url: str,
    config: Config,
    metrics: Metrics | None = None,
    waiting: WaitPolicy | None = None,
    count: Callable[[Verb, RequestOutcome], None] | None = None,
    shared: DatasetMirror | None = None,
) -> DatasetPort:
    """Open the dataset at `url`. `metrics` and `shared` observe its reads; `metrics` and `count` count
    requests to its store. `waiting` says how long to wait for the store; the default is that of commands."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.datasets.waiting import command_waiting
    from lithify.store.metered import MeteredStore

    if waiting is None:
        waiting = command_waiting(url, config)
    counts = [one for one in (count, None if metrics is None else metrics.count_request) if one is not None]

    def wrap(store: ObjectStore) -> ObjectStore:
        for one in counts:
            store = MeteredStore(store, one)
        return store

    open_kind: Callable[..., DatasetPort] = registered_for(url).load().open
    dataset = open_kind(url, config, SystemClock(), RandomIds(), wrap, waiting)
    if metrics is not None:
        from lithify.mirror.metered_reads import metered

        metered(dataset, metrics, SystemClock())
    if shared is not None:
        dataset.observers.add(shared)
    return dataset


def open_to_read(url: str, config: Config) -> DatasetPort:
    """Open the dataset at `url` for reading; its store refuses writes."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.datasets.waiting import command_waiting
    from lithify.store.wrapped import ReadOnlyStore

    open_kind: Callable[..., DatasetPort] = registered_for(url).load().open
    waiting = command_waiting(url, config)
    return open_kind(url, config, SystemClock(), RandomIds(), ReadOnlyStore, waiting)


def metrics(*, coordinates: bool) -> Metrics:
    from lithify.base.clock import SystemClock
    from lithify.observe.metrics import Metrics

    def other_names(url: str) -> Mapping[str, str]:
        return registered_for(url).load_options().metric_names

    return Metrics(SystemClock(), coordinates=coordinates, other_names=other_names)


def spark_engine(
    config: Config, urls: Sequence[str], spark: Any = None, what: str | None = None
) -> SparkEngine:
    """Return the engine for these datasets. It starts Spark with its first call, or uses the session `spark`.
    `what` is their common name, if they have one."""
    from lithify.engine.spark import SparkEngine

    return SparkEngine(
        config.spark.master,
        app_name=app_name(urls if what is None else [what]),
        conf=config.spark.conf,
        preload=preload(urls),
        spark=spark,
    )


def app_name(urls: Sequence[str]) -> str:
    """Return the default of `spark.app.name`, as shown on Spark's pages."""
    first, others = next(iter(urls), ""), len(urls) - 1
    return redact(f"lithify {first}{f' and {others} more' if others > 0 else ''}".strip())


def preload(urls: Iterable[str]) -> str:
    """Return what Python workers for these datasets preload at their start, separated by commas."""
    kinds = {registered_for(url) for url in urls}
    return ",".join(kind.preload for kind in all_registered() if kind in kinds and kind.preload)


def warm_up(kind: Registered) -> None:
    """Compile the code for such datasets, and store it in the cache folder."""
    from importlib import import_module

    module, _, name = kind.warm_up.partition(":")
    getattr(import_module(module), name)()


@contextmanager
def telling_of_compilation(
    config: Config, urls: Sequence[str], tell: Callable[[str], None], *, after_s: float = COMPILING_AFTER_S
) -> Iterator[None]:
    """Call `tell` during the block if it takes long, tasks run on this machine, and code has to be compiled
    first. The check runs in a thread, as it would delay the work."""
    is_over = threading.Event()

    def look() -> None:
        if is_over.wait(after_s) or not _is_local(config):
            return
        cold = [kind for kind in all_registered() if not kind.is_warmed_up(os.environ)]
        if any(registered_for(url) in cold for url in urls) and not is_over.is_set():
            tell(COMPILING)

    looking = threading.Thread(target=look, name="lithify-warm", daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()


def _is_local(config: Config) -> bool:
    from lithify.engine.ambient import MASTER, ambient_settings

    decided = ambient_settings(os.environ).get(MASTER, "local") if config.spark.master is None else ""
    return (config.spark.master or decided).startswith("local")


def leadership(dataset: DatasetPort, holder: str | None = None) -> Leadership:
    """Return the leadership of a dataset; `holder` defaults to a new name."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.coordination.leadership import Leadership

    return Leadership(dataset, SystemClock(), RandomIds(), holder)


def new_name() -> str:
    """Return a new name for this process as coordinator and worker of one dataset."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds

    return f"lithify-{RandomIds().ulid(SystemClock().now_ms())}"


def coordinator(
    dataset: DatasetPort, config: Config, observer: Observer, companion: Worker | None = None
) -> Coordinator:
    """Return the coordinator of `dataset`; `companion` is the embedded worker."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.service.coordinator import Coordinator

    return Coordinator(
        dataset,
        SystemClock(),
        RandomIds(),
        options=coordinator_options(config),
        companion=companion,
        observer=observer,
    )


def coordinator_options(config: Config) -> CoordinatorOptions:
    from lithify.service.options import CoordinatorOptions

    return CoordinatorOptions(config.service.worker_heartbeat_timeout_ms, config.service.max_attempts)


def worker_pool(
    urls: Sequence[str],
    open_dataset: Callable[[str], DatasetPort],
    engine: Engine,
    config: Config,
    observer: Observer,
    names: Mapping[str, str] = MappingProxyType({}),
) -> WorkerPool:
    """Return the pool of workers of these datasets; a worker whose dataset is not in `names` gets a new
    name."""
    from lithify.base.clock import SystemClock
    from lithify.service.worker_pool import UrlList, WorkerPool

    def open_worker(url: str, shared: WorkerSlots) -> Worker:
        return worker(open_dataset(url), engine, config, observer, names.get(url), room=shared)

    return WorkerPool(
        UrlList(urls),
        open_worker,
        room(engine, config),
        SystemClock(),
        heartbeat_interval_ms=worker_options(config).heartbeat_interval_ms,
        observer=observer,
    )


def room(engine: Engine, config: Config) -> WorkerSlots:
    """Return the slots that the workers of this process share."""
    from concurrent.futures import ThreadPoolExecutor

    from lithify.service.slots import WorkerSlots

    options = worker_options(config)
    threads = ThreadPoolExecutor(options.max_concurrent_compactions, thread_name_prefix="lithify-prepare")
    return WorkerSlots(engine, options, threads)


def worker(
    dataset: DatasetPort,
    engine: Engine,
    config: Config,
    observer: Observer,
    name: str | None = None,
    *,
    room: WorkerSlots,
) -> Worker:
    """Return a worker of `dataset`; `name` defaults to a new one."""
    from lithify.base.clock import SystemClock
    from lithify.service.worker import Worker

    return Worker(
        dataset,
        engine,
        SystemClock(),
        new_name() if name is None else name,
        room=room,
        observer=observer,
    )


def worker_options(config: Config) -> WorkerOptions:
    from lithify.config.durations import to_milliseconds
    from lithify.service.options import WorkerOptions

    worker = config.service.worker
    return WorkerOptions(
        max_concurrent_compactions=worker.max_concurrent_compactions,
        heartbeat_interval_ms=to_milliseconds(worker.heartbeat_interval),
        heartbeat_min_interval_ms=to_milliseconds(worker.heartbeat_min_interval),
        heartbeat_bytes=int(worker.heartbeat_bytes),
        spare_claim_delay_ms=to_milliseconds(worker.compactions_poll_interval),
        range_start_timeout_ms=to_milliseconds(worker.range_start_timeout),
        first_retry_pause_ms=to_milliseconds(worker.first_retry_pause),
        max_retry_pause_ms=to_milliseconds(worker.max_retry_pause),
    )


def recorder(config: Config, clock: Clock) -> Recorder | None:
    """Return the recorder of commits; `None` if the settings disable records."""
    from lithify.mirror.commit_recording import Recorder

    keep_ms = config.service.keep_history_ms
    return Recorder(clock, keep_ms=keep_ms) if keep_ms else None


def commit_records(dataset: DatasetPort) -> CommitRecords:
    from lithify.coordination.commit_records import CommitRecords

    store, folder = registered_for(dataset.url).load().own_place(dataset)
    return CommitRecords(store, folder, dataset.observers)


def collector(dataset: DatasetPort, config: Config, observer: Observer) -> PeriodicCollector[Any] | None:
    """Return the garbage collector of `dataset`; `None` if the settings disable it."""
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds

    if not config.service.collect_garbage:
        return None
    kind = registered_for(dataset.url).load()
    return kind.collector(dataset, config, SystemClock(), RandomIds(), observer)


def fleet_metrics(roles: Iterable[FleetRole]) -> FleetMetrics:
    """Return the metrics of a process with these roles in a fleet."""
    from lithify.base.clock import SystemClock
    from lithify.fleet.metrics import FleetMetrics

    return FleetMetrics(SystemClock(), metrics(coordinates=False), roles)


def fleet_files(
    url: str,
    config: Config,
    waiting: WaitPolicy,
    clock: Clock,
    ids: Ids,
    count: Callable[[Verb, RequestOutcome], None] | None = None,
) -> FleetFiles:
    """Return the files of the fleet at `url`; `count` counts their requests."""
    from lithify.fleet.files import FleetFiles
    from lithify.store.metered import MeteredStore
    from lithify.store.proof import proved
    from lithify.store.urls import open_store

    store, folder = open_store(url, config.store_options_of(url), waiting)
    if count is not None:
        store = MeteredStore(store, count)
    return FleetFiles(url, proved(store, folder, ids), folder, clock, ids)


def group_files(url: str, config: Config, waiting: WaitPolicy, clock: Clock, ids: Ids) -> GroupFiles:
    from lithify.coordination.groups import GroupFiles
    from lithify.store.proof import proved
    from lithify.store.urls import open_store

    store, folder = open_store(url, config.store_options_of(url), waiting)
    return GroupFiles(proved(store, folder, ids), folder, clock, ids)


def config_of(rule: DatasetRule, config: Config, fleet: str) -> Config:
    """Return the settings for a rule's datasets: the rule's over the process's. Raise `Refused` if the
    process does not allow the catalog of that fleet to set one of them."""
    from lithify.fleet.allowed import check_allowed

    found = with_settings_of(rule, config)  # raises `Refused` for an unknown setting
    check_allowed(rule, fleet, config)
    return found


def with_settings_of(rule: DatasetRule, config: Config) -> Config:
    """Return the same without checking what is allowed."""
    from lithify.config.loading import overlaid

    if not rule.settings:
        return config
    given = {name: (f"rule {rule.pattern}", value) for name, value in rule.settings.items()}
    return overlaid(config, given)


def patient(config: Config) -> Config:
    """Return the settings for a dashboard, which waits for stores only briefly."""
    from lithify.config.loading import overlaid

    return overlaid(config, {"service.store_wait": ("the dashboard", SHOWN_STORE_WAIT)})


def find_datasets(rule: DatasetRule, config: Config, waiting: WaitPolicy | None = None) -> list[str]:
    """Return the URLs that match a rule's pattern; some may turn out not to be datasets. `config` has the
    settings for them."""
    from lithify.datasets.waiting import command_waiting

    if waiting is None:
        waiting = command_waiting(rule.pattern, config)
    return registered_for(rule.pattern).find(rule.pattern, config, waiting)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set during the block. Only for the main thread."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

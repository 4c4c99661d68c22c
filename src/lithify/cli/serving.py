"""`lithify run`, `coordinator` and `worker`: compact continuously, until stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lithify.cli.options.common import (
    ConfigFile,
    LogFormat,
    Master,
    MetricsPort,
    Sets,
    SparkConf,
    StoreOptions,
    TakeOver,
    Urls,
    WebPort,
)
from lithify.cli.options.of_kinds import Given, takes_kind_options
from lithify.cli.options.settings import settings
from lithify.cli.running import errors

if TYPE_CHECKING:
    from lithify.api.fleets import Fleet, WatchedFleet
    from lithify.config.model import Config
    from lithify.web.serving import DashboardService


@takes_kind_options("run")
def run(
    urls: Urls,
    master: Master = None,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
    *,
    given: Given,
) -> None:
    """Coordinate databases, tables and logs and work on them, in one process, until stopped.

    SIGTERM or Ctrl-C gives back what is unfinished, with its finished ranges recorded.

    Examples:

        lithify run s3://bucket/my-db

        lithify run --config lithify.toml --metrics-port 9090 --log-format json s3://bucket/my-db

        lithify run s3://bucket/my-db iceberg://catalog/namespace.table
    """
    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            master=master,
            metrics_port=metrics_port,
            web_port=web_port,
            log_format=log_format,
            store_option=store_option,
            spark_conf=spark_conf,
        )
        given.check(*urls)
        _serve(urls, effective, take_over=take_over)


@takes_kind_options("coordinator")
def coordinator(
    urls: Urls,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Coordinate databases, tables and logs until stopped: schedule, take back, commit. Workers do the work.

    Example:

        lithify coordinator --set service.worker_heartbeat_timeout=60s s3://bucket/my-db
    """
    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            metrics_port=metrics_port,
            web_port=web_port,
            log_format=log_format,
            store_option=store_option,
        )
        given.check(*urls)
        _serve(urls, effective, take_over=take_over, works=False)


@takes_kind_options("worker")
def worker(
    urls: Urls,
    master: Master = None,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
    *,
    given: Given,
) -> None:
    """Work for the coordinators of databases, tables and logs until stopped.

    The coordinator may be SlateDB's own, inside the process that holds the database, or Lithify's.
    Any number of workers may run; each claims what is free. SIGTERM gives back what is unfinished.

    Example:

        lithify worker --master spark://host:7077 s3://bucket/my-db iceberg://catalog/namespace.table
    """
    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            master=master,
            metrics_port=metrics_port,
            web_port=web_port,
            log_format=log_format,
            store_option=store_option,
            spark_conf=spark_conf,
        )
        given.check(*urls)
        _serve(urls, effective, coordinates=False, works=True)


def served_beside(
    urls: Sequence[str], fleet: str | Fleet | None, config: Config, source: DashboardService | None = None
) -> AbstractContextManager[Any]:
    """Serve the dashboard until the end of the block, if the settings have a port for it. It shows the
    datasets that `source`, if given, reads already."""
    if config.web.port is None:
        return nullcontext()
    from lithify.web.serving import served

    return served(urls, fleet, config, source)


def watched_beside(fleet: str, config: Config) -> WatchedFleet | None:
    """Return the fleet as its coordinator in this process reads it, for a dashboard; `None` if there is no
    port for one."""
    if config.web.port is None:
        return None
    from lithify.api.fleets import WatchedFleet
    from lithify.base.clock import SystemClock
    from lithify.fleet.fleet_mirror import SharedFleet

    return WatchedFleet(fleet, SharedFleet(SystemClock()), settings=config)


def _serve(
    urls: list[str],
    config: Config,
    *,
    take_over: bool = False,
    coordinates: bool = True,
    works: bool | None = None,
) -> None:
    from lithify.api import wiring
    from lithify.api.serving import Service
    from lithify.base.clock import SystemClock
    from lithify.observe.logs import EventLog

    log = EventLog(SystemClock())
    service = Service(
        urls, settings=config, on_event=log, take_over=take_over, coordinates=coordinates, works=works
    )
    with wiring.stop_on_signals() as stop, service:
        service.run(stop)

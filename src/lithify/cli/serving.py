"""`lithify run`, `coordinator` and `worker`: compact continuously, until stopped."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from lithify.cli.kind_options import Given, takes_kind_options
from lithify.cli.options import (
    ConfigFile,
    LogFormat,
    Master,
    MetricsPort,
    Sets,
    SparkConf,
    StoreOptions,
    TakeOver,
    Url,
    Urls,
)
from lithify.cli.running import errors
from lithify.cli.settings import settings

if TYPE_CHECKING:
    from lithify.config.model import Config


@takes_kind_options("run")
def run(
    url: Url,
    master: Master = None,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
    *,
    given: Given,
) -> None:
    """Coordinate a database or table and work on it, in one process, until stopped.

    SIGTERM or Ctrl-C gives back what is unfinished, with its finished ranges recorded.

    Examples:

        lithify run s3://bucket/my-db

        lithify run --config lithify.toml --metrics-port 9090 --log-format json s3://bucket/my-db
    """
    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            master=master,
            metrics_port=metrics_port,
            log_format=log_format,
            store_option=store_option,
            spark_conf=spark_conf,
        )
        given.check(url)
        _coordinate(url, effective, take_over, works=effective.service.embedded_worker)


@takes_kind_options("coordinator")
def coordinator(
    url: Url,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Coordinate a database or table until stopped: schedule, take back, commit. Workers do the work.

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
            log_format=log_format,
            store_option=store_option,
        )
        given.check(url)
        _coordinate(url, effective, take_over, works=False)


@takes_kind_options("worker")
def worker(
    urls: Urls,
    master: Master = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
    *,
    given: Given,
) -> None:
    """Work for the coordinators of databases and tables until stopped.

    The coordinator may be SlateDB's own, inside the process that holds the database, or Lithify's.
    Any number of workers may run; each claims what is free. SIGTERM gives back what is unfinished.

    Example:

        lithify worker --master spark://host:7077 s3://bucket/my-db iceberg://catalog/namespace.table
    """
    from lithify import wiring

    with errors(False):
        effective = settings(
            config,
            sets,
            given,
            log_level="info",
            master=master,
            metrics_port=metrics_port,
            log_format=log_format,
            store_option=store_option,
            spark_conf=spark_conf,
        )
        from lithify.cli.process import Process
        from lithify.service.loops import run_workers

        process = Process(effective, coordinates=False)
        stop = wiring.stop_on_signals()
        with process, wiring.spark_engine(effective, urls) as engine:
            pool = wiring.worker_pool(urls, process.open_dataset, engine, effective, process.observe)
            run_workers(pool, stop, random.Random(), wiring.loop_options(effective))


def _coordinate(url: str, config: Config, take_over: bool, *, works: bool) -> None:
    from contextlib import ExitStack

    from lithify import wiring
    from lithify.cli.process import Process
    from lithify.service.loops import run_coordinator

    process = Process(config, coordinates=True)
    dataset = process.open_dataset(url)
    stop = wiring.stop_on_signals()
    with ExitStack() as stack:
        stack.enter_context(process)
        worker, leadership = None, wiring.leadership(dataset)
        if works:
            engine = stack.enter_context(wiring.spark_engine(config, [url]))
            # Under the name in the lease: who starts after a crash takes back at once what it held.
            worker = wiring.worker(
                dataset, engine, config, process.observe, leadership.holder, room=wiring.room(engine, config)
            )
        run_coordinator(
            wiring.coordinator(dataset, config, process.observe),
            leadership,
            stop,
            random.Random(),
            wiring.loop_options(config),
            take_over=take_over,
            worker=worker,
            collector=wiring.collector(dataset, config, process.observe),
        )

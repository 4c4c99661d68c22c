"""`lithify run`, `coordinator` and `worker`: compact continuously, until stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import MASTER, METRICS_PORT, SPARK_CONF, WEB_PORT, TakeOver, Urls
from lithify.cli.options.of_kinds import options_of_kinds

if TYPE_CHECKING:
    from lithify.api.fleets import Fleet, WatchedFleet
    from lithify.config.model import Config
    from lithify.web.serving import DashboardService


@command(
    METRICS_PORT,
    WEB_PORT,
    SPARK_CONF,
    of_kinds=options_of_kinds("run"),
    is_service=True,
    before={"take_over": [MASTER]},
)
def run(context: CommandContext, urls: Urls, take_over: TakeOver = False) -> None:
    """Coordinate and compact databases, tables and logs in one process, until stopped.

    SIGTERM or Ctrl-C releases unfinished compactions, with their finished ranges recorded.

    Examples:

        lithify run s3://bucket/my-db

        lithify run --config lithify.toml --metrics-port 9090 --log-format json s3://bucket/my-db

        lithify run s3://bucket/my-db iceberg://catalog/namespace.table
    """
    _serve(context, urls, take_over=take_over)


@command(METRICS_PORT, WEB_PORT, of_kinds=options_of_kinds("coordinator"), is_service=True)
def coordinator(context: CommandContext, urls: Urls, take_over: TakeOver = False) -> None:
    """Coordinate databases, tables and logs until stopped: plan, schedule, reclaim, commit. Workers compact.

    Example:

        lithify coordinator --set service.worker_heartbeat_timeout=60s s3://bucket/my-db
    """
    _serve(context, urls, take_over=take_over, works=False)


@command(MASTER, METRICS_PORT, WEB_PORT, SPARK_CONF, of_kinds=options_of_kinds("worker"), is_service=True)
def worker(context: CommandContext, urls: Urls) -> None:
    """Run the compactions of databases, tables and logs until stopped.

    The coordinator may be Lithify's, or SlateDB's own in the process that opened the database. Any number of
    workers may run; each claims compactions that are free. SIGTERM releases unfinished compactions.

    Example:

        lithify worker --master spark://host:7077 s3://bucket/my-db iceberg://catalog/namespace.table
    """
    _serve(context, urls, coordinates=False, works=True)


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
    context: CommandContext,
    urls: list[str],
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
        urls, settings=context.config, on_event=log, take_over=take_over, coordinates=coordinates, works=works
    )
    with wiring.stop_on_signals() as stop, service:
        service.run(stop)

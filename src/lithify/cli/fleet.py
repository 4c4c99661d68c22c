"""`lithify fleet`: many datasets, coordinated by a few processes, with one pool of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import (
    AsJson,
    ConfigFile,
    LogFormat,
    Master,
    MetricsPort,
    Sets,
    SparkConf,
    StoreOptions,
    WebPort,
)
from lithify.cli.options.of_kinds import NOTHING
from lithify.cli.options.settings import settings
from lithify.cli.options.values import seconds_of
from lithify.cli.running import errors, pairs, print_json, print_shown
from lithify.cli.serving import served_beside, watched_beside

if TYPE_CHECKING:
    from lithify.api.fleets import Fleet
    from lithify.views.blocks import Shown

fleet_app = typer.Typer(
    help="Many databases and tables: what they are, who serves them, what waits.", no_args_is_help=True
)
tenant_app = typer.Typer(
    help="How the work of a fleet's tenants is treated, against that of others.", no_args_is_help=True
)
fleet_app.add_typer(tenant_app, name="tenant")
TenantName = Annotated[
    str, typer.Argument(metavar="NAME", help="The tenant, as `fleet add` names it.", show_default=False)
]
FleetUrl = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="Where the fleet keeps what it knows: a path, file:///path, s3://bucket/prefix, gs://…, az://…",
        show_default=False,
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Only what this queue has; may be repeated. Default: all.",
        show_default=False,
    ),
]
ExitWhenIdle = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="End when there was nothing to do for so long, such as 5m."),
]
Patterns = Annotated[
    list[str],
    typer.Argument(
        metavar="PATTERN",
        help="Databases and tables by URL, or with '*' for many: s3://bucket/tenants/*/db, "
        "iceberg://catalog/namespace.*",
        show_default=False,
    ),
]


@fleet_app.command("init")
def init(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Make a fleet: without datasets yet, and with one queue that takes everything.

    Example:

        lithify fleet init s3://bucket/fleet
    """

    def ask(opened: Fleet) -> Shown:
        opened.init()
        return _status(opened)

    run(fleet, as_json, config, sets, store_option, ask)


@fleet_app.command("add")
def add(
    fleet: FleetUrl,
    patterns: Patterns,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The queue of all their work; default: by size.", show_default=False
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For whom they are; '*': what the first '*' of the pattern stands for."
        ),
    ] = None,
    coordinated_by: Annotated[
        str,
        typer.Option(
            metavar="WHO",
            help="fleet: its coordinators; owner: somebody else, such as the process that writes it.",
        ),
    ] = "fleet",
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting for these datasets alone; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Add databases and tables, or change how they are treated. New ones that match later are found.

    Examples:

        lithify fleet add --tenant '*' s3://bucket/fleet 's3://bucket/tenants/*/db'

        lithify fleet add --queue large s3://bucket/fleet 'iceberg://catalog/events.*'
    """

    def ask(opened: Fleet) -> Shown:
        given = pairs(setting)
        opened.add(*patterns, queue=queue, tenant=tenant, coordinates=coordinated_by, settings=given)
        return _datasets(opened)

    run(fleet, as_json, config, sets, store_option, ask)


@fleet_app.command("remove")
def remove(
    fleet: FleetUrl,
    patterns: Patterns,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Take databases and tables away, by what they were added with. What is under way goes on."""

    def ask(opened: Fleet) -> Shown:
        opened.remove(*patterns)
        return _datasets(opened)

    run(fleet, as_json, config, sets, store_option, ask)


@fleet_app.command("list")
def show(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show what was added, and the databases and tables that this names now. Writes nothing."""
    run(fleet, as_json, config, sets, store_option, _datasets)


@fleet_app.command("wake")
def wake(
    fleet: FleetUrl,
    urls: Annotated[
        list[str], typer.Argument(metavar="URL", help="Databases and tables.", show_default=False)
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Have databases and tables looked at now: a coordinator may look at one that rests every five minutes
    only."""

    def ask(opened: Fleet) -> Shown:
        from lithify.views.blocks import Line, Shown

        opened.wake(*urls)
        return Shown({"woken": list(urls)}, tuple(Line(url, "Woken:") for url in urls))

    run(fleet, as_json, config, sets, store_option, ask)


@tenant_app.command("set")
def set_tenant(
    fleet: FleetUrl,
    name: TenantName,
    weight: Annotated[
        int | None,
        typer.Option(metavar="N", help="Turns it has for one of a tenant with weight 1.", show_default=False),
    ] = None,
    most_running: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="So many of its compactions run at once, in each queue.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say how a tenant's work is treated: what is not given stays.

    Example:

        lithify fleet tenant set --weight 2 --most-running 8 s3://bucket/fleet red
    """

    def ask(opened: Fleet) -> Shown:
        given = {"weight": weight, "most_running": most_running}
        if weight is None and most_running is None:
            raise Refused("say what to change, for example --weight 2")
        opened.set_tenant(name, **{key: value for key, value in given.items() if value is not None})
        return _tenants(opened)

    run(fleet, as_json, config, sets, store_option, ask)


@tenant_app.command("remove")
def remove_tenant(
    fleet: FleetUrl,
    name: TenantName,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Treat a tenant as all others again: weight 1, no limit. Its databases and tables stay."""

    def ask(opened: Fleet) -> Shown:
        opened.remove_tenant(name)
        return _tenants(opened)

    run(fleet, as_json, config, sets, store_option, ask)


@tenant_app.command("list")
def show_tenants(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show tenants with a weight or a limit of their own. Writes nothing."""
    run(fleet, as_json, config, sets, store_option, _tenants)


@fleet_app.command("status")
def status(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say who serves a fleet, and what waits in each queue. Writes only what tells the store's time."""
    run(fleet, as_json, config, sets, store_option, _status)


@fleet_app.command("workers")
def workers(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show the workers of a fleet, for which queues they work, and how busy they are.

    Writes only what tells the store's time.
    """

    def ask(opened: Fleet) -> Shown:
        from lithify.fleet.view import show_workers

        return show_workers(opened.status())

    run(fleet, as_json, config, sets, store_option, ask)


@fleet_app.command("running")
def running(
    fleet: FleetUrl,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Ask the ledgers of all databases and tables, not the workers."),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show what a fleet's workers are working on. Writes only what tells the store's time."""

    def ask(opened: Fleet) -> Shown:
        from lithify.fleet.view import show_running

        return show_running(*opened.running(exact=exact))

    run(fleet, as_json, config, sets, store_option, ask)


@fleet_app.command("doctor")
def doctor(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say what is wrong with a fleet, and what to do. Writes only what tells the store's time.

    Exit code 0 when there is no problem (warnings are none), 10 otherwise.
    """
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from dataclasses import asdict

        from lithify.api.fleets import Fleet
        from lithify.cli.doctor import UNHEALTHY, print_findings

        findings = Fleet(fleet, settings=effective).check()
        if as_json:
            print_json([{**asdict(f), "severity": f.severity.value} for f in findings])
        else:
            print_findings(findings)
        if any(f.severity.value == "problem" for f in findings):
            raise typer.Exit(UNHEALTHY)


@fleet_app.command("run")
def run_both(
    fleet: FleetUrl,
    queue: Queues = None,
    exit_when_idle: ExitWhenIdle = None,
    master: Master = None,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Watch a fleet's databases and tables and work on them, in one process, until stopped.

    Any number of processes may run; what there is to do is divided between them.

    Example:

        lithify fleet run s3://bucket/fleet
    """
    _serve(
        fleet,
        queue,
        exit_when_idle,
        config,
        sets,
        log_format=log_format,
        metrics_port=metrics_port,
        web_port=web_port,
        store_option=store_option,
        master=master,
        spark_conf=spark_conf,
    )


@fleet_app.command("coordinator")
def coordinator(
    fleet: FleetUrl,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Watch a fleet's databases and tables, and coordinate those that have something to do; workers do it.

    A second one takes its share of the first one's, and all of it when that dies.
    """
    _serve(
        fleet,
        None,
        None,
        config,
        sets,
        log_format=log_format,
        metrics_port=metrics_port,
        web_port=web_port,
        store_option=store_option,
        works=False,
    )


@fleet_app.command("worker")
def worker(
    fleet: FleetUrl,
    queue: Queues = None,
    exit_when_idle: ExitWhenIdle = None,
    master: Master = None,
    metrics_port: MetricsPort = None,
    web_port: WebPort = None,
    log_format: LogFormat = None,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    spark_conf: SparkConf = None,
) -> None:
    """Work on what a fleet's queues have, all of them or some, until stopped or they are deleted.

    Example:

        lithify fleet worker --queue small --exit-when-idle 5m s3://bucket/fleet
    """
    _serve(
        fleet,
        queue,
        exit_when_idle,
        config,
        sets,
        log_format=log_format,
        metrics_port=metrics_port,
        web_port=web_port,
        store_option=store_option,
        master=master,
        spark_conf=spark_conf,
        keeps=False,
    )


def _serve(
    fleet: str,
    queues: list[str] | None,
    exit_when_idle: str | None,
    config: Path | None,
    sets: list[str] | None,
    *,
    keeps: bool = True,
    works: bool = True,
    **given: object,
) -> None:
    """Run a fleet coordinator, workers, or both until stopped. `given` are options that stand for
    settings."""
    with errors(False):
        effective = settings(config, sets, NOTHING, log_level="info", **given)
        idle_s = None if exit_when_idle is None else seconds_of(exit_when_idle)
        from lithify.api import wiring
        from lithify.api.fleets import Fleet
        from lithify.base.clock import SystemClock
        from lithify.config.loading import overlaid
        from lithify.observe.logs import EventLog

        # Without a port, because `served_beside` serves the dashboard.
        opened = Fleet(fleet, settings=overlaid(effective, {"web.port": ("here", None)}))
        log = EventLog(SystemClock())
        watched = watched_beside(fleet, effective) if keeps else None
        with wiring.stop_on_signals() as stop, served_beside([], watched or fleet, effective, watched):
            opened.run(
                stop,
                queues=queues or (),
                keeps=keeps,
                works=works,
                exit_when_idle_s=idle_s,
                on_event=log,
                shared=None if watched is None else watched.shared,
            )


def run(
    url: str,
    as_json: bool,
    config: Path | None,
    sets: list[str] | None,
    store_option: list[str] | None,
    ask: Callable[[Fleet], Shown],
) -> None:
    """Call `ask` with the fleet and show the result."""
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.api.fleets import Fleet

        print_shown(ask(Fleet(url, settings=effective)), as_json)


def _status(opened: Fleet) -> Shown:
    from lithify.fleet.view import show_status

    return show_status(opened.status())


def _tenants(opened: Fleet) -> Shown:
    from lithify.fleet.view import show_tenants

    return show_tenants(opened.catalog().catalog.tenants)


def _datasets(opened: Fleet) -> Shown:
    from lithify.fleet.view import show_datasets

    found, problems = opened.datasets()
    return show_datasets(opened.catalog().catalog, found, problems)

"""`lithify fleet`: many datasets, coordinated by a few processes, with one pool of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.doctor import print_findings
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import MASTER, METRICS_PORT, SPARK_CONF, WEB_PORT
from lithify.cli.options.values import seconds_of
from lithify.cli.running import pairs
from lithify.cli.serving import served_beside, watched_beside

if TYPE_CHECKING:
    from lithify.api.fleets import Fleet
    from lithify.views.blocks import Shown

fleet_app = typer.Typer(
    help="Manage a fleet: many databases and tables with shared coordinators and workers.",
    no_args_is_help=True,
)
tenant_app = typer.Typer(help="Manage weights and limits of a fleet's tenants.", no_args_is_help=True)
fleet_app.add_typer(tenant_app, name="tenant")
TenantName = Annotated[
    str, typer.Argument(metavar="NAME", help="The tenant, as named in `fleet add`.", show_default=False)
]
FleetUrl = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="The fleet's folder: a path, file:///path, s3://bucket/prefix, gs://…, az://…",
        show_default=False,
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Only work of this queue; may be repeated. Default: all queues.",
        show_default=False,
    ),
]
ExitWhenIdle = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Exit after this long without work, such as 5m."),
]
Patterns = Annotated[
    list[str],
    typer.Argument(
        metavar="PATTERN",
        help="URLs of databases and tables, or patterns with '*': s3://bucket/tenants/*/db, "
        "iceberg://catalog/namespace.*",
        show_default=False,
    ),
]


@fleet_app.command("init")
@command()
def init(context: CommandContext, fleet: FleetUrl) -> None:
    """Create a fleet without datasets, and with one queue that takes all work.

    Example:

        lithify fleet init s3://bucket/fleet
    """
    opened = context.fleet(fleet)
    opened.init()
    context.show(_status(opened))


@fleet_app.command("add")
@command()
def add(
    context: CommandContext,
    fleet: FleetUrl,
    patterns: Patterns,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The queue for all their work; default: by size.", show_default=False
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The tenant that owns them; '*': the text that the first '*' of the pattern matches.",
        ),
    ] = None,
    coordinated_by: Annotated[
        str,
        typer.Option(
            metavar="WHO",
            help="fleet: the fleet's coordinators; owner: another process, such as the database's writer.",
        ),
    ] = "fleet",
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting for these datasets only; may be repeated."),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take each of them once from a coordinator of SlateDB that shows no sign of life.",
        ),
    ] = False,
) -> None:
    """Add databases and tables, or change their settings. Datasets that match a pattern later are added too.

    Examples:

        lithify fleet add --tenant '*' s3://bucket/fleet 's3://bucket/tenants/*/db'

        lithify fleet add --queue large s3://bucket/fleet 'iceberg://catalog/events.*'
    """
    opened = context.fleet(fleet)
    given = pairs(setting)
    opened.add(
        *patterns,
        queue=queue,
        tenant=tenant,
        coordinates=coordinated_by,
        settings=given,
        take_over=take_over,
    )
    context.show(_datasets(opened))


@fleet_app.command("take-over")
@command()
def take_over_datasets(context: CommandContext, fleet: FleetUrl, patterns: Patterns) -> None:
    """Let the fleet coordinate databases that SlateDB's own compactor has run on, by their rules' patterns.

    Each is taken once, after its work has waited for a minute without a sign of life.

    A SlateDB process that was opened with compactor_options is fenced then, and closes.

    Example:

        lithify fleet take-over s3://bucket/fleet 's3://bucket/tenants/*/db'
    """
    opened = context.fleet(fleet)
    opened.take_over(*patterns)
    context.show(_datasets(opened))


@fleet_app.command("remove")
@command()
def remove(context: CommandContext, fleet: FleetUrl, patterns: Patterns) -> None:
    """Remove databases and tables, by the patterns they were added with. Running compactions continue."""
    opened = context.fleet(fleet)
    opened.remove(*patterns)
    context.show(_datasets(opened))


@fleet_app.command("list")
@command()
def show(context: CommandContext, fleet: FleetUrl) -> None:
    """Show the rules of a fleet, and the databases and tables that match them now. Writes nothing."""
    context.show(_datasets(context.fleet(fleet)))


@fleet_app.command("wake")
@command()
def wake(
    context: CommandContext,
    fleet: FleetUrl,
    urls: Annotated[
        list[str], typer.Argument(metavar="URL", help="Databases and tables.", show_default=False)
    ],
) -> None:
    """Have databases and tables polled now. Idle ones are otherwise polled only every five minutes."""
    from lithify.views.blocks import Line, Shown

    opened = context.fleet(fleet)
    opened.wake(*urls)
    context.show(Shown({"woken": list(urls)}, tuple(Line(url, "Woken:") for url in urls)))


@tenant_app.command("set")
@command()
def set_tenant(
    context: CommandContext,
    fleet: FleetUrl,
    name: TenantName,
    weight: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Its share: turns for each turn of a tenant with weight 1.", show_default=False
        ),
    ] = None,
    most_running: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The most of its compactions that run at once in each queue.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set a tenant's weight or limit. Options that are not given keep their values.

    Example:

        lithify fleet tenant set --weight 2 --most-running 8 s3://bucket/fleet red
    """
    opened = context.fleet(fleet)
    given = {"weight": weight, "most_running": most_running}
    if weight is None and most_running is None:
        raise Refused("nothing to change was given; give an option, for example --weight 2")
    opened.set_tenant(name, **{key: value for key, value in given.items() if value is not None})
    context.show(_tenants(opened))


@tenant_app.command("remove")
@command()
def remove_tenant(context: CommandContext, fleet: FleetUrl, name: TenantName) -> None:
    """Reset a tenant to the default: weight 1, no limit. Its databases and tables stay."""
    opened = context.fleet(fleet)
    opened.remove_tenant(name)
    context.show(_tenants(opened))


@tenant_app.command("list")
@command()
def show_tenants(context: CommandContext, fleet: FleetUrl) -> None:
    """Show the tenants that have a weight or a limit. Writes nothing."""
    context.show(_tenants(context.fleet(fleet)))


@fleet_app.command("status")
@command()
def status(context: CommandContext, fleet: FleetUrl) -> None:
    """Show the fleet's members and queues. Writes only an empty object, to read the store's time."""
    context.show(_status(context.fleet(fleet)))


@fleet_app.command("workers")
@command()
def workers(context: CommandContext, fleet: FleetUrl) -> None:
    """Show the workers of a fleet, their queues, and how busy they are.

    Writes only an empty object, to read the store's time.
    """
    from lithify.fleet.view import show_workers

    opened = context.fleet(fleet)
    context.show(show_workers(opened.status()))


@fleet_app.command("running")
@command()
def running(
    context: CommandContext,
    fleet: FleetUrl,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Read the ledgers of all databases and tables, not the workers' reports."
        ),
    ] = False,
) -> None:
    """Show the running compactions of a fleet. Writes only an empty object, to read the store's time."""
    from lithify.fleet.view import show_running

    opened = context.fleet(fleet)
    context.show(show_running(*opened.running(exact=exact)))


@fleet_app.command("doctor")
@command()
def doctor(context: CommandContext, fleet: FleetUrl) -> None:
    """Show problems of a fleet, and their remedies. Writes only an empty object, to read the store's time.

    Exit code 0 if there is no problem (warnings do not count), 10 otherwise.
    """
    print_findings(context.fleet(fleet).check(), context.as_json)


@fleet_app.command("run")
@command(MASTER, METRICS_PORT, WEB_PORT, SPARK_CONF, is_service=True)
def run_both(
    context: CommandContext,
    fleet: FleetUrl,
    queue: Queues = None,
    exit_when_idle: ExitWhenIdle = None,
) -> None:
    """Coordinate and compact a fleet's databases and tables in one process, until stopped.

    Any number of these processes may run; they divide the datasets and the work among themselves.

    Example:

        lithify fleet run s3://bucket/fleet
    """
    _serve(context, fleet, queue, exit_when_idle)


@fleet_app.command("coordinator")
@command(METRICS_PORT, WEB_PORT, is_service=True)
def coordinator(context: CommandContext, fleet: FleetUrl) -> None:
    """Coordinate a fleet's databases and tables, until stopped; fleet workers run the compactions.

    A second coordinator takes over its share of the datasets, and all of them if the first one dies.
    """
    _serve(context, fleet, works=False)


@fleet_app.command("worker")
@command(MASTER, METRICS_PORT, WEB_PORT, SPARK_CONF, is_service=True)
def worker(
    context: CommandContext,
    fleet: FleetUrl,
    queue: Queues = None,
    exit_when_idle: ExitWhenIdle = None,
) -> None:
    """Run the compactions of a fleet's queues, all or some, until stopped or the queues are deleted.

    Example:

        lithify fleet worker --queue small --exit-when-idle 5m s3://bucket/fleet
    """
    _serve(context, fleet, queue, exit_when_idle, keeps=False)


def _serve(
    context: CommandContext,
    fleet: str,
    queues: list[str] | None = None,
    exit_when_idle: str | None = None,
    *,
    keeps: bool = True,
    works: bool = True,
) -> None:
    """Run a fleet coordinator, workers, or both until stopped."""
    config = context.config
    idle_s = None if exit_when_idle is None else seconds_of(exit_when_idle)
    from lithify.api import wiring
    from lithify.api.fleets import Fleet
    from lithify.base.clock import SystemClock
    from lithify.config.loading import overlaid
    from lithify.observe.logs import EventLog

    # Without a port, because `served_beside` serves the dashboard.
    opened = Fleet(fleet, settings=overlaid(config, {"web.port": ("here", None)}))
    log = EventLog(SystemClock())
    watched = watched_beside(fleet, config) if keeps else None
    with wiring.stop_on_signals() as stop, served_beside([], watched or fleet, config, watched):
        opened.run(
            stop,
            queues=queues or (),
            keeps=keeps,
            works=works,
            exit_when_idle_s=idle_s,
            on_event=log,
            shared=None if watched is None else watched.shared,
        )


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

"""`lithify hold`: keeps a snapshot of a dataset and all later ones."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.values import seconds_of, time_of

DEFAULT_LEASE = "1h"


@command()
def hold(
    context: CommandContext,
    url: Url,
    snapshot: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Hold this snapshot; default: the newest.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Hold the snapshot that was current then: 2025-01-31T12:00:00Z."),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help=f"Time until it expires; default: {DEFAULT_LEASE}.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the hold; default: random.", show_default=False),
    ] = None,
    renew: Annotated[str | None, typer.Option(metavar="NAME", help="Renew the lease of this hold.")] = None,
    release: Annotated[str | None, typer.Option(metavar="NAME", help="Release this hold.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show all holds.")] = False,
) -> None:
    """Keep a snapshot of a table, and all later ones, from being expired.

    A hold is a lease: it expires unless it is renewed in time, so a crashed program holds nothing for ever.
    Snapshots that may be expired already are refused.

    Examples:

        lithify hold --lease 6h --name training iceberg://catalog/namespace.table

        lithify hold --renew training iceberg://catalog/namespace.table

        lithify hold --release training iceberg://catalog/namespace.table
    """
    given = [flag for flag, value in (("--renew", renew), ("--release", release), ("--list", show)) if value]
    others = [("--snapshot", snapshot), ("--at", at), ("--name", name)]
    if renew is None:
        others.append(("--lease", lease))
    taking = [flag for flag, value in others if value is not None]
    if len(given) > 1 or (given and taking):
        raise Refused(f"{' and '.join([*given, *taking])} cannot be given together")
    at_time = None if at is None else time_of(at)
    lease_s = None if lease is None else seconds_of(lease)
    with context.open(url) as dataset:
        if show:
            shown = dataset.show_holds()
        elif renew is not None:
            shown = dataset.renew_hold(renew, lease_s=lease_s)
        elif release is not None:
            dataset.release_hold(release)
            shown = dataset.show_holds()
        else:
            lease_s = seconds_of(DEFAULT_LEASE) if lease_s is None else lease_s
            shown = dataset.put_hold(snapshot=snapshot, at=at_time, name=name, lease_s=lease_s)
    context.show(shown)

"""`lithify queue`: the queues of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.base.errors import Refused
from lithify.cli.fleet import FleetUrl
from lithify.cli.options.command import CommandContext, command

if TYPE_CHECKING:
    from lithify.fleet.catalog.model import Queue
    from lithify.views.blocks import Shown

queue_app = typer.Typer(
    help="Manage a fleet's queues. A compaction goes to the queue with the smallest limit above its size.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_default=False)]
Weight = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Its share: turns for each turn of a queue with weight 1.", show_default=False
    ),
]
Reserved = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Slots, over all workers, reserved for compactions of up to 64 MiB and writers near a stall.",
        show_default=False,
    ),
]
Backlog = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The most compactions that wait; above it, those of the lowest priority are deferred.",
        show_default=False,
    ),
]
Share = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Share of its slots that one dataset may use, up to 1.", show_default=False
    ),
]
PerSlot = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Compactions that share a slot, for queues of very small ones.",
        show_default=False,
    ),
]


@queue_app.command("create")
@command()
def create(
    context: CommandContext,
    fleet: FleetUrl,
    name: Name,
    largest: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Takes compactions that read less than this, such as 500MB.",
            show_default=False,
        ),
    ],
    weight: Weight = None,
    reserved_slots: Reserved = None,
    longest_backlog: Backlog = None,
    largest_share: Share = None,
    per_slot: PerSlot = None,
) -> None:
    """Create a queue.

    Example:

        lithify queue create --largest 1GB --reserved-slots 1 s3://bucket/fleet small
    """
    opened = context.fleet(fleet)
    given = _given(weight, reserved_slots, longest_backlog, largest_share, per_slot)
    context.show(_changed(opened.create_queue(name, largest_bytes=_size(largest), **given)))


@queue_app.command("set")
@command()
def change(
    context: CommandContext,
    fleet: FleetUrl,
    name: Name,
    largest: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Takes compactions that read less than this, such as 500MB.",
            show_default=False,
        ),
    ] = None,
    weight: Weight = None,
    reserved_slots: Reserved = None,
    longest_backlog: Backlog = None,
    largest_share: Share = None,
    per_slot: PerSlot = None,
) -> None:
    """Change a queue. Options that are not given keep their values. Admitted compactions do not move."""
    opened = context.fleet(fleet)
    given = _given(weight, reserved_slots, longest_backlog, largest_share, per_slot)
    if largest is not None:
        given["largest_bytes"] = _size(largest)
    if not given:
        raise Refused("nothing to change was given; give an option, for example --weight 2")
    context.show(_changed(opened.set_queue(name, **given)))


@queue_app.command("list")
@command()
def show(context: CommandContext, fleet: FleetUrl) -> None:
    """Show all queues and how much waits in each. Writes only an empty object, to read the store's time."""
    from lithify.fleet.view import show_queues

    opened = context.fleet(fleet)
    found = opened.status()
    context.show(show_queues(found.queues, found.at_ms))


@queue_app.command("info")
@command()
def info(context: CommandContext, fleet: FleetUrl, name: Name) -> None:
    """Show a queue and its claimable compactions. Writes only an empty object, to read the store's time."""
    from lithify.fleet.view import show_queue

    opened = context.fleet(fleet)
    found = opened.status()
    found.catalog.catalog.queue(name)
    context.show(show_queue(found.queue(name), found.at_ms))


@queue_app.command("pause")
@command()
def pause(context: CommandContext, fleet: FleetUrl, name: Name) -> None:
    """Pause a queue: nothing is admitted or claimed until it is resumed. Running compactions continue."""
    context.show(_changed(context.fleet(fleet).pause_queue(name)))


@queue_app.command("resume")
@command()
def resume(context: CommandContext, fleet: FleetUrl, name: Name) -> None:
    """Resume a queue that was paused or drained."""
    context.show(_changed(context.fleet(fleet).resume_queue(name)))


@queue_app.command("drain")
@command()
def drain(context: CommandContext, fleet: FleetUrl, name: Name) -> None:
    """Drain a queue: finish admitted compactions, and send all others to the next queue."""
    context.show(_changed(context.fleet(fleet).drain_queue(name)))


@queue_app.command("delete")
@command()
def delete(context: CommandContext, fleet: FleetUrl, name: Name) -> None:
    """Delete a queue: its workers exit, and waiting compactions go to the next queue."""
    from lithify.views.blocks import Line, Shown

    opened = context.fleet(fleet)
    opened.delete_queue(name)
    context.show(Shown({"deleted": name}, (Line(name, "Deleted:"),)))


def _changed(queue: Queue) -> Shown:
    from lithify.fleet.view import show_changed_queue

    return show_changed_queue(queue)


def _given(
    weight: int | None,
    reserved_slots: int | None,
    longest_backlog: int | None,
    largest_share: float | None,
    per_slot: int | None,
) -> dict[str, Any]:
    given = {
        "weight": weight,
        "reserved_slots": reserved_slots,
        "longest_backlog": longest_backlog,
        "largest_share": largest_share,
        "per_slot": per_slot,
    }
    return {name: value for name, value in given.items() if value is not None}


def _size(text: str) -> int:
    from lithify.config.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise Refused(str(error)) from None

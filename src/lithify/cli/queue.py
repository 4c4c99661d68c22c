"""`lithify queue`: the queues of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.base.errors import Refused
from lithify.cli.fleet import FleetUrl, run
from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions

if TYPE_CHECKING:
    from lithify.api.fleets import Fleet
    from lithify.fleet.catalog.model import Queue
    from lithify.views.blocks import Shown

queue_app = typer.Typer(
    help="The queues of a fleet. Work goes to the first whose largest size exceeds its own.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_default=False)]
Weight = Annotated[
    int | None,
    typer.Option(metavar="N", help="Turns it has for one of a queue with weight 1.", show_default=False),
]
Reserved = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Of its slots, over all workers, those for work up to 64 MiB and for writers near a stall.",
        show_default=False,
    ),
]
Backlog = Annotated[
    int | None,
    typer.Option(metavar="N", help="So many wait; beyond it the lowest is deferred.", show_default=False),
]
Share = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Part of its slots that one dataset may use, up to 1.", show_default=False
    ),
]
PerSlot = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="So many of its compactions share a slot, for very small ones.", show_default=False
    ),
]


@queue_app.command("create")
def create(
    fleet: FleetUrl,
    name: Name,
    largest: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Work that reads less is its, such as 500MB.", show_default=False),
    ],
    weight: Weight = None,
    reserved_slots: Reserved = None,
    longest_backlog: Backlog = None,
    largest_share: Share = None,
    per_slot: PerSlot = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Make a queue.

    Example:

        lithify queue create --largest 1GB --reserved-slots 1 s3://bucket/fleet small
    """

    def ask(opened: Fleet) -> Shown:
        given = _given(weight, reserved_slots, longest_backlog, largest_share, per_slot)
        return _changed(opened.create_queue(name, largest_bytes=_size(largest), **given))

    run(fleet, as_json, config, sets, store_option, ask)


@queue_app.command("set")
def change(
    fleet: FleetUrl,
    name: Name,
    largest: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Work that reads less is its, such as 500MB.", show_default=False),
    ] = None,
    weight: Weight = None,
    reserved_slots: Reserved = None,
    longest_backlog: Backlog = None,
    largest_share: Share = None,
    per_slot: PerSlot = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Change a queue: what is not given stays. What was admitted before stays where it is."""

    def ask(opened: Fleet) -> Shown:
        given = _given(weight, reserved_slots, longest_backlog, largest_share, per_slot)
        if largest is not None:
            given["largest_bytes"] = _size(largest)
        if not given:
            raise Refused("say what to change, for example --weight 2")
        return _changed(opened.set_queue(name, **given))

    run(fleet, as_json, config, sets, store_option, ask)


@queue_app.command("list")
def show(
    fleet: FleetUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show all queues, and what waits in each. Writes only what tells the store's time."""

    def ask(opened: Fleet) -> Shown:
        from lithify.fleet.view import show_queues

        found = opened.status()
        return show_queues(found.queues, found.at_ms)

    run(fleet, as_json, config, sets, store_option, ask)


@queue_app.command("info")
def info(
    fleet: FleetUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show one queue, and what may be claimed in it. Writes only what tells the store's time."""

    def ask(opened: Fleet) -> Shown:
        from lithify.fleet.view import show_queue

        found = opened.status()
        found.catalog.catalog.queue(name)
        return show_queue(found.queue(name), found.at_ms)

    run(fleet, as_json, config, sets, store_option, ask)


@queue_app.command("pause")
def pause(
    fleet: FleetUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Admit and claim nothing of a queue until it is resumed. What runs goes on."""
    _tell(fleet, as_json, config, sets, store_option, lambda opened: opened.pause_queue(name))


@queue_app.command("resume")
def resume(
    fleet: FleetUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Go on with a queue that was paused or drained."""
    _tell(fleet, as_json, config, sets, store_option, lambda opened: opened.resume_queue(name))


@queue_app.command("drain")
def drain(
    fleet: FleetUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Admit nothing more to a queue: what was admitted is worked off, the rest goes to the next one."""
    _tell(fleet, as_json, config, sets, store_option, lambda opened: opened.drain_queue(name))


@queue_app.command("delete")
def delete(
    fleet: FleetUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Take a queue away: its workers end, and what waits goes to the next one."""

    def ask(opened: Fleet) -> Shown:
        from lithify.views.blocks import Line, Shown

        opened.delete_queue(name)
        return Shown({"deleted": name}, (Line(name, "Deleted:"),))

    run(fleet, as_json, config, sets, store_option, ask)


def _tell(
    fleet: str,
    as_json: bool,
    config: Any,
    sets: list[str] | None,
    store_option: list[str] | None,
    change: Callable[[Fleet], Queue],
) -> None:
    run(fleet, as_json, config, sets, store_option, lambda opened: _changed(change(opened)))


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

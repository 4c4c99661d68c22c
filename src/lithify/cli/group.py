"""`lithify group`: copies and readers of a keyed log, none of which may miss a deletion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions
from lithify.cli.options.settings import settings
from lithify.cli.running import errors, print_shown

if TYPE_CHECKING:
    from lithify.api.groups import Group
    from lithify.views.blocks import Shown

group_app = typer.Typer(
    help="Copies of one keyed log, and readers of it: what may be removed when all are past it.",
    no_args_is_help=True,
)
GroupUrl = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="A folder that all its members reach: a path, file:///path, s3://bucket/prefix, gs://…, az://…",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The member.", show_default=False)]


@group_app.command("init")
def init(
    group: GroupUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Make a group, without members yet. A log joins with its first round, if its settings name the group.

    Examples:

        lithify group init s3://bucket/groups/orders

        lithify compact --set kafka.group=s3://bucket/groups/orders --set kafka.member=eu kafka+s3://eu/orders
    """
    _run(group, as_json, config, sets, store_option, lambda opened: opened.init())


@group_app.command("join")
def join(
    group: GroupUrl,
    name: Name,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="The first offset that the reader has not committed; once for each partition.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Make a reader that keeps state a member, or say how far it is by now.

    Tombstones that it has not read stay in every copy. Say again how far it is whenever it has committed
    more. What goes back lowers nothing: a reader that really starts again leaves, and joins anew.

    Example:

        lithify group join --at 0=81240 --at 1=79113 s3://bucket/groups/orders warehouse
    """
    _run(group, as_json, config, sets, store_option, lambda opened: opened.join(name, _offsets(at or [])))


@group_app.command("leave")
def leave(
    group: GroupUrl,
    name: Name,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Remove a member, copy or reader, whatever it still does: what waited for it alone is free at once.

    What a copy has may be used no more as if it were a member's.

    Example:

        lithify group leave s3://bucket/groups/orders warehouse
    """
    _run(group, as_json, config, sets, store_option, lambda opened: opened.leave(name))


@group_app.command("show")
def show(
    group: GroupUrl,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Say who is a member, how far each is, what may be removed, and who holds up the rest since when.

    Example:

        lithify group show s3://bucket/groups/orders
    """
    _run(group, as_json, config, sets, store_option, lambda opened: opened.show())


def _run(
    url: str,
    as_json: bool,
    config: Path | None,
    sets: list[str] | None,
    store_option: list[str] | None,
    ask: Callable[[Group], Shown],
) -> None:
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.api.groups import Group

        print_shown(ask(Group(url, settings=effective)), as_json)


def _offsets(given: list[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for text in given:
        partition, _, offset = text.partition("=")
        if not (_is_number(partition) and _is_number(offset)):
            raise Refused(f"--at: {text[:40]!r} is no PARTITION=OFFSET, such as 0=81240")
        if int(partition) in found:
            raise Refused(f"--at: partition {partition} is given twice")
        found[int(partition)] = int(offset)
    return found


def _is_number(text: str) -> bool:
    """The group refuses numbers that are too large."""
    return text.isascii() and text.isdecimal() and len(text) < 20

"""`lithify group`: copies and readers of a keyed log, none of which may miss a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command

if TYPE_CHECKING:
    from lithify.api.groups import Group

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
@command()
def init(context: CommandContext, group: GroupUrl) -> None:
    """Make a group, without members yet. A log joins with its first round, if its settings name the group.

    Examples:

        lithify group init s3://bucket/groups/orders

        lithify compact --set kafka.group=s3://bucket/groups/orders --set kafka.member=eu kafka+s3://eu/orders
    """
    context.show(_group(context, group).init())


@group_app.command("join")
@command()
def join(
    context: CommandContext,
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
) -> None:
    """Make a reader that keeps state a member, or say how far it is by now.

    Tombstones that it has not read stay in every copy. Say again how far it is whenever it has committed
    more. What goes back lowers nothing: a reader that really starts again leaves, and joins anew.

    Example:

        lithify group join --at 0=81240 --at 1=79113 s3://bucket/groups/orders warehouse
    """
    context.show(_group(context, group).join(name, _offsets(at or [])))


@group_app.command("leave")
@command()
def leave(context: CommandContext, group: GroupUrl, name: Name) -> None:
    """Remove a member, copy or reader, whatever it still does: what waited for it alone is free at once.

    What a copy has may be used no more as if it were a member's.

    Example:

        lithify group leave s3://bucket/groups/orders warehouse
    """
    context.show(_group(context, group).leave(name))


@group_app.command("show")
@command()
def show(context: CommandContext, group: GroupUrl) -> None:
    """Say who is a member, how far each is, what may be removed, and who holds up the rest since when.

    Example:

        lithify group show s3://bucket/groups/orders
    """
    context.show(_group(context, group).show())


def _group(context: CommandContext, url: str) -> Group:
    from lithify.api.groups import Group

    return Group(url, settings=context.config)


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

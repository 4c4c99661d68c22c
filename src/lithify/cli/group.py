"""`lithify group`: copies and readers of a keyed log, none of which may miss a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command

if TYPE_CHECKING:
    from lithify.api.groups import Group

group_app = typer.Typer(
    help="Manage a group: copies and readers of one keyed log, none of which may miss a deletion.",
    no_args_is_help=True,
)
GroupUrl = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="A folder that all members can write: a path, file:///path, s3://bucket/prefix, gs://…, az://…",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The member.", show_default=False)]


@group_app.command("init")
@command()
def init(
    context: CommandContext,
    group: GroupUrl,
    members: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="The names of all copies, separated by commas; of one copy, its name.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a group of the named copies. Nothing is removed in any copy before each has joined.

    A copy joins in its first round, if its settings name the group and one of these names.

    Examples:

        lithify group init --members eu,us,ap s3://bucket/groups/orders

        lithify compact --set kafka.group=s3://bucket/groups/orders --set kafka.member=eu kafka+s3://eu/orders
    """
    context.show(_group(context, group).init([] if members is None else members.split(",")))


@group_app.command("expect")
@command()
def expect(
    context: CommandContext,
    group: GroupUrl,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The new copies.", show_default=False)],
) -> None:
    """Let more copies join. Until they have, nothing is removed in any copy.

    Run this first, then copy the log from a member, to its end, and compact the new copy.

    Example:

        lithify group expect s3://bucket/groups/orders ap
    """
    context.show(_group(context, group).expect(names))


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
            help="The first offset that the reader has not committed; repeat for each partition.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add a reader that keeps state as a member, or record its committed offsets.

    Tombstones that it has not read stay in every copy. Run the command again whenever the reader has
    committed more. Lower offsets have no effect: a reader that starts from the beginning must leave and join
    again.

    Example:

        lithify group join --at 0=81240 --at 1=79113 s3://bucket/groups/orders warehouse
    """
    context.show(_group(context, group).join(name, _offsets(at or [])))


@group_app.command("leave")
@command()
def leave(context: CommandContext, group: GroupUrl, name: Name) -> None:
    """Remove a member, a copy or a reader, even if it is still active or has not joined.

    Nothing waits for it any more. A copy cannot join again unless the group expects it.

    The data of a removed copy must not be used as a member's again.

    Example:

        lithify group leave s3://bucket/groups/orders warehouse
    """
    context.show(_group(context, group).leave(name))


@group_app.command("show")
@command()
def show(context: CommandContext, group: GroupUrl) -> None:
    """Show the members, their positions, what may be removed, and which member the rest waits for.

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
            raise Refused(f"--at: {text[:40]!r} is not of the form PARTITION=OFFSET, such as 0=81240")
        if int(partition) in found:
            raise Refused(f"--at: partition {partition} is given twice")
        found[int(partition)] = int(offset)
    return found


def _is_number(text: str) -> bool:
    """The group refuses numbers that are too large."""
    return text.isascii() and text.isdecimal() and len(text) < 20

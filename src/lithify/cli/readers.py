"""`lithify readers`: readers of a dataset's growing history; what they have not read is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.of_kinds import options_of_kinds

if TYPE_CHECKING:
    pass

readers_app = typer.Typer(
    help="Manage a table's Spark Structured Streaming readers: snapshots they still need are not expired.",
    no_args_is_help=True,
)
Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The checkpoint folder of the reader: a path, file:///path, s3://bucket/prefix, …",
        show_default=False,
    ),
]


@readers_app.command("add")
@command(of_kinds=options_of_kinds("readers add"))
def add(
    context: CommandContext,
    url: Url,
    checkpoint: Checkpoint,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the reader; default: derived from the folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Register a reader by its checkpoint folder: snapshots that it has not read are not expired.

    While its position cannot be read, nothing at all is expired.

    Examples:

        lithify readers add iceberg://catalog/namespace.table s3://bucket/checkpoints/my-query
    """

    with context.open(url) as dataset:
        context.show(dataset.add_reader(checkpoint, name=name, **context.given.args().given))


@readers_app.command("list")
@command()
def show(context: CommandContext, url: Url) -> None:
    """Show all readers and their positions."""
    with context.open(url) as dataset:
        context.show(dataset.show_readers())


@readers_app.command("drop")
@command()
def drop(
    context: CommandContext,
    url: Url,
    reader: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The reader's name, or its checkpoint folder.", show_default=False
        ),
    ],
) -> None:
    """Remove a reader: expiry no longer waits for it."""
    with context.open(url) as dataset:
        context.show(dataset.drop_reader(reader))

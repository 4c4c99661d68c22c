"""`lithify readers`: readers of a dataset's growing history; what they have not read is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.options.of_kinds import NOTHING, Given, takes_kind_options
from lithify.cli.options.settings import settings
from lithify.cli.running import errors, print_shown

if TYPE_CHECKING:
    from lithify.api.client import Dataset
    from lithify.views.blocks import Shown

readers_app = typer.Typer(
    help="Readers of a table with Spark Structured Streaming: what they still need is not expired.",
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
@takes_kind_options("readers add")
def add(
    url: Url,
    checkpoint: Checkpoint,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What to call it; default: made of the folder.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
    *,
    given: Given,
) -> None:
    """Expire nothing that a reader with this checkpoint folder has not read. While nobody can tell where it
    stands, nothing at all is expired.

    Examples:

        lithify readers add iceberg://catalog/namespace.table s3://bucket/checkpoints/my-query
    """

    def ask(dataset: Dataset) -> Shown:
        return dataset.add_reader(checkpoint, name=name, **given.args().given)

    _run(url, as_json, config, sets, store_option, ask, given)


@readers_app.command("list")
def show(
    url: Url,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show all readers, and where they stand."""
    _run(url, as_json, config, sets, store_option, lambda dataset: dataset.show_readers())


@readers_app.command("drop")
def drop(
    url: Url,
    reader: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, or its checkpoint folder.", show_default=False)
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Wait for a reader no more."""
    _run(url, as_json, config, sets, store_option, lambda dataset: dataset.drop_reader(reader))


def _run(
    url: str,
    as_json: bool,
    config: Path | None,
    sets: list[str] | None,
    store_option: list[str] | None,
    ask: Callable[[Dataset], Shown],
    given: Given = NOTHING,
) -> None:
    with errors(as_json):
        given.check(url)
        effective = settings(config, sets, store_option=store_option)
        from lithify.api import client

        with client.open(url, settings=effective) as dataset:
            shown: Any = ask(dataset)
        print_shown(shown, as_json)

"""`lithify demo`: small datasets before and after a compaction, with all rows compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lithify.base.errors import LithifyError, Refused
from lithify.cli.options.command import CommandContext, command
from lithify.datasets.options import CommandArgs, Sample
from lithify.datasets.registry import all_registered
from lithify.views.consoles import write_line


class WrongRows(LithifyError):
    """A compaction of the demonstration has changed rows."""


@command()
def demo(
    context: CommandContext,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="A new folder for the data, which is kept.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a small table, and a database, compact them, and compare all rows before and after.

    The table is made and read with PyIceberg. The database needs SlateDB's client (pip install slatedb);
    without it, that part is left out. Without FOLDER the data are deleted at the end.

    Example:

        lithify demo
    """
    if context.as_json:
        raise Refused("the demonstration is for people and has no --json")
    with _new_folder(folder) as place:
        for kind in reversed(all_registered()):
            if not kind.sample:
                continue
            own = place / kind.noun
            own.mkdir()
            try:
                sample = kind.make_sample(own)
            except Refused as error:
                write_line(f"{error}, so no {kind.noun} is shown.")
            else:
                _demonstrate(context, sample)
        if folder is not None:
            write_line(f"The data are in {place}.")


@contextmanager
def _new_folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="lithify-demo-") as made:
            yield Path(made)
        return
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be created: {error.strerror}; name a new folder") from error
    yield folder.absolute()


def _demonstrate(context: CommandContext, sample: Sample) -> None:
    from lithify.cli.once import compact_once

    write_line(f"{sample.what}.", at_once=True)
    cost = None if sample.query_cost is None else sample.query_cost()
    sets = [f"{name}={value}" for name, value in sample.settings.items()]
    write_line(f"$ lithify compact {sample.url}", at_once=True)
    opened = replace(context, sets=[*(context.sets or ()), *sets])
    compact_once(opened, sample.url, CommandArgs(), take_over=False)
    if sample.read() != sample.rows:
        raise WrongRows(f"{sample.reader} reads other rows after the compaction: please report this")
    write_line(f"{sample.reader} reads the same {len(sample.rows):,} rows as before.", at_once=True)
    if sample.query_cost is not None:
        write_line(f"A query of one day read {cost} before, and reads {sample.query_cost()} now.")
    write_line("")

"""A run of `lithify compact` or `lithify maintain`: its progress, and what is said at its end."""

from __future__ import annotations

from collections.abc import Collection

import typer
from rich.console import Console

from lithify import client
from lithify.cli.running import print_json
from lithify.clock import SystemClock
from lithify.config.model import Config
from lithify.datasets.options import Asked
from lithify.events import each
from lithify.observe.logs import EventLog
from lithify.observe.progress import ProgressBars
from lithify.views.blocks import Line, notes
from lithify.views.drawing import draw


def compact_once(url: str, config: Config, asked: Asked, *, take_over: bool, as_json: bool) -> None:
    """Compact until nothing is left to do, and tell what was done. Exits with 1 when something failed."""
    with client.open(url, settings=config) as dataset, ProgressBars(Console(stderr=True)) as bars:
        observe = each(EventLog(SystemClock()), *([] if as_json else [bars]))
        result = dataset.compact(full=asked.full, take_over=take_over, on_event=observe, **asked.given)
    if as_json:
        print_json(result.document)
    elif result.started:
        draw(Console(), result.shown.blocks)
    else:
        draw(Console(), (Line("Nothing to compact."), notes(result.notes)))
    if result.failed:
        raise typer.Exit(1)


def maintain_once(url: str, config: Config, skip: Collection[str], *, take_over: bool, as_json: bool) -> None:
    """Do all parts of maintenance once, and tell what was done. Exits with 1 when something failed or stands
    in the way."""
    with client.open(url, settings=config) as dataset, ProgressBars(Console(stderr=True)) as bars:
        observe = each(EventLog(SystemClock()), *([] if as_json else [bars]))
        done = dataset.maintain(skip=skip, take_over=take_over, on_event=observe)
    if as_json:
        print_json(done.document)
    else:
        for part in client.PARTS:
            shown = done.parts.get(part)
            blocks = shown.blocks if shown is not None else (Line("Left out."),)
            draw(Console(), (Line("", f"{part.capitalize()}:"), *blocks))
    if not done.is_done:
        raise typer.Exit(1)

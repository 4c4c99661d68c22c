"""A run of `lithify compact`: its progress, and what is said at its end."""

from __future__ import annotations

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

"""A run of `lithify compact` or `lithify maintain`: its progress and its final report."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext

import typer

from lithify.api import client, wiring
from lithify.base.clock import SystemClock
from lithify.base.events import Observer, each
from lithify.cli.options.command import CommandContext
from lithify.cli.running import print_json
from lithify.datasets.options import CommandArgs
from lithify.observe.logs import LOGGER, EventLog
from lithify.observe.progress import ProgressBars
from lithify.views.blocks import Line, notes
from lithify.views.consoles import standard_error, standard_output
from lithify.views.drawing import draw


def compact_once(context: CommandContext, url: str, args: CommandArgs, *, take_over: bool) -> None:
    """Compact until nothing is left to do, and print the results. Exits with 1 if a compaction failed, or if
    data cannot be compacted and grows worse."""
    with (
        context.open(url) as dataset,
        ProgressBars(standard_error()) as bars,
        _telling(context, url, bars),
    ):
        observe = _observer(context, bars)
        result = dataset.compact(full=args.full, take_over=take_over, on_event=observe, **args.given)
    if context.as_json:
        print_json(result.document)
    elif result.started:
        draw(standard_output(), result.shown.blocks)
    else:
        nothing = "Nothing to compact."
        if result.left_alone:
            nothing = "Nothing was compacted, because the remaining data cannot be:"
        draw(standard_output(), (Line(nothing), notes(result.notes)))
    if result.failed or result.stuck:
        raise typer.Exit(1)


def _telling(context: CommandContext, url: str, bars: ProgressBars) -> AbstractContextManager[None]:
    """Report compilation, during which nothing seems to happen."""
    if context.as_json:
        return nullcontext()
    return wiring.telling_of_compilation(context.config, [url], bars.say)


def _observer(context: CommandContext, bars: ProgressBars) -> Observer:
    """Return the observer of the run. If the bars show events, the log repeats them only on request
    (`--verbose`, `log.level`, `log.format`)."""
    log = EventLog(SystemClock())
    if context.as_json:
        return log
    config = context.config
    wants_log = config.log.level is not None or config.log.format == "json"
    is_verbose = logging.getLogger(LOGGER).isEnabledFor(logging.INFO)
    return each(log, bars) if wants_log or is_verbose else bars


def maintain_once(context: CommandContext, url: str, skip: Collection[str], *, take_over: bool) -> None:
    """Do all parts of maintenance once, and print the results. Exits with the code of the first part that was
    refused or failed, or with 1 if something else prevents completion."""
    with (
        context.open(url) as dataset,
        ProgressBars(standard_error()) as bars,
        _telling(context, url, bars),
    ):
        observe = _observer(context, bars)
        done = dataset.maintain(skip=skip, take_over=take_over, on_event=observe)
    if context.as_json:
        print_json(done.document)
    else:
        for part in client.PARTS:
            shown = done.parts.get(part)
            blocks = shown.blocks if shown is not None else (Line("Skipped."),)
            draw(standard_output(), (Line("", f"{part.capitalize()}:"), *blocks))
    if not done.is_done:
        first = next(iter(done.errors.values()), None)
        raise typer.Exit(1 if first is None else first.exit_code)

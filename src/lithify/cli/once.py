"""A run of `lithify compact`: the same for every kind of dataset."""

from __future__ import annotations

import typer
from rich.console import Console

from lithify import wiring
from lithify.cli.running import print_json
from lithify.clock import SystemClock
from lithify.config.model import Config
from lithify.datasets.kind import Run
from lithify.datasets.options import Asked
from lithify.datasets.registry import registered_for
from lithify.events import each
from lithify.ids import RandomIds
from lithify.observe.logs import EventLog
from lithify.observe.progress import ProgressBars, Totals
from lithify.service import one_shot
from lithify.views.blocks import Line, notes
from lithify.views.drawing import draw


def compact_once(url: str, config: Config, asked: Asked, *, take_over: bool, as_json: bool) -> None:
    """Compact until nothing is left to do, and tell what was done. Exits with 1 when something failed."""
    kind, dataset = registered_for(url).load(), wiring.open_dataset(url, config)
    clock, totals = SystemClock(), Totals()
    before = kind.look(dataset.snapshot())
    started_s = clock.monotonic_s()
    engine = wiring.spark_engine(config, [dataset.url])
    with ProgressBars(Console(stderr=True)) as bars:
        observe = each(totals, EventLog(clock), *([] if as_json else [bars]))
        try:
            result = one_shot.run(
                dataset,
                engine,
                clock,
                RandomIds(),
                wiring.leadership(dataset),
                planner=kind.planner(dataset, asked, clock),
                take_over=take_over,
                options=wiring.worker_options(config),
                worker_heartbeat_timeout_ms=wiring.heartbeat_timeout_ms(config),
                observer=observe,
            )
            seconds = clock.monotonic_s() - started_s  # Spark still takes a second to stop
        finally:
            engine.close()
    after = kind.look(dataset.snapshot())
    shown = kind.show_run(Run(dataset.url, before, after, result, totals, seconds))
    if as_json:
        print_json(shown.document)
    elif result.started:
        draw(Console(), shown.blocks)
    else:
        draw(Console(), (Line("Nothing to compact."), notes(result.plan.notes)))
    if result.failures:
        raise typer.Exit(1)

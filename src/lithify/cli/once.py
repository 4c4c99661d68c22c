"""A run of `lithify compact` on any kind of dataset: the same for all but for what is shown in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import typer
from rich.console import Console

from lithify.cli import wiring
from lithify.cli.running import print_json
from lithify.clock import SystemClock
from lithify.compaction.run_summary import RunSummary
from lithify.config.model import Config
from lithify.datasets.kind import Dataset
from lithify.events import each
from lithify.ids import RandomIds
from lithify.observe.logs import EventLog
from lithify.observe.progress import ProgressBars, Totals
from lithify.service import one_shot

ShapeT = TypeVar("ShapeT")


@dataclass(frozen=True, slots=True)
class View(Generic[ShapeT]):
    """How a kind of dataset is looked at before and after."""

    shape: Callable[[], ShapeT]
    """What it looks like now."""
    as_json: Callable[[str, ShapeT, ShapeT, RunSummary, Totals, float], dict[str, Any]]
    """URL, before, after, what the run did, what its ranges did, seconds."""
    show: Callable[[Console, ShapeT, ShapeT, RunSummary, Totals, float], None]


def compact_once(
    dataset: Dataset,
    config: Config,
    view: View[ShapeT],
    *,
    planner: one_shot.Planner | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Compact until nothing is left to do, and tell what was done. Exits with 1 when something failed."""
    clock, totals = SystemClock(), Totals()
    before = view.shape()
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
                planner=planner,
                take_over=take_over,
                options=wiring.worker_options(config),
                worker_heartbeat_timeout_ms=wiring.heartbeat_timeout_ms(config),
                observer=observe,
            )
            seconds = clock.monotonic_s() - started_s  # Spark still takes a second to stop
        finally:
            engine.close()
    after = view.shape()
    console = Console()
    if as_json:
        print_json(view.as_json(dataset.url, before, after, result, totals, seconds))
    elif result.started:
        view.show(console, before, after, result, totals, seconds)
    else:
        console.print("Nothing to compact.")
        for note in result.plan.notes:
            console.print(f"  {note}", highlight=False, markup=False)
    if result.failures:
        raise typer.Exit(1)

"""`lithify status`: running and waiting compactions, why they wait, and how close the writer is to a stall.

Most of it is the same for databases and tables. A table adds its size and the totals of its timeline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from lithify.base.printable import printable
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import Url
from lithify.cli.options.of_kinds import options_of_kinds
from lithify.cli.running import print_json
from lithify.datasets.status_view import show_status
from lithify.views import text
from lithify.views.blocks import Alarm, Table, columns
from lithify.views.consoles import standard_output, write_document
from lithify.views.drawing import draw

if TYPE_CHECKING:
    from lithify.protocol.status import CompactionStatus, Status

SHOWN_FAILURES = 5
WATCH_INTERVAL_S = 2.0
"""The interval at which tasks report their progress."""


@command(of_kinds=options_of_kinds("status"))
def status(
    context: CommandContext,
    url: Url,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until stopped.")] = False,
) -> None:
    """Show running and waiting compactions, why they wait, their progress, and when the writer would stall.

    Writes nothing, except an empty object to read the store's time while there are compactions. The stall is
    estimated from l0_max_ssts, the writer's limit: give the value your database is opened with (--set
    slatedb.l0_max_ssts=16). Times are estimates from the recent rate. For a table it shows how much awaits
    compaction, is compacted, skipped or deferred. With --watch and --json, each refresh prints one line.

    Examples:

        lithify status s3://bucket/my-db

        lithify status iceberg://catalog/namespace.table

        lithify status --watch s3://bucket/my-db

        lithify status --json s3://bucket/my-db | jq '.compactions[] | select(.is_stale)'
    """
    with context.open(url) as dataset:
        if watch:
            _watch(dataset.status, context.as_json)
            return
        found = dataset.status()
    if context.as_json:
        print_json(show_status(found).document)
    else:
        print_status(standard_output(), found)


def _watch(look: Callable[[], Status], as_json: bool) -> None:
    """Show the status repeatedly, until interrupted. On a terminal each status replaces the last; elsewhere
    they follow each other."""
    console = standard_output()
    while True:
        found = look()
        if as_json:
            write_document(json.dumps(show_status(found).document), at_once=True)
        else:
            with console:  # one write, so that a terminal does not flicker
                if console.is_terminal:
                    console.clear()
                print_status(console, found)
                if not console.is_terminal:
                    console.line()
        time.sleep(WATCH_INTERVAL_S)


def print_status(console: Console, found: Status) -> None:
    """Print the status as tables."""
    coordinator = found.coordinator
    holder = f" ({text.short_ids(coordinator.holder)})" if coordinator.holder is not None else ""
    console.print(Text(printable(found.url), "bold"), highlight=False, soft_wrap=True)
    said = f"Coordinator: {coordinator.says}, epoch {coordinator.epoch}{holder}"
    console.print(said, highlight=False, markup=False)
    draw(console, show_status(found).blocks)
    if found.compactions:
        _print_compactions(console, found)
    else:
        console.print("No compaction is under way.")
    for proposal in found.plan.proposals[: text.MAX_SHOWN]:
        console.print(f"Would be added: {proposal.reason}", highlight=False, markup=False)
    text.print_rest(console, len(found.plan.proposals), "proposals")
    notes = [note for note in found.plan.notes if note != found.plan.refusal]  # the kind has shown that
    for note in notes[: text.MAX_SHOWN]:
        console.print(f"Not now: {note}", highlight=False, markup=False)
    text.print_rest(console, len(notes), "notes")
    for failure in found.failures[-SHOWN_FAILURES:]:
        ago = text.duration(max(found.at_ms - failure.at_ms, 0))
        if failure.is_cancelled:
            console.print(
                f"[yellow]Cancelled[/] {ago} ago: {text.short_id(failure.compaction)}", highlight=False
            )
            continue
        tries = f" after {failure.attempts} attempts" if failure.attempts else ""
        name = text.short_id(failure.compaction)
        said = printable(f" {ago} ago: {name}{tries}: {failure.reason}")
        console.print(Text.assemble(("Given up", "red"), said), highlight=False)


def _print_compactions(console: Console, found: Status) -> None:
    headings = columns("=id", "unit", "state", "for", "done", "at", "left", "worker", "attempts")
    rows = [_row(c, found.at_ms) for c in found.compactions]
    draw(console, [Table("Compactions", headings, rows, of="compactions")])
    for c in found.compactions[: text.MAX_SHOWN]:
        name = text.short_id(c.id)
        if c.waits_for:
            console.print(f"{name} waits for {c.waits_for}.", highlight=False, markup=False)
        if c.last_failure is not None:
            console.print(f"{name}, last failure: {c.last_failure}", highlight=False, markup=False)


def _row(c: CompactionStatus, at_ms: int) -> tuple[str, ...]:
    since = text.duration(at_ms - (c.since_ms if c.since_ms is not None else c.submitted_ms))
    return (
        text.short_id(c.id),
        c.unit,
        c.state.value,
        since if c.since_ms is not None else f"at most {since}",
        _done(c),
        text.rate(c.bytes_per_s),
        text.duration(c.remaining_ms),
        _worker(c),
        str(c.attempts or "–"),
    )


def _done(c: CompactionStatus) -> str:
    ranges = f", {c.finished_ranges}/{c.ranges} ranges" if c.ranges else ""
    return f"{text.size(c.done_bytes)} of {text.size(c.cost_bytes)} ({c.share_done:.0%}){ranges}"


def _worker(c: CompactionStatus) -> str:
    if c.worker is None:
        return "–"
    says = f"{text.short_ids(c.worker)}, heartbeat {text.duration(c.heartbeat_age_ms)} ago"
    return Alarm(says) if c.is_stale else says

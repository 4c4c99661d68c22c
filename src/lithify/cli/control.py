"""`lithify submit`, `wait`, `cancel` and `retry`: operations on single compactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from lithify.base.errors import Refused
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import CompactionIds, Full, Url
from lithify.cli.options.of_kinds import options_of_kinds
from lithify.cli.running import print_json
from lithify.views import text
from lithify.views.consoles import standard_error, write_line

if TYPE_CHECKING:
    from lithify.api.client import Job
    from lithify.protocol.status import CompactionStatus


@command(of_kinds=options_of_kinds("submit"))
def submit(context: CommandContext, url: Url, full: Full = False) -> None:
    """Submit a compaction to the coordinator: a full one, or one of given sources or chunks.

    It is validated at once, and again by the coordinator, Lithify's or SlateDB's, which schedules it at its
    next poll. Prints the ids, for `lithify wait`.

    For a database, --full merges everything into one sorted run per segment. For a table, it compacts every
    chunk that is not compact, including chunks that are held by a skip offset, wait for more data or were
    deferred, as far as they can start now; --chunk rewrites a chunk regardless of the plan.

    Examples:

        lithify submit --full s3://bucket/my-db

        lithify submit --l0 all --run 3 --run 2 s3://bucket/my-db

        lithify submit --chunk 2025-01-31 iceberg://catalog/namespace.table
    """
    with context.open(url) as dataset:
        _report(context, dataset.submit(full=full, **context.given.args().given))


@command()
def cancel(context: CommandContext, url: Url, compactions: CompactionIds) -> None:
    """Cancel compactions that have not ended. Their work is lost, but no data.

    Workers stop at their next poll. The coordinator does not plan the same sources for one minute, however
    often they are cancelled, and then plans them again if there is still a reason; a database's writer may
    stall meanwhile. `lithify retry` submits the same compaction again at once.

    Example:

        lithify cancel s3://bucket/my-db 01M7Y73N1RT45V6YVXGPSA14XX
    """
    from lithify.service.failures import CANCEL_PAUSE

    with context.open(url) as dataset:
        wanted = dataset.cancel(*compactions)
    pause_ms = CANCEL_PAUSE.first_ms
    if context.as_json:
        print_json({"cancelled": wanted, "left_alone_ms": pause_ms})
        return
    for compaction_id in wanted:
        write_line(f"{compaction_id} cancelled")
    _say(f"The planner does not plan these sources for {text.duration(pause_ms)}.")


@command()
def retry(context: CommandContext, url: Url, compactions: CompactionIds) -> None:
    """Resubmit compactions that were given up, under new ids, and clear their failures.

    Example:

        lithify retry s3://bucket/my-db 01M7Y73N1RT45V6YVXGPSA14XX
    """
    with context.open(url) as dataset:
        _report(context, dataset.retry(*compactions))


@command(stopped="Stopped waiting; the compactions continue.")
def wait(
    context: CommandContext,
    url: Url,
    compactions: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMPACTION", help="Ids; default: all that have not ended."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Stop waiting after this, such as 10m.")
    ] = None,
) -> None:
    """Wait until compactions have ended, and print their final states.

    Exit code 0 if all are completed, 1 if one has failed, 9 if the time is over.

    Examples:

        lithify wait --timeout 1h s3://bucket/my-db

        lithify wait s3://bucket/my-db 01M7Y73N1RT45V6YVXGPSA14XX
    """
    with context.open(url) as dataset, Bars(standard_error(), quiet=context.as_json) as bars:
        ended = dataset.wait(compactions or None, timeout_s=_seconds(timeout), on_look=bars.draw)
    if context.as_json:
        print_json([{"compaction": o.compaction, "state": o.state.value, "reason": o.reason} for o in ended])
    else:
        for o in ended:
            write_line(f"{o.compaction} {o.state.value}" + (f": {o.reason}" if o.reason else ""))
        if not ended:
            write_line("No compaction is under way.")
    from lithify.protocol.model import CompactionState

    if any(o.state is CompactionState.FAILED for o in ended):
        raise typer.Exit(1)


class Bars:
    """A progress bar for each awaited compaction, with the reason why it waits. Without a terminal, such as
    in the log of a job, a line whenever the state or the reason changes or another tenth is done."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._has_lines = not quiet and not console.is_terminal
        self._told: dict[str, tuple[object, ...]] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[said]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=quiet or self._has_lines)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def draw(self, found: Sequence[CompactionStatus]) -> None:
        """Show the current progress."""
        for c in found:
            moving = "" if c.bytes_per_s is None else f" at {text.rate(c.bytes_per_s)}"
            left = f", {text.duration(c.remaining_ms)} left" if c.remaining_ms is not None else ""
            said = f"{c.state.value}{moving}{left}" + (f", waits for {c.waits_for}" if c.waits_for else "")
            news = (c.state, c.waits_for, round(c.share_done * 10))
            if self._has_lines and self._told.get(c.id) != news:
                self._told[c.id] = news
                self._console.print(
                    f"{text.short_id(c.id)} {c.share_done:.0%} {said}",
                    highlight=False,
                    soft_wrap=True,
                    markup=False,
                )
            if c.id not in self._tasks:
                self._tasks[c.id] = self._progress.add_task(
                    text.short_id(c.id), total=max(c.cost_bytes, 1), said=said
                )
            self._progress.update(self._tasks[c.id], completed=c.done_bytes, said=said)


def _seconds(timeout: str | None) -> float | None:
    from lithify.config.durations import parse_duration

    try:
        return None if timeout is None else parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise Refused(f"--timeout: {error}") from None


def _report(context: CommandContext, job: Job) -> None:
    is_alive = job.dataset.is_coordinated()
    if context.as_json:
        print_json({"submitted": job.ids, "coordinator_is_alive": is_alive, "notes": job.notes})
        return
    for compaction_id in job.ids:
        write_line(compaction_id)
    for note in job.notes:
        _say(note)
    url = job.dataset.url
    if is_alive is False and job.dataset.is_of_fleet():
        _say(f"Its fleet polls it within five minutes, or now with: lithify fleet wake FLEET {url}")
    elif is_alive is False:
        _say(f"No coordinator is running: the compaction waits until one starts (lithify run {url}).")


def _say(sentence: str) -> None:
    """Print a sentence for people to standard error."""
    standard_error().print(sentence, highlight=False, soft_wrap=True, markup=False)

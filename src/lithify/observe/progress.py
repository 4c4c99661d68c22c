"""Progress bars, and totals for the summary of a run, made from events."""

from __future__ import annotations

import threading
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from lithify.base import events
from lithify.base.clock import Clock, SystemClock
from lithify.base.events import Event
from lithify.base.printable import printable
from lithify.views import text


class Totals:
    """The sums of what the ranges report."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0
        self.ranges = 0
        self.cpu_s = 0.0
        self.peak_task_memory_bytes = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.RangeFinished):
            self.rows.update(event.rows)
            self.bytes_read += event.bytes_read
            self.bytes_written += event.bytes_written
            self.ranges += 1
            self.cpu_s += event.cpu_s
            self.peak_task_memory_bytes = max(self.peak_task_memory_bytes, event.peak_memory_bytes)


class _Name(ProgressColumn):
    """The title of a line: a compaction, or a store that is waited for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        since_s = task.fields.get("since_s")
        if since_s is None:
            return Text(task.description)
        waited_s, what = self._clock.monotonic_s() - since_s, task.fields["what"]
        return Text(printable(f"waiting for {what} for {waited_s:.0f} s: {task.description}"))


class _Pace(ProgressColumn):
    """A compaction's average speed since its start, the time left at that speed, and the time elapsed.
    Progress arrives only every few seconds, so speeds between two steps would mean nothing."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        began_s = task.fields.get("began_s")
        if began_s is None or task.total is None:
            return Text("")
        elapsed_s = max(self._clock.monotonic_s() - began_s, 0.0)
        pace = task.completed / elapsed_s if task.completed and elapsed_s else None
        left_ms = (task.total - task.completed) / pace * 1000 if pace else None
        left = "" if left_ms is None else f", {text.duration(left_ms)} left"
        return Text(f"{text.rate(pace)} in {text.duration(elapsed_s * 1000)}{left}")


class ProgressBars:
    """One bar for each running compaction, by bytes, below lines for events.

    A failure is one line, shown when the compaction is retried, and once for the same reason. The last
    failure is left to the summary of the run.
    """

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._waiting: dict[str, TaskID] = {}
        """By store."""
        self._progress = Progress(
            _Name(self._clock),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[ranges]}"),
            _Pace(self._clock),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._complaints = 0
        self._failed: dict[str, str] = {}
        """By compaction: the reason of its last failed attempt, while it is not shown yet."""
        self._told: dict[str, str] = {}
        """By compaction: the reason shown last."""

    def __enter__(self) -> ProgressBars:
        if self._progress.console.is_terminal:  # elsewhere it would draw only an empty line at the end
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # there will be no summary
            for compaction in list(self._failed):
                self._tell_failure(compaction, "failed")
        if self._progress.console.is_terminal:
            self._progress.stop()

    def refresh(self) -> None:
        """Redraw now; the bars are redrawn several times a second anyway."""
        self._progress.refresh()

    def say(self, sentence: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(sentence, highlight=False, markup=False)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._draw(event)

    def _draw(self, event: Event) -> None:
        say = self._progress.console.print
        match event:
            case events.EpochTaken(epoch=epoch):
                say(f"Coordinating as epoch {epoch}.")
            case events.Submitted(compaction=compaction, reason=reason):
                say(f"[bold]{text.short_id(compaction)}[/] {escape(reason)}")
            case events.CompactionRefused(compaction=compaction, reason=reason):
                self._complain(f"[red]{text.short_id(compaction)} refused:[/] {escape(reason)}")
            case events.Reclaimed(compaction=compaction, worker=worker):
                silent = escape(text.short_ids(worker))
                self._complain(f"{text.short_id(compaction)} reclaimed from silent worker {silent}.")
            case events.AttemptFailed(compaction=compaction, reason=reason):
                self._failed[compaction] = reason
                self._end(compaction)
            case events.Claimed(compaction=compaction):
                self._tell_failure(compaction, "failed and is retried")
            case events.EngineLost(compaction=compaction, reason=reason):
                self._complain(f"{text.short_id(compaction)} lost its engine: {escape(reason)}")
                self._end(compaction)
            case events.Failed(compaction=compaction):
                self._failed.pop(compaction, None)
            case events.Resumed(compaction=compaction, finished_ranges=finished, open_ranges=left):
                say(f"{text.short_id(compaction)} continues: {finished} ranges are finished, {left} remain.")
            case events.Prepared(compaction=compaction, ranges=ranges, cost_bytes=cost_bytes):
                self._ranges[compaction] = (0, ranges)
                self._tasks[compaction] = self._progress.add_task(
                    text.short_id(compaction),
                    total=cost_bytes,
                    ranges=_of(0, ranges),
                    began_s=self._clock.monotonic_s(),
                )
            case events.RangeFinished(compaction=compaction):
                if compaction in self._tasks:
                    done, ranges = self._ranges[compaction]
                    self._ranges[compaction] = (done + 1, ranges)
                    self._progress.update(self._tasks[compaction], ranges=_of(done + 1, ranges))
            case events.Moved(compaction=compaction, done_bytes=done_bytes):
                if compaction in self._tasks:
                    self._progress.update(self._tasks[compaction], completed=done_bytes)
            case events.Committed(compaction=compaction):
                say(f"[green]{text.short_id(compaction)} committed.[/]")
                self._end(compaction)
            case events.StoreLost(compaction=compaction, reason=reason):
                self._complain(f"{text.short_id(compaction)} lost its store: {escape(reason)}")
                self._end(compaction)
            case events.WaitingForStore(url=url, since_s=since_s, cause=cause):
                self._wait(url, since_s, cause)
            case events.StoreBack(url=url, waited_s=waited_s):
                self._wait_no_more(url)
                what = escape(events.waited_for(url))
                say(f"{what[:1].upper()}{what[1:]} is available again, after {waited_s:.0f} s.")
            case events.Dropped(compaction=compaction, reason=reason):
                say(f"[yellow]{text.short_id(compaction)} was committed in part:[/] {escape(reason)}")
            case _:
                pass

    def _tell_failure(self, compaction: str, what: str) -> None:
        reason = self._failed.pop(compaction, None)
        if reason is not None and self._told.get(compaction) != reason:
            self._told[compaction] = reason
            self._complain(f"[red]{text.short_id(compaction)} {what}:[/] {escape(reason)}")

    def _wait(self, url: str, since_s: float, cause: str) -> None:
        """Add a line that counts the seconds of a wait."""
        self._wait_no_more(url)
        since_s = self._clock.monotonic_s() - since_s
        what = events.waited_for(url)
        self._waiting[url] = self._progress.add_task(cause, total=None, ranges="", since_s=since_s, what=what)

    def _wait_no_more(self, url: str) -> None:
        task = self._waiting.pop(url, None)
        if task is not None:
            self._progress.remove_task(task)

    def _complain(self, line: str) -> None:
        """Print a problem. As there may be thousands of them, print only the first ones."""
        self._complaints += 1
        if self._complaints <= text.MAX_SHOWN:
            self._progress.console.print(line)
        elif self._complaints == text.MAX_SHOWN + 1:
            self._progress.console.print("Further problems are in the log.")

    def _end(self, compaction: str) -> None:
        task = self._tasks.pop(compaction, None)
        if task is not None:
            self._progress.remove_task(task)


def _of(done: int, ranges: int) -> str:
    return f"{done}/{ranges} ranges"

"""The progress line of a run, and totals for its summary, made from events."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.table import Column
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


@dataclass(slots=True)
class _CompactionProgress:
    """The progress of one compaction."""

    unit: str
    cost_bytes: int
    done_bytes: int = 0
    start_bytes: int | None = 0
    """Bytes that were done already when it began; `None` until that is known."""
    ranges: int = 0
    ranges_done: int = 0
    is_over: bool = False


_LEAST_PACE_S = 1.0
"""Before that, a pace would be that of the first report."""


_WIDTH_WITH_BAR = 110
"""Columns; a narrower terminal has room for the texts only."""


class _RunProgress:
    """The progress of all compactions of a run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_s = clock.monotonic_s()
        self._moving_since_s: float | None = None
        self.works: dict[str, _CompactionProgress] = {}

    def submitted(self, compaction: str, cost_bytes: int, unit: str) -> None:
        self.works.setdefault(compaction, _CompactionProgress(unit, cost_bytes))

    def prepared(self, compaction: str, ranges: int, cost_bytes: int) -> None:
        work = self.works.setdefault(compaction, _CompactionProgress("", cost_bytes))
        if self._moving_since_s is None:
            self._moving_since_s = self._clock.monotonic_s()
        work.cost_bytes, work.ranges = cost_bytes, work.ranges_done + ranges

    def resumed(self, compaction: str, finished_ranges: int) -> None:
        work = self.works.setdefault(compaction, _CompactionProgress("", 0))
        work.ranges_done, work.start_bytes = finished_ranges, None

    def moved(self, compaction: str, done_bytes: int) -> None:
        work = self.works.get(compaction)
        if work is not None and not work.is_over:
            work.start_bytes = done_bytes if work.start_bytes is None else work.start_bytes
            work.done_bytes = done_bytes

    def range_finished(self, compaction: str) -> None:
        work = self.works.get(compaction)
        if work is not None:
            work.ranges_done += 1

    def interrupted(self, compaction: str) -> None:
        """Note that an attempt has ended: the next one reports which ranges are finished."""
        work = self.works.get(compaction)
        if work is not None:
            work.done_bytes = work.start_bytes = work.ranges = work.ranges_done = 0

    def committed(self, compaction: str) -> None:
        work = self.works.get(compaction)
        if work is not None:
            work.done_bytes, work.ranges_done, work.is_over = work.cost_bytes, work.ranges, True

    def dropped(self, compaction: str) -> None:
        self.works.pop(compaction, None)

    @property
    def cost_bytes(self) -> int:
        return sum(work.cost_bytes for work in self.works.values())

    @property
    def done_bytes(self) -> int:
        return sum(min(work.done_bytes, work.cost_bytes) for work in self.works.values())

    def _is_committing(self) -> bool:
        """Return whether all ranges have ended, and a compaction is not committed yet."""
        open_works = [work for work in self.works.values() if not work.is_over]
        return bool(open_works) and all(
            work.ranges and work.ranges_done >= work.ranges for work in open_works
        )

    def tasks(self) -> str:
        """Return how many compactions and ranges have ended. Ranges are known once they begin."""
        works = self.works.values()
        ranges = sum(work.ranges for work in works)
        done = min(sum(work.ranges_done for work in works), ranges)
        parts = []
        if len(works) > 1:
            parts.append(f"{sum(work.is_over for work in works):,}/{text.count(len(works), 'compaction')}")
        if ranges:
            parts.append(f"{done:,}/{text.count(ranges, 'range')}")
        return ", ".join(parts)

    def pace(self) -> str:
        """Return the average speed, the time left at that speed, and the time since the command began.
        Progress arrives every few seconds, so speeds between two reports would mean nothing."""
        now_s = self._clock.monotonic_s()
        elapsed = f"{text.duration(1000 * (now_s - self._start_s))} elapsed"
        if self._moving_since_s is None:
            return elapsed
        if self._is_committing():
            return f"committing, {elapsed}"
        moved = self.done_bytes - sum(work.start_bytes or 0 for work in self.works.values())
        moving_s = now_s - self._moving_since_s
        if moved <= 0 or moving_s < _LEAST_PACE_S:
            return elapsed
        left_ms = 1000 * (self.cost_bytes - self.done_bytes) * moving_s / moved
        left = f"{text.duration(left_ms)} left, " if left_ms else ""
        return f"{text.rate(moved / moving_s)}, {left}{elapsed}"


class _TextColumn(ProgressColumn):
    """A column of texts that a task's field of this name returns."""

    def __init__(self, field: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._field = field

    def render(self, task: Task) -> Text:
        return Text(printable(task.fields[self._field]()))


class ProgressBars:
    """One line for the progress of a run, below lines for its events: compactions and ranges that have ended,
    bytes, speed, time left and time elapsed. Before the first compaction it names the present step.

    A failure is one line, shown when the compaction is retried, and once for the same reason. The last
    failure is left to the summary of the run.
    """

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._waiting: dict[str, TaskID] = {}
        """By store."""
        bar = [BarColumn(bar_width=20)] if console.width >= _WIDTH_WITH_BAR else []
        self._progress = Progress(
            SpinnerColumn(),
            _TextColumn("name"),
            *bar,
            _TextColumn("pace"),
            console=console,
            transient=True,
        )
        self._run = _RunProgress(self._clock)
        self._step = "planning"
        self._line = self._add(self._name, self._run.pace)
        self._lock = threading.RLock()
        self._complaints = 0
        self._lines: Counter[str] = Counter()
        """How many lines of each kind were printed."""
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
        """Redraw now; the line is redrawn several times a second anyway."""
        self._progress.refresh()

    def say(self, sentence: str) -> None:
        """Print a line above the progress line."""
        self._progress.console.print(sentence, highlight=False, markup=False)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._draw(event)
            run = self._run
            known = run.cost_bytes if any(work.ranges for work in run.works.values()) else None
            self._progress.update(self._line, total=known or None, completed=run.done_bytes)

    def _draw(self, event: Event) -> None:
        run = self._run
        match event:
            case events.EpochTaken(epoch=epoch):
                self._print(f"Coordinating as epoch {epoch}.")
            case events.Submitted(compaction=compaction, reason=reason, cost_bytes=cost_bytes, unit=unit):
                run.submitted(compaction, cost_bytes, unit)
                self._step = "starting"
                self._some("compactions", f"[bold]{text.short_id(compaction)}[/] {escape(reason)}")
            case events.CompactionRefused(compaction=compaction, reason=reason):
                run.dropped(compaction)
                self._complain(f"[red]{text.short_id(compaction)} refused:[/] {escape(reason)}")
            case events.Reclaimed(compaction=compaction, worker=worker):
                silent = escape(text.short_ids(worker))
                self._complain(f"{text.short_id(compaction)} reclaimed from silent worker {silent}.")
            case events.AttemptFailed(compaction=compaction, reason=reason):
                self._failed[compaction] = reason
                run.interrupted(compaction)
            case events.Claimed(compaction=compaction):
                self._tell_failure(compaction, "failed and is retried")
            case events.EngineLost(compaction=compaction, reason=reason):
                self._complain(f"{text.short_id(compaction)} lost its engine: {escape(reason)}")
                run.interrupted(compaction)
            case events.Failed(compaction=compaction):
                self._failed.pop(compaction, None)
                run.dropped(compaction)
            case events.Resumed(compaction=compaction, finished_ranges=finished, open_ranges=left):
                run.resumed(compaction, finished)
                are = "is" if finished == 1 else "are"
                self._print(
                    f"{text.short_id(compaction)} continues: {text.count(finished, 'range')} {are} finished, "
                    f"{left:,} {'remains' if left == 1 else 'remain'}."
                )
            case events.Prepared(compaction=compaction, ranges=ranges, cost_bytes=cost_bytes):
                run.prepared(compaction, ranges, cost_bytes)
            case events.RangeFinished(compaction=compaction):
                run.range_finished(compaction)
            case events.Moved(compaction=compaction, done_bytes=done_bytes):
                run.moved(compaction, done_bytes)
            case events.Committed(compaction=compaction, unit=unit):
                work = run.works.get(compaction)
                name = escape(unit or (work.unit if work is not None else ""))
                run.committed(compaction)
                committed = f"committed: {name}" if name else "committed."
                self._some("commits", f"[green]{text.short_id(compaction)}[/] {committed}")
            case events.StoreLost(compaction=compaction, reason=reason):
                self._complain(f"{text.short_id(compaction)} lost its store: {escape(reason)}")
                run.interrupted(compaction)
            case events.WaitingForStore(url=url, since_s=since_s, cause=cause):
                self._wait(url, since_s, f"{event.limit}: {cause}")
            case events.StoreBack(url=url, waited_s=waited_s):
                self._wait_no_more(url)
                what = escape(events.waited_for(url))
                self._print(f"{what[:1].upper()}{what[1:]} is available again, after {waited_s:.0f} s.")
            case events.Dropped(compaction=compaction, reason=reason):
                self._print(f"[yellow]{text.short_id(compaction)} was committed in part:[/] {escape(reason)}")
            case _:
                pass

    def _name(self) -> str:
        works = self._run.works
        if not any(work.ranges for work in works.values()):
            return self._step
        size = f"{text.size(self._run.done_bytes)} of {text.size(self._run.cost_bytes)}"
        running = [compaction for compaction, work in works.items() if work.ranges and not work.is_over]
        name = f"{text.short_id(running[0])}: " if len(running) == 1 else ""
        return f"{name}{self._run.tasks()}, {size}"

    def _add(self, name: Callable[[], str], pace: Callable[[], str]) -> TaskID:
        return self._progress.add_task("", total=None, name=name, pace=pace)

    def _print(self, line: str) -> None:
        self._progress.console.print(line)

    def _some(self, of: str, line: str) -> None:
        """Print a line of a kind of which there may be thousands: only the first ones."""
        self._lines[of] += 1
        if self._lines[of] <= text.FIRST_SHOWN:
            self._print(line)
        elif self._lines[of] == text.FIRST_SHOWN + 1:
            self._print(f"Further {of} are only counted here; `lithify history` lists them.")

    def _tell_failure(self, compaction: str, what: str) -> None:
        reason = self._failed.pop(compaction, None)
        if reason is not None and self._told.get(compaction) != reason:
            self._told[compaction] = reason
            self._complain(f"[red]{text.short_id(compaction)} {what}:[/] {escape(reason)}")

    def _wait(self, url: str, since_s: float, ending: str) -> None:
        """Add a line that counts the seconds of a wait."""
        self._wait_no_more(url)
        start_s = self._clock.monotonic_s() - since_s
        what = events.waited_for(url)

        def name() -> str:
            return f"waiting for {what} for {self._clock.monotonic_s() - start_s:.0f} s{ending}"

        self._waiting[url] = self._add(name, str)

    def _wait_no_more(self, url: str) -> None:
        task = self._waiting.pop(url, None)
        if task is not None:
            self._progress.remove_task(task)

    def _complain(self, line: str) -> None:
        """Print a problem. As there may be thousands of them, print only the first ones."""
        self._complaints += 1
        if self._complaints <= text.MAX_SHOWN:
            self._print(line)
        elif self._complaints == text.MAX_SHOWN + 1:
            self._print("Further problems are in the log.")

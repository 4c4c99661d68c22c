"""What a trickle costs: a small file a minute for two days; `python -m benchmarks.trickle` tells.

Nothing here measures time: the planner and its memory are the real ones, the table is a model, and a minute
is a turn of the loop. Each minute one file arrives; every tenth also has rows of up to a day before. Then the
table is planned, and all tasks that may start are done at once. After two days nothing more comes, and time
goes on until the last chunk is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.datasets.iceberg.plan import timeline_policy
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.planning.timeline.model import Color, Interval, TimelineFile, TimelinePolicy
from lithify.planning.timeline.plan import plan, remember
from lithify.planning.timeline.state import ChunkStates, committed
from lithify.testing.timeline import ModelTable

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
START_US = 20_000 * DAY_US
DAY_MINUTES = 24 * 60
DAYS = 2
QUIET_MINUTES = 26 * 60
LATE_EVERY = 10
"""Each so many files, one reaches back."""

DEFAULT = TablePolicy()
EAGER = TablePolicy(min_saved_files=1, min_new_percent=0)


@dataclass(frozen=True)
class Trickle:
    """What it cost."""

    rewrites: int
    """Tasks that ran."""
    amplification: float
    """Bytes rewritten for a byte that arrived."""
    most_files: int
    """The most files that a query of the current day had to read."""
    files_left: int
    """In the end."""
    last_tasks: int
    """Tasks of the last plan."""


def run(policy: TablePolicy, file_bytes: int, *, days: int = DAYS) -> Trickle:
    """These days under this policy."""
    timeline = timeline_policy(policy)
    table = _Table(timeline)
    arrived_bytes = most_files = 0
    for minute in range(days * DAY_MINUTES + QUIET_MINUTES):
        now_us = START_US + minute * MINUTE_US
        if minute < days * DAY_MINUTES:
            begins_us = now_us - MINUTE_US
            if minute % LATE_EVERY == 0:
                begins_us = max(START_US, now_us - DAY_US * (minute % 97) // 97)
            table.arrive(Interval(min(begins_us, now_us - 1), now_us), file_bytes, minute)
            arrived_bytes += file_bytes
        table.compact(now_us)
        today = now_us // DAY_US * DAY_US
        most_files = max(most_files, table.count(Interval(today, today + DAY_US)))
    left = plan(table.model.listing(), timeline, now_us, states=table.states).tasks
    return Trickle(
        table.rewrites, table.read_bytes / arrived_bytes, most_files, len(table.model.files), len(left)
    )


class _Table:
    """One table, compacted at once whenever its plan says so."""

    def __init__(self, policy: TimelinePolicy) -> None:
        self.model = ModelTable(policy)
        self.states = ChunkStates()
        self.rewrites = self.read_bytes = 0
        self._policy = policy

    def arrive(self, times: Interval, size_bytes: int, number: int) -> None:
        self.model.version += 1
        new = TimelineFile(f"in{number}", times, size_bytes, 1000, version=self.model.version)
        self.model.files[new.id] = new

    def compact(self, now_us: int) -> None:
        found = plan(self.model.listing(), self._policy, now_us, states=self.states)
        self.states = remember(found, self._policy)
        for task in found.tasks:
            if task.color is Color.RED:
                self.rewrites += 1
                self.read_bytes += task.cost_bytes
                added = self.model.rewrite(task.files)
                self.states = committed(self.states, task.chunks, added, self._policy)

    def count(self, times: Interval) -> int:
        return sum(isinstance(f.times, Interval) and f.times.meets(times) for f in self.model.files.values())


def main() -> None:
    """The table in docs/timeline.md."""
    print("file  policy   rewrites  bytes rewritten / arrived  most files of a day  tasks left")
    for name, file_bytes in (("20 kB", 20_000), ("1 MB", 1_000_000), ("10 MB", 10_000_000)):
        for label, policy in (("eager", EAGER), ("default", DEFAULT)):
            done = run(policy, file_bytes)
            print(
                f"{name:5} {label:8} {done.rewrites:8} {done.amplification:26.1f} {done.most_files:20} "
                f"{done.last_tasks:11}"
            )


if __name__ == "__main__":
    main()

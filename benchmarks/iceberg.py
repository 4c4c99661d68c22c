"""Compactors beside each other on one table of 500 small files, and how long Lithify takes to decide.

1. Make the tables that are not there yet.
2. Let every compactor work while somebody else commits (`iceberg_meanwhile`).
3. Repeat, one compactor after the other within each repetition: a fresh copy of the table in the page
   cache, everything flushed to disk, one compaction in a process of its own, what a query of one day
   touches afterwards (`iceberg_layout`). In the first repetition DuckDB compares all rows with the input's.
4. Plan large tables (`iceberg_planning`).

A compactor that is not installed or fails is listed with the reason; it does not end the run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import iceberg_meanwhile
from benchmarks.iceberg_data import (
    FILES,
    ROWS_PER_FILE,
    Place,
    copy_for_a_run,
    data_files,
    local_path,
    table_of,
)
from benchmarks.iceberg_layout import Layout, Rows, fingerprint, measure_layout
from benchmarks.iceberg_planning import CHUNKS, PlanningRun, measure_planning
from benchmarks.iceberg_planning import FILES as PLANNED_FILES
from benchmarks.iceberg_rest import served
from benchmarks.iceberg_tools import NOT_MEASURED, TOOLS, Kind, Tool, version_of
from benchmarks.report import Target
from benchmarks.watch import WatchedFailed, run_watched

NAME = "Iceberg"
"""Of this part among the cases."""
MAX_WALL_OVER_SAFE = 1.1
MAX_WALL_OVER_ANY = 1.5
MAX_DAY_OVER_BEFORE = 0.65
MAX_DAY_OVER_BIN_PACKING = 0.25
MAX_PLANNING_S = 5.0
MAX_UNCHANGED_S = 1.0
TABLE_WIDTH = 110
MIN_PLANNED_FILES, MIN_UNCHANGED_CHUNKS = 100, 50


@dataclass(frozen=True, slots=True)
class Sample:
    """One compaction by one compactor."""

    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    layout: Layout
    details: dict[str, float]


@dataclass(slots=True)
class Measured:
    """What was measured of one compactor."""

    tool: Tool
    samples: list[Sample] = field(default_factory=list)
    surplus_rows: dict[str, int] = field(default_factory=dict)
    """Rows that should not be there after others had committed meanwhile."""
    failure: str | None = None
    """Why it is not measured, or not to the end."""

    @property
    def is_safe(self) -> bool:
        """Whatever others committed meanwhile, the rows are right."""
        return bool(self.surplus_rows) and not any(self.surplus_rows.values())

    def median(self, name: str) -> float:
        """Of a field of the samples."""
        return float(median(getattr(sample, name) for sample in self.samples))

    @property
    def layout(self) -> Layout:
        return self.samples[0].layout

    def to_json(self) -> dict[str, object]:
        """Medians and every sample."""
        names = ("wall_s", "cpu_s", "peak_memory_bytes") if self.samples else ()
        return {
            "name": self.tool.name,
            "kind": self.tool.kind,
            "format": self.tool.format,
            "package": self.tool.package,
            "version": version_of(self.tool.package),
            "failure": self.failure,
            "surplus_rows": self.surplus_rows,
            "median": {name: self.median(name) for name in names},
            "samples": [asdict(sample) for sample in self.samples],
        }


@dataclass(frozen=True, slots=True)
class IcebergResults:
    """Everything measured here."""

    before: Layout
    rows: Rows
    tools: Sequence[Measured]
    planning: PlanningRun

    @property
    def ours(self) -> Measured:
        return self.tools[0]

    @property
    def peers(self) -> list[Measured]:
        return [measured for measured in self.tools[1:] if measured.samples and measured.failure is None]

    def targets(self) -> list[Target]:
        """What must be reached; without peers, what can be told without them."""
        targets: list[Target] = []
        if self.ours.samples:
            wall_s, day_bytes = self.ours.median("wall_s"), self.ours.layout.day_file_bytes
            safe = [peer.median("wall_s") for peer in self.peers if peer.is_safe]
            packing = [p.layout.day_file_bytes for p in self.peers if p.tool.kind is Kind.BIN_PACK]
            ratio = day_bytes / self.before.day_file_bytes
            targets.append(Target("one-day bytes over those before", ratio, MAX_DAY_OVER_BEFORE, False))
            if safe:
                name = "wall over the fastest that keeps rows right"
                targets.append(Target(name, wall_s / min(safe), MAX_WALL_OVER_SAFE, False))
            if self.peers:
                ratio = wall_s / min(peer.median("wall_s") for peer in self.peers)
                targets.append(Target("wall over the fastest of all", ratio, MAX_WALL_OVER_ANY, False))
            if packing:
                name = "one-day bytes over those of the best bin-packing"
                targets.append(Target(name, day_bytes / min(packing), MAX_DAY_OVER_BIN_PACKING, False))
        unchanged = max(self.planning.unchanged_proposals, self.planning.unchanged_analysed)
        return [
            *targets,
            Target(f"s to plan {self.planning.files} files", self.planning.planning_s, MAX_PLANNING_S, False),
            Target(
                f"s to find {self.planning.chunks} chunks unchanged",
                self.planning.unchanged_s, MAX_UNCHANGED_S, False,
            ),
            Target("unchanged chunks that were looked at or proposed", float(unchanged), 0.0, False),
        ]  # fmt: skip

    def to_json(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "before": asdict(self.before),
            "rows": self.rows.count,
            "tools": [measured.to_json() for measured in self.tools],
            "not_measured": NOT_MEASURED,
            "planning": asdict(self.planning),
            "targets": [target.to_json() for target in self.targets()],
        }


def measure(cache: Path, scale: float, repetitions: int, console: Console) -> IcebergResults:
    """Measure everything; `scale` is the fraction of the data."""
    console.print(f"{NAME} …", highlight=False)
    place = table_of(cache, max(1, round(FILES * scale)), ROWS_PER_FILE)
    small = table_of(cache, iceberg_meanwhile.FILES, iceberg_meanwhile.ROWS_PER_FILE)
    inputs = data_files(copy_for_a_run(place))
    before, rows = measure_layout(inputs), fingerprint(inputs)
    tools = [Measured(tool, failure=tool.missing) for tool in TOOLS]
    for measured in tools:
        if measured.failure is None:
            check_rows(measured, small)
    for repetition in range(repetitions):
        for measured in tools:
            if measured.failure is None:
                sample(measured, place, rows if repetition == 0 else None)
    folder = cache / f"planning-{os.getpid()}"
    try:
        planning = measure_planning(
            folder,
            max(MIN_PLANNED_FILES, round(PLANNED_FILES * scale)),
            max(MIN_UNCHANGED_CHUNKS, round(CHUNKS * scale)),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return IcebergResults(before, rows, tools, planning)


def check_rows(measured: Measured, place: Place) -> None:
    """Find out whether rows are right while others commit."""
    try:
        measured.surplus_rows = iceberg_meanwhile.surplus_rows(measured.tool, place)
    except WatchedFailed as error:
        measured.failure = f"while others commit: {error}"


def sample(measured: Measured, place: Place, rows: Rows | None) -> None:
    """One compaction of a table on disk, which is to have these rows afterwards."""
    folder = copy_for_a_run(place)
    for path in data_files(folder):
        path.read_bytes()
    os.sync()
    try:
        with served(folder) if measured.tool.needs_rest else nullcontext() as uri:
            watched = run_watched(measured.tool.command(folder, uri))
    except WatchedFailed as error:
        measured.failure = str(error)
        return
    run = watched.document
    files = [local_path(location) for location in run["files"]]
    layout = measure_layout(files)
    if rows is not None and fingerprint(files) != rows:
        measured.failure = "the rows afterwards are not those before"
        return
    sample = Sample(run["wall_s"], run["cpu_s"], watched.peak_memory_bytes, layout, run["details"])
    measured.samples.append(sample)


def print_tables(console: Console, results: IcebergResults) -> None:
    """The medians and every target with its verdict."""
    table = Table(title=f"{results.before.files} small files, one compaction (medians)", box=SIMPLE)
    for heading in ("", "wall s", "CPU s", "peak MB", "files", "MB", "day MB", "in groups", "surplus rows"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    table.add_row("before", "", "", "", *_cells(results.before), "")
    for measured in results.tools:
        if measured.samples:
            table.add_row(measured.tool.name, *_row(measured))
    console.print(table, width=TABLE_WIDTH, crop=False)
    for measured in results.tools:
        if measured.failure is not None:
            says = f"{measured.tool.name}: not measured: {last_line(measured.failure)}"
            console.print(says, highlight=False, markup=False)
    for package, reason in NOT_MEASURED.items():
        console.print(f"{package}: not measured: {reason}", highlight=False, markup=False)
    for target in results.targets():
        colour = "green" if target.is_met else "red"
        console.print(f"[{colour}]{NAME}: {target}[/]", highlight=False)


def last_line(text: str) -> str:
    """Of a traceback, what it is about."""
    return text.strip().splitlines()[-1]


def _row(measured: Measured) -> list[str]:
    surplus = ", ".join(f"{rows} {what}" for what, rows in measured.surplus_rows.items() if rows)
    return [
        f"{measured.median('wall_s'):.2f}",
        f"{measured.median('cpu_s'):.2f}",
        f"{measured.median('peak_memory_bytes') / 1e6:.0f}",
        *_cells(measured.layout),
        surplus or ("none" if measured.surplus_rows else "no table"),
    ]


def _cells(layout: Layout) -> list[str]:
    return [
        str(layout.files),
        f"{layout.bytes / 1e6:.0f}",
        f"{layout.day_file_bytes / 1e6:.1f}",
        f"{layout.day_group_bytes / 1e6:.1f}",
    ]

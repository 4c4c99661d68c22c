"""Keeping the metadata of tables in shape, at scale, beside other tools.

1. *Expiry*: a table of 5,000 snapshots and 100,000 files (`history_data`). Each tool lets the old ones go,
   with their files, and deletes the orphans, on a copy of its own (`history_tools`).
2. *Manifests*: each tool writes 2,000 of them anew. Before and after, PyIceberg plans a query of one day.
3. *Scale*, of Lithify alone (`history_scale`): 10 million listed objects of which most are orphans; the names
   of 10 million files, which expiry holds; a table of a million files is planned, with its history and
   manifests, then looked at again with nothing changed, and a snapshot of it expires.

The judge does not believe what a tool says. Rows of the newest snapshot and of the tagged one have to be
those from before, files that any snapshot needs have to be there, and what no snapshot needs is counted, by
`tests.datasets.iceberg.reachability`, which shares no code with anybody. After manifests were rewritten,
every live entry has to be there once with the same sequence numbers.

A tool that is not installed, fails or takes too long is listed with the reason.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Grid
from tests.datasets.iceberg.reachability import needed_by

from benchmarks.history_data import DAYS
from benchmarks.history_tools import JAVA, TOOLS, Tool, reader_at
from benchmarks.iceberg_data import NAME as TABLE
from benchmarks.iceberg_data import (
    START_US,
    TIME_COLUMN,
    US_PER_DAY,
    Place,
    copy_for_a_run,
    local_path,
    made_once,
    open_catalog,
)
from benchmarks.iceberg_layout import Rows, fingerprint
from benchmarks.iceberg_rest import served
from benchmarks.report import Target
from benchmarks.watch import WatchedFailed, run_watched

NAME = "Iceberg history"
VERSION = 1
"""Of the data: part of the kept names."""
SNAPSHOTS, FILES, ORPHANS = 5_000, 100_000, 5_000
MANIFESTS, MANIFEST_FILES, MANIFEST_BYTES = 2_000, 100_000, 64 << 10
LARGE_MANIFESTS, LARGE_FILES = 2_000, 1_000_000
LISTED = NAMES = 10_000_000
LARGE_MANIFEST_BYTES = 8 << 20
MIN_FASTER = 3.0
MAX_DAY_OVER_BEFORE = 0.1
MAX_HELD_BYTES = 600_000_000
MAX_LARGE_S, MAX_LARGE_BYTES, MAX_AGAIN_S = 45.0, 2_000_000_000, 1.0
TOOL_TIMEOUT_S = 480
TABLE_WIDTH = 130
PLANS = 2


@dataclass(slots=True)
class Measured:
    """One job of one tool."""

    tool: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    found: dict[str, Any] = field(default_factory=dict)
    """By the judge."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it has to be."""
    failure: str | None = None
    """Why it is not measured."""

    @property
    def is_right(self) -> bool:
        return self.failure is None and not self.wrong


@dataclass(frozen=True, slots=True)
class HistoryResults:
    """Everything measured here."""

    sizes: dict[str, int]
    expiry: Sequence[Measured]
    manifests: Sequence[Measured]
    planning_before_s: float
    scale: dict[str, dict[str, float]]

    def targets(self) -> list[Target]:
        """What must be reached; without peers, what can be told without them."""
        found = []
        ours, *peers = self.expiry
        fastest = min((peer.wall_s for peer in peers if peer.is_right), default=None)
        if ours.is_right and fastest is not None:
            name = "expiry: wall of the fastest peer that keeps rows right, over Lithify's"
            found.append(Target(name, fastest / ours.wall_s, MIN_FASTER, True))
        ours, *peers = self.manifests
        for peer in peers:
            if peer.tool == JAVA and peer.is_right and ours.is_right:
                name = "rewriting manifests: wall of Java Iceberg over Lithify's"
                found.append(Target(name, peer.wall_s / ours.wall_s, MIN_FASTER, True))
        if ours.is_right:
            ratio = ours.found["one_day_plan_s"] / self.planning_before_s
            found.append(Target("planning of one day over that before", ratio, MAX_DAY_OVER_BEFORE, False))
        for job, of, what in (
            ("orphans", "listed", "listed objects"),
            ("names", "files", "files that expiry knows"),
            ("expire", "files", "files of a table of which a snapshot expires"),
        ):
            peak, name = self.scale[job]["peak_memory_bytes"], f"{int(self.scale[job][of]):,} {what}"
            found.append(Target(f"peak MB at {name}", peak / 1e6, MAX_HELD_BYTES / 1e6, False))
        large = self.scale["plan"]
        files, peak_mb = f"{int(large['files']):,} files", large["peak_memory_bytes"] / 1e6
        return [
            *found,
            Target(f"s to plan a table of {files}", large["plan_s"], MAX_LARGE_S, False),
            Target(f"peak MB of planning {files}", peak_mb, MAX_LARGE_BYTES / 1e6, False),
            Target(f"s to look at {files} again, unchanged", large["again_s"], MAX_AGAIN_S, False),
        ]  # fmt: skip

    def to_json(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "sizes": self.sizes,
            "expiry": [asdict(measured) for measured in self.expiry],
            "manifests": [asdict(measured) for measured in self.manifests],
            "planning_before_s": self.planning_before_s,
            "scale": self.scale,
            "targets": [target.to_json() for target in self.targets()],
        }


def measure(cache: Path, scale: float, console: Console) -> HistoryResults:
    """Measure everything once; `scale` is the fraction of the data."""

    def scaled(size: int, least: int = 1) -> int:
        return max(least, round(size * scale))

    console.print(f"{NAME}, expiry …", highlight=False)
    snapshots = scaled(SNAPSHOTS, 60)
    history = made(cache, "history", snapshots, max(scaled(FILES), 4 * snapshots), scaled(ORPHANS))
    expiry = expired(history, snapshots)
    console.print(f"{NAME}, manifests …", highlight=False)
    manifests = scaled(MANIFESTS, 20)
    target_bytes = max(16 << 10, round(MANIFEST_BYTES * min(1.0, scale * 10)))
    many = made(cache, "manifests", manifests, max(scaled(MANIFEST_FILES), 20 * manifests), target_bytes)
    before_s, rewritten = rewritten_manifests(many)
    console.print(f"{NAME}, scale …", highlight=False)
    files, large_manifests = scaled(LARGE_FILES, 1000), scaled(LARGE_MANIFESTS, 10)
    large = made(cache, "large", large_manifests, files, LARGE_MANIFEST_BYTES)
    at_scale = {
        "orphans": at_scale_of(large, "orphans", scaled(LISTED, 2 * files)),
        "names": at_scale_of(large, "names", scaled(NAMES)),
        "plan": at_scale_of(large, "plan", files),
        "expire": at_scale_of(large, "expire", files),
    }
    sizes = {"snapshots": snapshots, "manifests": manifests, "large_files": files}
    return HistoryResults(sizes, expiry, rewritten, before_s, at_scale)


def made(cache: Path, kind: str, *sizes: int) -> Place:
    numbers = [str(size) for size in sizes]

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.history_data", kind, str(folder), *numbers]

    return made_once(cache, "-".join((f"history-v{VERSION}", kind, *numbers)), command)


# Expiry


def expired(place: Place, snapshots: int, tools: Sequence[Tool] = TOOLS) -> list[Measured]:
    """What each tool makes of the history in a place."""
    rows = rows_by_ref(copy_for_a_run(place))
    found = []
    for tool in tools:
        measured = _run(tool, "expire", place)
        if measured.failure is None:
            judge_expiry(measured, place.work, rows, snapshots)
        found.append(measured)
    return found


def judge_expiry(measured: Measured, folder: Path, rows: dict[str, Rows], snapshots: int) -> None:
    """What is left, and what is wrong with it."""
    table = open_catalog(folder).load_table(TABLE)
    left = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    needed = needed_by(table.metadata_location, lambda path: local_path(path).read_bytes())
    root = local_path(table.location())
    there = {path for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}
    named = {local_path(path) for path in (*needed.manifests, *needed.files)}
    reader = reader_at(snapshots)
    measured.found = {
        "snapshots": len(left),
        "files": len(there),
        "needed_files": len(named),
        "unneeded_files": len(there - named),
        "reader_can_go_on": reader is None or reader in left,
    }
    if named - there:
        measured.wrong.append(f"{len(named - there)} needed files are gone")
        return
    after = rows_by_ref(folder)
    measured.wrong += [f"rows of {name}" for name in rows if after.get(name) != rows[name]]


def rows_by_ref(folder: Path) -> dict[str, Rows]:
    """The rows of every branch and tag."""
    table = open_catalog(folder).load_table(TABLE)
    found = {}
    for name, ref in table.metadata.refs.items():
        tasks = table.scan(snapshot_id=ref.snapshot_id).plan_files()
        found[name] = fingerprint([local_path(task.file.file_path) for task in tasks])
    return found


# Manifests


def rewritten_manifests(place: Place, tools: Sequence[Tool] = TOOLS) -> tuple[float, list[Measured]]:
    """How long planning one day takes before, and what each tool makes of the manifests in a place."""
    table = open_catalog(copy_for_a_run(place)).load_table(TABLE)
    before_s, entries = one_day_plan_s(table), _entries(table)
    found = []
    for tool in tools:
        measured = _run(tool, "manifests", place)
        if measured.failure is None:
            table = open_catalog(place.work).load_table(TABLE)
            snapshot = table.current_snapshot()
            assert snapshot is not None
            measured.found = {
                "manifests": len(snapshot.manifests(table.io)),
                "one_day_plan_s": one_day_plan_s(table),
            }
            if _entries(table) != entries:
                measured.wrong.append("the entries are not those from before")
        found.append(measured)
    return before_s, found


def one_day_plan_s(table: Table) -> float:
    """How long PyIceberg plans a query of one day in the middle; the best of a few."""
    start_us = START_US + DAYS // 2 * US_PER_DAY
    low, high = (f"{_iso(us)}+00:00" for us in (start_us, start_us + US_PER_DAY))
    seconds = []
    for _ in range(PLANS):
        started_s = time.perf_counter()
        list(table.scan(f"{TIME_COLUMN} >= '{low}' AND {TIME_COLUMN} < '{high}'").plan_files())
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def _iso(us: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000))


def _entries(table: Table) -> Counter[tuple[str, int | None, int | None, int | None]]:
    """Live entries, with what a rewrite may not change."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return Counter(
        (entry.data_file.file_path, entry.sequence_number, entry.file_sequence_number, entry.snapshot_id)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status != ManifestEntryStatus.DELETED
    )


# Both


def _run(tool: Tool, job: str, place: Place) -> Measured:
    measured = Measured(tool.name, failure=tool.missing)
    if measured.failure is not None:
        return measured
    folder = copy_for_a_run(place)
    try:
        with served(folder) if tool.jobs is None else nullcontext() as uri:
            watched = run_watched(tool.command(job, folder, uri), TOOL_TIMEOUT_S)
    except WatchedFailed as error:
        measured.failure = str(error).strip().splitlines()[-1]
        return measured
    measured.wall_s, measured.cpu_s = watched.document["wall_s"], watched.document["cpu_s"]
    measured.peak_memory_bytes = watched.peak_memory_bytes
    return measured


def at_scale_of(place: Place, job: str, size: int) -> dict[str, float]:
    """A job of `history_scale`, and the most memory its process had."""
    folder = copy_for_a_run(place)
    command = [sys.executable, "-m", "benchmarks.history_scale", job, str(folder), str(size)]
    watched = run_watched(command)
    return {**watched.document, "peak_memory_bytes": watched.peak_memory_bytes}


# Showing


def print_tables(console: Console, results: HistoryResults) -> None:
    """What was measured, and every target with its verdict."""
    for title, measured in (
        (f"{results.sizes['snapshots']:,} snapshots expired, orphans deleted", results.expiry),
        (f"{results.sizes['manifests']:,} manifests rewritten", results.manifests),
    ):
        known = list(dict.fromkeys(name for one in measured for name in one.found))
        grid = Grid(title=title, box=SIMPLE)
        for heading in (
            "",
            "wall s",
            "CPU s",
            "peak MB",
            *(name.replace("_", " ") for name in known),
            "wrong",
        ):
            grid.add_column(heading, justify="right" if heading else "left")
        for one in measured:
            if one.failure is None:
                costs = f"{one.wall_s:.2f}", f"{one.cpu_s:.2f}", f"{one.peak_memory_bytes / 1e6:.0f}"
                shown = (_shown(one.found.get(name)) for name in known)
                grid.add_row(one.tool, *costs, *shown, ", ".join(one.wrong))
        console.print(grid, width=TABLE_WIDTH, crop=False)
        for one in measured:
            if one.failure is not None:
                console.print(f"{one.tool}: not measured: {one.failure}", highlight=False, markup=False)
    console.print(f"one day was planned in {results.planning_before_s:.2f} s before", highlight=False)
    for job, found in results.scale.items():
        console.print(f"{job}: {json.dumps(found)}", highlight=False, markup=False)
    for target in results.targets():
        colour = "green" if target.is_met else "red"
        console.print(f"[{colour}]{NAME}: {target}[/]", highlight=False)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)

"""From single runs to medians, ratios and verdicts; a table for people and a document for programs.

All ratios are of throughput (bytes of input for each second), so more than 1 is better than the
official compactor, except `cpu_over_cp`: Lithify's CPU over that of `cp` of the same input.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.cases import MAX_PEAK_MEMORY_BYTES, MIN_INPUT_BYTES, Case
from benchmarks.child import Cost
from benchmarks.official import OfficialRun
from benchmarks.ours import EndToEndRun, KernelRun

RunT = TypeVar("RunT")
PACKAGES = ("lithify", "slatedb", "numba", "numpy", "obstore", "pyspark")
COLUMNS = ("data", "MB in", "cp CPU s", "official CPU s", "Lithify CPU s", "MB/CPU s", "× CPU", "× wall")
OUTPUT_TOLERANCE = 0.02
"""Outputs may differ in size by this fraction: lz4 libraries do not produce the same bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that must be reached."""

    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> dict[str, object]:
        """The target with its verdict."""
        return {**asdict(self), "is_met": self.is_met}

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{self.name} {self.value:.2f} {sign} {self.limit:g} {'met' if self.is_met else 'MISSED'}"


@dataclass(frozen=True, slots=True)
class KernelSamples:
    """All repetitions of the kernel part of a case."""

    case: Case
    cp: Sequence[Cost]
    official: Sequence[OfficialRun]
    ours: Sequence[KernelRun]

    def __post_init__(self) -> None:
        theirs, mine = self.official[0].output_bytes, self.ours[0].output_bytes
        if abs(theirs - mine) > OUTPUT_TOLERANCE * theirs:
            raise RuntimeError(
                f"{self.case.name}: outputs of {mine} and of {theirs} bytes cannot be the same rows"
            )

    @property
    def cpu_ratio(self) -> float:
        return median(run.cpu_s for run in self.official) / median(run.cpu_s for run in self.ours)

    @property
    def wall_ratio(self) -> float:
        return median(run.merge_wall_s for run in self.official) / median(run.wall_s for run in self.ours)

    @property
    def cpu_over_cp(self) -> float:
        return median(run.cpu_s for run in self.ours) / median(run.cpu_s for run in self.cp)

    @property
    def user_cpu_ratio(self) -> float | None:
        """`None` where the runs were too short to measure: the system counts the time of a process exactly,
        but tells the user's part of it from the system's by samples, so that it can be 0."""
        official_s, ours_s = _user_cpu_s(self.official), _user_cpu_s(self.ours)
        return official_s / ours_s if official_s > 0 and ours_s > 0 else None

    def targets(self) -> list[Target]:
        """What this part must reach."""
        peak = max(run.peak_memory_bytes for run in self.ours)
        targets = [
            Target("bytes per CPU second over official", self.cpu_ratio, self.case.min_cpu_ratio, True),
            Target("peak memory of a task in MB", peak / 1e6, MAX_PEAK_MEMORY_BYTES / 1e6, False),
        ]
        if self.case.max_cp_ratio is not None:
            targets.append(Target("CPU over cp", self.cpu_over_cp, self.case.max_cp_ratio, False))
        return targets

    def to_json(self) -> dict[str, object]:
        """Medians, ratios, targets and every sample."""
        input_bytes = self.official[0].input_bytes
        return {
            "case": asdict(self.case),
            "input_bytes": input_bytes,
            "is_large_enough": input_bytes >= MIN_INPUT_BYTES,
            "output_bytes": {"official": self.official[0].output_bytes, "lithify": self.ours[0].output_bytes},
            "rows_in": self.ours[0].rows_in,
            "rows_out": self.ours[0].rows_out,
            "cp": _medians(self.cp),
            "official_one_subcompaction": _medians(self.official),
            "lithify_one_core": _medians(self.ours),
            "ratios": {
                "bytes_per_cpu_second": self.cpu_ratio,
                "bytes_per_wall_second": self.wall_ratio,
                "cpu_over_cp": self.cpu_over_cp,
                "bytes_per_user_cpu_second": self.user_cpu_ratio,
            },
            "targets": [target.to_json() for target in self.targets()],
        }


@dataclass(frozen=True, slots=True)
class EndToEndSamples:
    """All repetitions of the end-to-end part of a case."""

    case: Case
    official: Sequence[OfficialRun]
    ours: Sequence[EndToEndRun]

    @property
    def wall_ratio(self) -> float:
        return median(run.whole_wall_s for run in self.official) / median(run.wall_s for run in self.ours)

    def targets(self) -> list[Target]:
        """What this part must reach."""
        assert self.case.min_wall_ratio is not None
        peak = max(run.peak_memory_bytes for run in self.ours)
        return [
            Target("end-to-end throughput over official", self.wall_ratio, self.case.min_wall_ratio, True),
            Target("peak memory of a Spark task in MB", peak / 1e6, MAX_PEAK_MEMORY_BYTES / 1e6, False),
        ]

    def to_json(self) -> dict[str, object]:
        """Medians, ratios, targets and every sample."""
        merge_only = median(run.merge_wall_s for run in self.official)
        return {
            "case": asdict(self.case),
            "input_bytes": self.official[0].input_bytes,
            "official_four_subcompactions": _medians(self.official),
            "lithify_local_2": _medians(self.ours),
            "ratios": {
                "bytes_per_wall_second": self.wall_ratio,
                "bytes_per_wall_second_of_official_merge_alone": merge_only
                / median(run.wall_s for run in self.ours),
            },
            "targets": [target.to_json() for target in self.targets()],
        }


def middle(runs: Sequence[RunT], wall_s: Callable[[RunT], float]) -> RunT:
    """The run that took neither the least nor the most time."""
    return sorted(runs, key=wall_s)[len(runs) // 2]


def document(
    kernel: Sequence[KernelSamples], end_to_end: Sequence[EndToEndSamples], repetitions: int, scale: float
) -> dict[str, object]:
    """Everything, for `bench.json`."""
    return {
        "machine": _machine(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "repetitions": repetitions,
        "scale": scale,
        "kernel": [samples.to_json() for samples in kernel],
        "end_to_end": [samples.to_json() for samples in end_to_end],
        "all_targets_met": all(target.is_met for _, target in _all_targets(kernel, end_to_end)),
    }


def print_tables(
    console: Console, kernel: Sequence[KernelSamples], end_to_end: Sequence[EndToEndSamples]
) -> None:
    """The medians and every target with its verdict."""
    table = Table(title="One core, one merge of eight overlapping L0s (medians)")
    for column in (
        "data",
        "MB in",
        "cp CPU s",
        "official CPU s",
        "Lithify CPU s",
        "MB/CPU s",
        "× CPU",
        "× wall",
    ):
        table.add_column(column, justify="left" if column == "data" else "right", no_wrap=column == "data")
    for samples in kernel:
        megabytes, cpu_s = samples.official[0].input_bytes / 1e6, median(run.cpu_s for run in samples.ours)
        table.add_row(
            samples.case.name,
            f"{megabytes:.0f}",
            f"{median(run.cpu_s for run in samples.cp):.3f}",
            f"{median(run.cpu_s for run in samples.official):.2f}",
            f"{cpu_s:.3f}",
            f"{megabytes / cpu_s:.0f}",
            f"{samples.cpu_ratio:.1f}",
            f"{samples.wall_ratio:.1f}",
        )
    console.print(table)
    for whole in end_to_end:
        official_s = median(run.whole_wall_s for run in whole.official)
        ours_s = median(run.wall_s for run in whole.ours)
        start_s = median(run.session_start_s for run in whole.ours)
        console.print(
            f"{whole.case.name} end to end: official {official_s:.2f} s, Lithify on local[2] {ours_s:.2f} s "
            f"after a session start of {start_s:.1f} s",
            highlight=False,
        )
    for name, target in _all_targets(kernel, end_to_end):
        colour = "green" if target.is_met else "red"
        console.print(f"[{colour}]{name}: {target}[/]", highlight=False)


def _all_targets(
    kernel: Sequence[KernelSamples], end_to_end: Sequence[EndToEndSamples]
) -> list[tuple[str, Target]]:
    return [
        *((samples.case.name, target) for samples in kernel for target in samples.targets()),
        *((samples.case.name, target) for samples in end_to_end for target in samples.targets()),
    ]


def _user_cpu_s(runs: Sequence[OfficialRun] | Sequence[KernelRun]) -> float:
    return median(run.cpu_s - run.system_cpu_s for run in runs)


def _medians(runs: Sequence[Any]) -> dict[str, object]:
    samples = [asdict(run) for run in runs]
    return {"median": {name: median(s[name] for s in samples) for name in samples[0]}, "samples": samples}


def _machine() -> dict[str, object]:
    return {
        "processor": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_at_the_end": os.getloadavg(),
    }


def _cpu_model() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")

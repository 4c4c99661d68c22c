"""The service part of `make bench`: repeat, say what must be reached.

Throughput is that of all repetitions together, as if they were one long run: the speed of a machine drifts
over minutes, and in a median of a few the two sides would come from different minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from benchmarks.idle import ClaimCost, IdleCost, measure_claims, measure_idle
from benchmarks.report import Target
from benchmarks.service import Scaling, ServiceRun, measure_service

MIN_SPEED_UP = 1.8


@dataclass(frozen=True, slots=True)
class ServiceSamples:
    """All repetitions of what takes time; what is counted needs no repetition."""

    runs: Sequence[ServiceRun]
    idle: Sequence[IdleCost]
    claims: ClaimCost

    def targets(self) -> list[Target]:
        """What this part must reach."""
        return [
            Target(f"{name}: throughput of two workers over one", self.speed_up(name), MIN_SPEED_UP, True)
            for name in _scalings(self.runs[0])
        ]

    def speed_up(self, name: str) -> float:
        """The time that one worker took for all repetitions over that of two."""
        samples = self._samples(name)
        return sum(s.one_wall_s for s in samples) / sum(s.two_wall_s for s in samples)

    def to_json(self) -> dict[str, object]:
        """Everything, with the verdicts."""
        return {
            "scaling": {
                name: {
                    "speed_up": self.speed_up(name),
                    "samples": [asdict(sample) for sample in self._samples(name)],
                }
                for name in _scalings(self.runs[0])
            },
            "drain_of_one_l0_compaction": [asdict(drain) for run in self.runs for drain in run.drains],
            "idle_requests_per_minute": [asdict(cost) for cost in self.idle],
            "claims": asdict(self.claims) | {"lost_per_claim": self.claims.lost_per_claim},
            "targets": [target.to_json() for target in self.targets()],
        }

    def _samples(self, name: str) -> list[Scaling]:
        return [_scalings(run)[name] for run in self.runs]

    def print_tables(self, console: Console) -> None:
        """The means and medians, the counts, and every target with its verdict."""
        scaling = Table(title="One and two workers of one core each (means)")
        for column in ("work", "MB in", "1 worker s", "2 workers s", "speed-up", "without service"):
            scaling.add_column(column, justify="left" if column == "work" else "right")
        for name, first in _scalings(self.runs[0]).items():
            samples = self._samples(name)
            scaling.add_row(
                name,
                f"{first.input_bytes / 1e6:.0f}",
                f"{fmean(s.one_wall_s for s in samples):.2f}",
                f"{fmean(s.two_wall_s for s in samples):.2f}",
                f"{self.speed_up(name):.2f}",
                f"{fmean(s.bare_speed_up for s in samples):.2f}",
            )
        console.print(scaling)
        for number, drain in enumerate(self.runs[0].drains):
            samples_of = [run.drains[number] for run in self.runs]
            official_s = median(d.official_wall_s for d in samples_of)
            ours_s = median(d.lithify_wall_s for d in samples_of)
            console.print(
                f"One L0 compaction of {drain.input_bytes / 1e6:.1f} MB, submitted to committed: official "
                f"{official_s:.2f} s, Lithify {ours_s:.2f} s",
                highlight=False,
            )
        for cost in self.idle:
            counts = ", ".join(f"{count:.0f} {verb}" for verb, count in cost.requests_per_minute.items())
            console.print(
                f"An idle database with {cost.workers} workers: {cost.total_per_minute:.0f} requests a "
                f"minute ({counts})",
                highlight=False,
            )
        console.print(
            f"{self.claims.workers} workers: {self.claims.lost_per_claim:.1f} lost claims for each claim",
            highlight=False,
        )
        for target in self.targets():
            console.print(f"[{'green' if target.is_met else 'red'}]service: {target}[/]", highlight=False)


def measure(cache: Path, scale: float, repetitions: int, console: Console) -> ServiceSamples:
    """Measure everything."""
    runs = []
    for repetition in range(repetitions):
        console.print(f"service {repetition + 1}/{repetitions} …", highlight=False)
        runs.append(measure_service(cache, scale))
    return ServiceSamples(runs, measure_idle(), measure_claims())


def _scalings(run: ServiceRun) -> dict[str, Scaling]:
    return {scaling.name: scaling for scaling in run.scalings}

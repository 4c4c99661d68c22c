"""The simulator as a command.

    python -m simulator --seeds 1..10000 --jobs 2
    python -m simulator --seed 4711 --trace
    python -m simulator --world several --seeds 1..10000 --jobs 2
    python -m simulator --world history --seeds 1..10000 --jobs 2
    python -m simulator --world groups --seeds 1..10000 --jobs 2
    python -m simulator --world fleet --seeds 1..10000 --jobs 2

Exit code 0: no violation; 1: at least one, each with the command that replays it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulator import coverage, fleet, groups, history, several
from simulator.core.outcome import Outcome
from simulator.fleet import coverage as fleet_coverage
from simulator.groups import coverage as groups_coverage
from simulator.history import coverage as history_coverage
from simulator.several import coverage as several_coverage
from simulator.simulate import simulate

DEFAULT_SEEDS = 300
_SEEDS_PER_CALL = 20
_SEEDS_PER_LINE = 500


@dataclass(frozen=True, slots=True)
class World:
    """What a seed is played in."""

    simulate: Callable[..., Outcome]
    expected: Sequence[str]
    """What must happen in many seeds."""


DATABASE, SEVERAL, HISTORY, GROUPS, FLEET = "database", "several", "history", "groups", "fleet"
WORLDS = {
    DATABASE: World(simulate, coverage.EXPECTED),
    SEVERAL: World(several.simulate, several_coverage.EXPECTED),
    HISTORY: World(history.simulate, history_coverage.EXPECTED),
    GROUPS: World(groups.simulate, groups_coverage.EXPECTED),
    FLEET: World(fleet.simulate, fleet_coverage.EXPECTED),
}


@dataclass(slots=True)
class Summary:
    """What came of many seeds."""

    world: str = DATABASE
    seeds: int = 0
    virtual_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.virtual_ms += outcome.virtual_ms
        self.counts.update(outcome.counts)
        if outcome.violation is not None:
            self.violations.append(outcome)

    def never_happened(self) -> list[str]:
        """What is expected in many seeds, and is not in these."""
        return [name for name in WORLDS[self.world].expected if not self.counts[name]]

    def document(self, elapsed_s: float) -> dict[str, Any]:
        """For programs."""
        return {
            "seeds": self.seeds,
            "elapsed_s": round(elapsed_s, 3),
            "virtual_s": self.virtual_ms / 1000,
            "violations": [
                {
                    "seed": outcome.seed,
                    "rule": outcome.violation.rule,
                    "text": outcome.violation.text,
                    "replay": replay_command(outcome.seed, self.world),
                }
                for outcome in self.violations
                if outcome.violation is not None
            ],
            "never_happened": self.never_happened(),
            "counts": dict(sorted(self.counts.items())),
        }


def replay_command(seed: int, world: str = DATABASE) -> str:
    """What plays a seed again and tells everything that happens."""
    where = "" if world == DATABASE else f" --world {world}"
    return f"python -m simulator{where} --seed {seed} --trace"


def outcomes(seeds: Sequence[int], jobs: int, world: str = DATABASE) -> Iterator[Outcome]:
    """Play seeds, in this process or in several; in no particular order of time, in order of seeds."""
    play = WORLDS[world].simulate
    if jobs == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, seeds, chunksize=_SEEDS_PER_CALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit code."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed, options.world, trace=options.trace, as_json=options.json)
    return _run(options.seeds, options.jobs, options.world, as_json=options.json)


def _replay(seed: int, world: str, *, trace: bool, as_json: bool) -> int:
    summary = Summary(world)
    started_s = time.monotonic()
    summary.add(WORLDS[world].simulate(seed, trace=print if trace else None))
    return _finish(summary, time.monotonic() - started_s, as_json=as_json)


def _run(seeds: range, jobs: int, world: str, *, as_json: bool) -> int:
    summary = Summary(world)
    started_s = time.monotonic()
    console = Console(stderr=True)
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in outcomes(seeds, jobs, world):
            summary.add(outcome)
            if outcome.violation is not None:
                _report(console, world, [outcome])
            progress.advance(task)
            if not console.is_terminal and summary.seeds % _SEEDS_PER_LINE == 0:
                console.print(f"{summary.seeds} of {len(seeds)} seeds")
    return _finish(summary, time.monotonic() - started_s, as_json=as_json)


def _finish(summary: Summary, elapsed_s: float, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(summary.document(elapsed_s), indent=2))
    else:
        _print_counts(summary.counts)
        print(
            f"{summary.seeds} seeds, {summary.virtual_ms / 3_600_000:.1f} virtual hours, {elapsed_s:.0f} s: "
            f"{len(summary.violations)} violations"
        )
        _report(Console(), summary.world, summary.violations)
    return 1 if summary.violations else 0


def _print_counts(counts: Counter[str]) -> None:
    width = max(map(len, counts), default=0)
    for name, count in sorted(counts.items()):
        print(f"{name:<{width}}  {count:>9}")


def _report(console: Console, world: str, violations: Iterable[Outcome]) -> None:
    for outcome in violations:
        console.print(f"seed {outcome.seed}: {outcome.violation}", markup=False, highlight=False)
        console.print(f"  replay: {replay_command(outcome.seed, world)}", markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator", description="Play seeds of the simulator.")
    parser.add_argument("--world", choices=sorted(WORLDS), default=DATABASE, help="what is played")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play this one seed")
    which.add_argument(
        "--seeds", type=_range, default=range(1, DEFAULT_SEEDS + 1), help="play these, for example 1..300"
    )
    parser.add_argument("--jobs", type=_positive, default=1, help="processes that play seeds")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything that happens")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 1..300") from error
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed")
    return seeds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

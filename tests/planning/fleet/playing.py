"""Plays seeds of the world of a fleet.

    python -m tests.planning.fleet.playing [--seeds N] [--jobs N]

Exit code 0: no violation; 1: at least one.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from simulator.core.outcome import Outcome, Violation

from tests.planning.fleet.world import World


def simulate(seed: int) -> Outcome:
    """What comes of a seed."""
    world, violation = World(seed), None
    try:
        world.play()
    except Violation as found:
        violation = found
    return Outcome(seed, violation, world.counts, world.now_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    violations = 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        for outcome in pool.map(simulate, range(asked.seeds), chunksize=20):
            if outcome.violation is not None:
                violations += 1
                print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
    print(f"{asked.seeds} seeds of the rules of a fleet: {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

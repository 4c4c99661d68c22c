"""All mutants of the world of a table's history: which seed notices each, and what that costs.

    python -m tests.testing.simulation.matrix [--cheapest N] [PART OF A NAME...]

Each must be noticed within `MUTANT_SEEDS` seeds, by one of the rules that are to notice it; the exit code is
1 where one is not. With `--cheapest`, N seeds that notice it are looked for, and the one of them is told that
costs the least: that is what `first_seed` of a mutant is for.
"""

from __future__ import annotations

import argparse
import sys
import time

from lithify.testing.simulation.history import simulate
from tests.testing.simulation.history_mutants import MUTANTS
from tests.testing.simulation.mutants import Mutant

FIRST_SEED = 5_000
MUTANT_SEEDS = 300


def search(mutant: Mutant, wanted: int) -> list[tuple[float, int, str]]:
    """The seconds of processor time that seeds took that notice the mutant, the seeds and the rules."""
    found: list[tuple[float, int, str]] = []
    with mutant.applied():
        for seed in range(FIRST_SEED, FIRST_SEED + MUTANT_SEEDS):
            began_s = time.process_time()
            violation = simulate(seed).violation
            if violation is not None:
                found.append((time.process_time() - began_s, seed, violation.rule))
            if len(found) == wanted:
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cheapest", type=int, default=1, metavar="N")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if asked.names and not any(name in mutant.name for name in asked.names):
            continue
        found = search(mutant, asked.cheapest)
        wrong = sorted({rule for _, _, rule in found} - set(mutant.noticed_by))
        missed += not found or bool(wrong)
        told = "NOTICED BY NO SEED"
        if found:
            cost_s, seed, rule = min(found)
            told = f"seed {seed} in {cost_s:.2f} s, first {min(s for _, s, _ in found)}: {rule}"
        if wrong:
            told += f"; WRONG RULES: {', '.join(wrong)}"
        print(f"{mutant.name}: {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""All mutants of all worlds: which seed notices each, and what that costs.

    python -m tests.simulator.matrix [--world WORLD] [--cheapest N] [--longest SECONDS]
        [PART OF A NAME...]

Each must be noticed within `MUTANT_SEEDS` seeds from the same one on, by one of the rules that are to notice
it; the exit code is 1 where one is not. With `--cheapest`, N seeds that notice it are looked for, for so long
at most once there is one, and the one of them is told that costs the least: that is what `first_seed` of a
mutant is for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from simulator.__main__ import DATABASE, FLEET, GROUPS, HISTORY, SEVERAL
from simulator.core.outcome import Outcome

from simulator import fleet, groups, history, several, simulate
from tests.simulator import fleet_mutants, groups_mutants, history_mutants, mutants, several_mutants
from tests.simulator.mutants import FIRST_SEED, Mutant
from tests.simulator.playing import MUTANT_SEEDS

Simulate = Callable[[int], Outcome]
WORLDS: Mapping[str, tuple[Sequence[Mutant], Simulate, int]] = {
    DATABASE: (mutants.MUTANTS, simulate, FIRST_SEED),
    SEVERAL: (several_mutants.MUTANTS, several.simulate, FIRST_SEED),
    HISTORY: (history_mutants.MUTANTS, history.simulate, FIRST_SEED),
    GROUPS: (groups_mutants.MUTANTS, groups.simulate, FIRST_SEED),
    FLEET: (fleet_mutants.MUTANTS, fleet.simulate, FIRST_SEED),
}


def search(
    mutant: Mutant, play: Simulate, first_seed: int, wanted: int, longest_s: float
) -> list[tuple[float, int, str]]:
    """The seconds of processor time that seeds took that notice the mutant, the seeds and the rules."""
    found: list[tuple[float, int, str]] = []
    with mutant.applied():
        started_s = time.process_time()
        for seed in range(first_seed, first_seed + MUTANT_SEEDS):
            began_s = time.process_time()
            violation = play(seed).violation
            now_s = time.process_time()
            if violation is not None:
                found.append((now_s - began_s, seed, violation.rule))
            if len(found) == wanted or (found and now_s - started_s > longest_s):
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--world", choices=WORLDS, action="append", help="default: all")
    parser.add_argument("--cheapest", type=int, default=1, metavar="N")
    parser.add_argument("--longest", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    missed = 0
    for world in asked.world or WORLDS:
        all_of_it, play, first_seed = WORLDS[world]
        for mutant in all_of_it:
            if asked.names and not any(name in mutant.name for name in asked.names):
                continue
            found = search(mutant, play, first_seed, asked.cheapest, asked.longest)
            wrong = sorted({rule for _, _, rule in found} - set(mutant.noticed_by))
            missed += not found or bool(wrong)
            told = "NOTICED BY NO SEED"
            if found:
                cost_s, seed, rule = min(found)
                first, now = min(n for _, n, _ in found), mutant.first_seed
                told = f"seed {seed} in {cost_s:.2f} s, first {first}, tests begin at {now}: {rule}"
            if wrong:
                told += f"; WRONG RULES: {', '.join(wrong)}"
            print(f"{world}: {mutant.name}: {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

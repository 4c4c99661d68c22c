"""`make injections`, or `python -m tests.injections`: many cases of each world.

    python -m tests.injections --cases 10000 --seed 1 --jobs 2
    python -m tests.injections --world tables --seed 1 --case 4711

Exit code 0 when every case ended as it must; 1 otherwise, each with the command that plays it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.injections.judging import Verdict, play
from tests.injections.trap import Trap
from tests.injections.worlds import WORLDS, made

DEFAULT_CASES = 10_000
_CASES_PER_CALL = 25
_CASES_PER_LINE = 500


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.injections", description=__doc__.split("\n")[0])
    parser.add_argument("--world", choices=sorted(WORLDS), action="append", help="default: all")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="in all")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="play one case again and show it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(argv)
    names = options.world or sorted(WORLDS)
    each = -(-options.cases // len(names))
    cases = range(options.first, options.first + each)
    if options.case is not None:
        cases = range(options.case, options.case + 1)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lithify-injections-") as folder:
        for name in names:
            failed += _play_world(name, Path(folder), options.seed, cases, options.jobs)
    return 1 if failed else 0


def _play_world(name: str, folder: Path, seed: int, cases: range, jobs: int) -> int:
    began_s, failed, ends = time.monotonic(), 0, Counter[str]()
    for number, verdict in enumerate(_verdicts(name, folder, seed, cases, jobs), 1):
        ends[f"{verdict.command.split()[0]} {verdict.exit_code}"] += 1
        if verdict.problems or len(cases) == 1:
            failed += bool(verdict.problems)
            print(f"case {verdict.case}: {verdict.command} with {verdict.kind} in {verdict.where}")
            for problem in verdict.problems:
                print(f"  {problem[:3000]!r}")
            print(f"  again: python -m tests.injections --world {name} --seed {seed} --case {verdict.case}")
        if number % _CASES_PER_LINE == 0:
            print(f"{name}: {number} cases, {failed} failed, {time.monotonic() - began_s:.0f} s", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{name}: {len(cases)} cases in {took_s:.0f} s: {failed} failed; {dict(sorted(ends.items()))}")
    return failed


def _verdicts(name: str, folder: Path, seed: int, cases: range, jobs: int) -> Iterator[Verdict]:
    calls = [
        (name, folder, seed, cases[i : i + _CASES_PER_CALL]) for i in range(0, len(cases), _CASES_PER_CALL)
    ]
    if jobs == 1:
        for call in calls:
            yield from _play_part(call)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_play_part, calls):
            yield from found


def _play_part(call: tuple[str, Path, int, range]) -> list[Verdict]:
    name, folder, seed, cases = call
    place = folder / f"{name}-{os.getpid()}"
    prepared = place.with_suffix(".prepared")
    if not prepared.exists():
        made(WORLDS[name], prepared, place)
    number = len(list(folder.glob(f"{place.name}.trap-*")))
    with Trap(place.with_suffix(f".trap-{number}")) as trap:
        return [play(WORLDS[name], prepared, place, trap, seed, case) for case in cases]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

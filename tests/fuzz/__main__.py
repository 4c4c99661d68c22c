"""`make fuzz`, or `python -m tests.fuzz`: many damaged datasets through the commands.

    python -m tests.fuzz --cases 10000 --seed 1 --jobs 2
    python -m tests.fuzz --family databases --seed 1 --case 4711

Exit code 0 when every case ended as it must; 1 otherwise, each with the command that plays it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.fuzz.databases import Databases
from tests.fuzz.family import Family, Verdict
from tests.fuzz.judging import MAX_WALL_S
from tests.fuzz.playing import Summary, play, prepare
from tests.fuzz.tables import Tables

FAMILIES: dict[str, Family] = {family.name: family for family in (Databases(), Tables())}
DEFAULT_CASES = 10_000
_CASES_PER_CALL = 25
_CASES_PER_LINE = 500


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append", help="default: all")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="of each family")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--case", type=int, help="play one case again and show it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where datasets are made; default: a temporary one")
    options = parser.parse_args(argv)
    cases = (
        range(options.first, options.first + options.cases)
        if options.case is None
        else range(options.case, options.case + 1)
    )
    with tempfile.TemporaryDirectory(prefix="lithify-fuzz-") as temporary:
        folder = options.folder if options.folder is not None else Path(temporary)
        failed = 0
        for name in options.family or sorted(FAMILIES):
            failed += _play_family(name, folder, options.seed, cases, options.jobs, options.case is not None)
    return 1 if failed else 0


def _play_family(name: str, folder: Path, seed: int, cases: range, jobs: int, verbose: bool) -> int:
    console, summary, began_s = Console(), Summary(), time.monotonic()
    for verdict in _verdicts(name, folder, seed, cases, jobs):
        summary.add(verdict)
        if verbose:
            console.print(f"{verdict}", markup=False)
        elif verdict.problems:
            _show(console, name, seed, verdict)
        if summary.cases % _CASES_PER_LINE == 0:
            took_s = time.monotonic() - began_s
            console.print(f"{name}: {summary.cases} cases, {len(summary.failed)} failed, {took_s:.0f} s")
    _show_summary(console, name, seed, summary, time.monotonic() - began_s)
    return len(summary.failed)


def _verdicts(name: str, folder: Path, seed: int, cases: range, jobs: int) -> Iterator[Verdict]:
    parts = [cases[i : i + _CASES_PER_CALL] for i in range(0, len(cases), _CASES_PER_CALL)]
    calls = [(name, folder, seed, part) for part in parts]
    if jobs == 1:
        for call in calls:
            yield from _play_part(call)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_play_part, calls):
            yield from found


def _play_part(call: tuple[str, Path, int, range]) -> list[Verdict]:
    name, folder, seed, cases = call
    place = folder / name / f"{os.getpid()}"
    prepared = place.with_suffix(".prepared")
    if not prepared.exists():
        prepare(FAMILIES[name], prepared, place)
    found = []
    for case in cases:
        # The last resort against compiled code that never comes back.
        faulthandler.dump_traceback_later(2 * MAX_WALL_S, exit=True)
        found.append(play(FAMILIES[name], prepared, place, seed, case))
        faulthandler.cancel_dump_traceback_later()
    return found


def _show(console: Console, name: str, seed: int, verdict: Verdict) -> None:
    console.print(f"[red]case {verdict.case}[/]: {escape(verdict.command)} of {escape(verdict.what)}")
    for problem in verdict.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    if verdict.said:
        console.print(f"  it said: {verdict.said}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"  again: python -m tests.fuzz --family {name} --seed {seed} --case {verdict.case}", highlight=False
    )


def _show_summary(console: Console, name: str, seed: int, summary: Summary, took_s: float) -> None:
    codes = sorted({code for _, code in summary.ends}, key=str)
    table = Table(title=f"{name}, seed {seed}: ends by exit code", title_justify="left")
    for heading in ("command", *("none" if code is None else str(code) for code in codes)):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for command in sorted({command for command, _ in summary.ends}):
        table.add_row(command, *(str(summary.ends[command, code] or "–") for code in codes))
    console.print(table)
    for what, verdict in (("slowest", summary.slowest), ("largest", summary.largest)):
        if verdict is not None:
            console.print(
                f"{what}: case {verdict.case}, {verdict.command}: {verdict.cpu_s:.2f} s of the processor, "
                f"{verdict.memory_bytes / 1e6:.0f} MB",
                highlight=False,
            )
    console.print(f"{summary.cases} cases in {took_s:.0f} s: {len(summary.failed)} failed", highlight=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

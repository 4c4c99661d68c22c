"""One case, and many.

A case is a number. With the name of the family and a seed it makes everything that chance decides: which
sound dataset is copied, how it is damaged, which command meets it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.family import SOUND, Family, Verdict
from tests.fuzz.judging import judge

_DATASET = "damaged"


def prepare(family: Family, prepared: Path, folder: Path) -> None:
    """Make the sound datasets in `prepared`, for cases that are played in `folder`."""
    prepared.mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    family.prepare(prepared, folder / _DATASET)


def play(family: Family, prepared: Path, folder: Path, seed: int, case: int) -> Verdict:
    """Play one case in `folder`, which it empties first."""
    rng = random.Random(f"{family.name} {seed} {case}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    damaged = family.damage(prepared, folder / _DATASET, rng)
    command = rng.choices(family.commands, [command.weight for command in family.commands])[0]
    arguments = list(command.arguments(damaged, rng))
    if command.helps:
        arguments.append(family.add_sound(prepared, folder / SOUND))
    return judge(family, damaged, command, [*arguments, *damaged.options], folder / SOUND, case)


@dataclass(slots=True)
class Summary:
    """What came of many cases."""

    cases: int = 0
    ends: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """By command and exit code."""
    slowest: Verdict | None = None
    largest: Verdict | None = None
    failed: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.cases += 1
        self.ends[verdict.command, verdict.exit_code] += 1
        if self.slowest is None or verdict.cpu_s > self.slowest.cpu_s:
            self.slowest = verdict
        if self.largest is None or verdict.memory_bytes > self.largest.memory_bytes:
            self.largest = verdict
        if verdict.problems:
            self.failed.append(verdict)

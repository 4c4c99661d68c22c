"""Seeds played for tests of any world."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest
from simulator.__main__ import replay_command
from simulator.core.outcome import Outcome

from tests.simulator.mutants import Mutant

MUTANT_SEEDS = 300
"""Each mutant must be noticed within these."""


def each(mutants: Iterable[Mutant]) -> pytest.MarkDecorator:
    """Give a test each `mutant`; those that take long only in `make whole`."""
    marks = {True: (pytest.mark.whole,), False: ()}
    return pytest.mark.parametrize(
        "mutant", [pytest.param(one, marks=marks[one.is_long], id=str(one)) for one in mutants]
    )


def assert_noticed(mutant: Mutant, simulate: Callable[[int], Outcome]) -> None:
    """One of its seeds violates one of the rules that are to notice the mutant, and none another before."""
    seeds = range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS)
    with mutant.applied():
        found = next((o.violation for o in map(simulate, seeds) if o.violation is not None), None)
    assert found is not None
    assert found.rule in mutant.noticed_by


def trace_of(seed: int, world: str, *, hash_seed: str) -> str:
    """The trace of a seed, played by a process of its own with this seed of hashes."""
    command = [sys.executable, *replay_command(seed, world).split()[1:]]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return result.stdout.rpartition("1 seeds")[0]

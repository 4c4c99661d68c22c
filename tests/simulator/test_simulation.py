"""The simulator finds nothing in Lithify as it is, and every rule that is broken on purpose."""

from __future__ import annotations

import json

import pytest
from simulator.__main__ import DATABASE, Summary, main, outcomes, replay_command
from simulator.scenario import Faults
from simulator.world import World

from simulator import rules, simulate
from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.playing import assert_noticed, each, trace_of

pytestmark = pytest.mark.timeout(900)  # many seeds, on whatever else the machine does

SEEDS = (*range(1, 41), 56, 67, 73, 113, 116, 131, 145, 157, 181, 363)
"""With the last ones every fault is played. `make simulate` plays many more."""


@pytest.fixture(scope="module")
def summary() -> Summary:
    found = Summary()
    for outcome in outcomes(SEEDS, jobs=2):
        found.add(outcome)
    return found


def test_no_seed_violates_an_invariant(summary: Summary) -> None:
    assert [(o.violation, replay_command(o.seed)) for o in summary.violations] == []


def test_every_fault_and_every_step_was_played(summary: Summary) -> None:
    assert summary.never_happened() == []


@each(MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    assert_noticed(mutant, simulate)


def test_every_invariant_has_a_mutant() -> None:
    """One that only this invariant notices."""
    assert {m.noticed_by[0] for m in MUTANTS if len(m.noticed_by) == 1} == set(rules.ALL)


def test_when_nothing_goes_wrong_no_work_is_done_twice() -> None:
    scenarios = {seed: World(seed).scenario for seed in range(1, 201)}
    calm = [seed for seed, s in scenarios.items() if s.faults == Faults() and not s.meddling]
    assert len(calm) >= 8
    counts = Summary()
    for seed in calm[:8]:
        counts.add(simulate(seed))
    assert not counts.violations
    for what in ("Reclaimed", "Lost", "AttemptFailed", "Failed"):
        assert counts.counts[f"event: {what}"] == 0


def test_a_seed_plays_the_same_run_in_every_process() -> None:
    first = trace_of(44, DATABASE, hash_seed="1")
    assert first == trace_of(44, DATABASE, hash_seed="2")
    assert first.count("\n") > 1_000


def test_a_violation_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(m for m in MUTANTS if m.noticed_by == (rules.CLEAN,))
    with mutant.applied():
        assert main(["--seeds", "5000..5001"]) == 1
        text = capsys.readouterr().out
        assert main(["--seed", "5000", "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
    assert "python -m simulator --seed 5000 --trace" in text
    (violation,) = document["violations"]
    assert violation["seed"] == 5000
    assert violation["rule"] == rules.CLEAN


@pytest.mark.parametrize("arguments", [["--seeds", "3..1"], ["--seeds", "x"], ["--jobs", "0"]])
def test_bad_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "error" in capsys.readouterr().err

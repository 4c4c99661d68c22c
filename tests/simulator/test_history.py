"""Nobody ever finds gone what was promised to him, and every rule that is broken on purpose is noticed."""

from __future__ import annotations

import json

import pytest
from simulator.__main__ import HISTORY, Summary, main, outcomes, replay_command
from simulator.history import rules, simulate

from tests.simulator.history_mutants import MUTANTS
from tests.simulator.mutants import Mutant
from tests.simulator.playing import assert_noticed, each, trace_of

pytestmark = pytest.mark.timeout(900)  # many seeds, on whatever else the machine does

SEEDS = range(1, 33)


@pytest.fixture(scope="module")
def summary() -> Summary:
    found = Summary(HISTORY)
    for outcome in outcomes(SEEDS, jobs=2, world=HISTORY):
        found.add(outcome)
    return found


def test_no_seed_violates_an_invariant(summary: Summary) -> None:
    assert [(o.violation, replay_command(o.seed, HISTORY)) for o in summary.violations] == []


def test_every_trouble_was_played(summary: Summary) -> None:
    assert summary.never_happened() == []


@each(MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    assert_noticed(mutant, simulate)


def test_every_invariant_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.noticed_by} == set(rules.ALL)


@pytest.mark.whole
def test_a_seed_plays_the_same_run_in_every_process() -> None:
    first = trace_of(7, HISTORY, hash_seed="1")
    assert first == trace_of(7, HISTORY, hash_seed="2")
    assert first.count("\n") > 100


def test_a_violation_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(m for m in MUTANTS if m.noticed_by == (rules.POLICY,))
    with mutant.applied():
        assert main(["--world", HISTORY, "--seeds", "5000..5010", "--json"]) == 1
    violation = json.loads(capsys.readouterr().out)["violations"][0]
    seed = violation["seed"]
    assert violation["rule"] == rules.POLICY
    assert violation["replay"] == f"python -m simulator --world history --seed {seed} --trace"

"""Coordinators and workers do what they promise whatever goes wrong, and every rule that is broken on purpose
is noticed."""

from __future__ import annotations

import json

import pytest
from simulator.__main__ import FLEET, Summary, main, outcomes, replay_command
from simulator.fleet import rules, simulate

from tests.simulator.fleet_mutants import MUTANTS
from tests.simulator.mutants import Mutant
from tests.simulator.playing import assert_noticed, each, trace_of

pytestmark = pytest.mark.timeout(900)  # many seeds, on whatever else the machine does

SEEDS = range(1, 3)
"""Few, as each takes a second or two; `make simulate` plays the others. Which of what is to happen never did
(`fleet.coverage`), `--json` tells: nothing in thirty seeds."""


def test_no_seed_violates_an_invariant() -> None:
    summary = Summary(FLEET)
    for outcome in outcomes(SEEDS, jobs=1, world=FLEET):
        summary.add(outcome)
    assert [(o.violation, replay_command(o.seed, FLEET)) for o in summary.violations] == []
    assert summary.counts["event: Committed"] > 25


@each(MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    assert_noticed(mutant, simulate)


def test_every_invariant_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.noticed_by} == set(rules.ALL)


@pytest.mark.whole
@pytest.mark.parametrize("seed", [9, 24])
def test_a_seed_plays_the_same_run_in_every_process(seed: int) -> None:
    first = trace_of(seed, FLEET, hash_seed="1")
    assert first == trace_of(seed, FLEET, hash_seed="2")
    assert first.count("\n") > 100


def test_a_violation_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(m for m in MUTANTS if m.noticed_by == (rules.IDLE,))
    with mutant.applied():
        assert main(["--world", FLEET, "--seeds", "5000..5000", "--json"]) == 1
    violation = json.loads(capsys.readouterr().out)["violations"][0]
    assert violation["rule"] == rules.IDLE
    assert violation["replay"] == "python -m simulator --world fleet --seed 5000 --trace"

"""No copy and no reader of a group ever shows what is gone, and every rule that is broken on purpose is
noticed."""

from __future__ import annotations

import pytest
from simulator.__main__ import GROUPS, Summary, outcomes, replay_command
from simulator.groups import rules, simulate

from tests.simulator.groups_mutants import MUTANTS
from tests.simulator.mutants import Mutant
from tests.simulator.playing import assert_noticed, each, trace_of

pytestmark = pytest.mark.timeout(900)  # many seeds, on whatever else the machine does

SEEDS = range(1, 26)


@pytest.fixture(scope="module")
def summary() -> Summary:
    found = Summary(GROUPS)
    for outcome in outcomes(SEEDS, jobs=1, world=GROUPS):
        found.add(outcome)
    return found


def test_no_seed_violates_an_invariant(summary: Summary) -> None:
    assert [(o.violation, replay_command(o.seed, GROUPS)) for o in summary.violations] == []


def test_every_trouble_was_played(summary: Summary) -> None:
    assert summary.never_happened() == []


@each(MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    assert_noticed(mutant, simulate)


def test_every_invariant_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.noticed_by} == set(rules.ALL)


@pytest.mark.whole
def test_a_seed_plays_the_same_run_in_every_process() -> None:
    first = trace_of(7, GROUPS, hash_seed="1")
    assert first == trace_of(7, GROUPS, hash_seed="2")
    assert first.count("\n") > 100

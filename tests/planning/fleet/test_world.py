"""The rules of a fleet, played together: nothing is unfair, and every kind of unfairness that is made on
purpose is noticed."""

from __future__ import annotations

from collections import Counter

import pytest
from simulator.core.outcome import Outcome

from tests.planning.fleet import rules
from tests.planning.fleet.mutants import MUTANTS
from tests.planning.fleet.playing import simulate
from tests.simulator.mutants import Mutant
from tests.simulator.playing import assert_noticed

pytestmark = pytest.mark.timeout(900)  # many seeds, on whatever else the machine does

SEEDS = (*range(12), 15)
"""With the last one everything happens; `make simulate` plays many more."""


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [simulate(seed) for seed in SEEDS]


def test_no_seed_violates_a_rule(outcomes: list[Outcome]) -> None:
    assert [(outcome.seed, outcome.violation) for outcome in outcomes if outcome.violation] == []


def test_everything_happens(outcomes: list[Outcome]) -> None:
    counts = Counter[str]()
    for outcome in outcomes:
        counts.update(outcome.counts)
    happened = ("admitted", "claimed", "lost", "failed", "recalled", "hints judged")
    blamed = ("blamed: WORK", "blamed: WORKER")
    looked = ("looked: NUMBERS", "looked: BOUNDARY", "looked: LISTING")
    assert [what for what in (*happened, *blamed, *looked) if not counts[what]] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_unfairness_is_noticed(mutant: Mutant) -> None:
    assert_noticed(mutant, simulate)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.noticed_by} == set(rules.ALL)


def test_a_seed_plays_the_same_every_time() -> None:
    first, second = simulate(3), simulate(3)
    assert (first.counts, first.virtual_ms) == (second.counts, second.virtual_ms)

"""The policy, as a function: when a failed request is made again."""

from __future__ import annotations

import math
import random

import pytest

from lithify.store.resilience.retries import RequestFailure, RetryPolicy


def pauses(policy: RetryPolicy, seed: int, tries: int = 40) -> list[float]:
    """Of that many failures in a row, each of which took no time."""
    rng, waited_s, found = random.Random(seed), 0.0, []
    for n in range(1, tries + 1):
        pause_s = policy.pause_s(n, waited_s, RequestFailure.PASSING, rng)
        if pause_s is None:
            break
        found.append(pause_s)
        waited_s += pause_s
    return found


def test_what_the_store_has_decided_is_not_asked_again() -> None:
    assert RetryPolicy(math.inf).pause_s(1, 0.0, RequestFailure.LASTING, random.Random(1)) is None


def test_pauses_double_up_to_a_bound_and_are_drawn_from_zero_to_that() -> None:
    samples = [pauses(RetryPolicy(math.inf), seed) for seed in range(200)]
    for n in range(40):
        longest = min(0.001 * 2**n, 5.0)
        drawn = [sample[n] for sample in samples]
        assert max(drawn) <= longest
        assert min(drawn) < 0.1 * longest < 0.9 * longest < max(drawn)


def test_it_ends_when_the_time_is_over_and_not_before() -> None:
    for seed in range(50):
        found = pauses(RetryPolicy(300.0), seed, tries=10_000)
        assert sum(found) == pytest.approx(300.0)


def test_what_may_be_a_mistake_is_given_up_after_seconds() -> None:
    rng = random.Random(1)
    assert RetryPolicy(math.inf).pause_s(1, 9.9, RequestFailure.DOUBTFUL, rng) is not None
    assert RetryPolicy(math.inf).pause_s(1, 10.0, RequestFailure.DOUBTFUL, rng) is None
    assert RetryPolicy(1.0).pause_s(1, 1.0, RequestFailure.DOUBTFUL, rng) is None


def test_tries_can_be_bounded_besides() -> None:
    assert len(pauses(RetryPolicy(300.0, max_retries=2), 1)) == 2

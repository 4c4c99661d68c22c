"""Which queue work goes to: one, always."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.planning.fleet.routing import Routing

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    largest_bytes: int | None = None
    is_draining: bool = False


SMALL, MEDIUM, REST = Queue("small", 100 * MB), Queue("medium", 1000 * MB), Queue("rest")
QUEUES = (REST, MEDIUM, SMALL)


@pytest.mark.parametrize(
    ("cost", "queue"),
    [(0, SMALL), (100 * MB - 1, SMALL), (100 * MB, MEDIUM), (1000 * MB, REST), (1 << 60, REST)],
)
def test_the_first_queue_whose_largest_size_exceeds_the_cost(cost: int, queue: Queue) -> None:
    assert Routing(QUEUES).route(cost) is queue


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ([], "here: none"),
        ([SMALL], "here: none"),
        ([REST, Queue("other")], "here: rest, other"),
        ([REST, SMALL, Queue("twin", 100 * MB)], "small and twin"),
        ([Queue("rest", is_draining=True), SMALL], "must not drain"),
    ],
)
def test_queues_that_leave_work_without_one_or_with_two_are_refused(queues: list[Queue], says: str) -> None:
    with pytest.raises(Refused, match=says):
        Routing(queues)


def test_a_rule_names_the_queue_whatever_the_cost() -> None:
    routing = Routing(QUEUES)
    assert routing.route(1 << 60, "small") is SMALL
    assert routing.route(1, "rest") is REST


def test_what_would_go_to_a_queue_that_drains_or_is_gone_goes_on_by_size() -> None:
    drains = Routing([REST, MEDIUM, Queue("small", 100 * MB, is_draining=True)])
    assert drains.route(1) is MEDIUM
    assert drains.route(1, "small") is MEDIUM
    assert drains.route(1, "gone") is MEDIUM


@given(st.sets(st.integers(1, 50), max_size=6), st.sets(st.integers(0, 5)), st.integers(0, 60))
def test_all_work_has_a_queue_that_takes_it(limits: set[int], draining: set[int], cost: int) -> None:
    queues = [Queue(f"q{n}", limit, n in draining) for n, limit in enumerate(sorted(limits))]
    found = Routing([*queues, REST]).route(cost)
    fits = [q for q in queues if not q.is_draining and q.largest_bytes is not None and cost < q.largest_bytes]
    assert found == min(fits, key=lambda q: q.largest_bytes or 0, default=REST)

"""What of a queue is admitted next, by example."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lithify.base.errors import Refused
from lithify.planning.fleet.admission import QueueAdmission, QueueLimits, TenantShare
from lithify.planning.fleet.fairness import FAIR_EVERY, longest_wait_claims
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import Slots
from tests.planning.fleet.wanting import active, key, names, want

ONE = Slots(1, 1)


def queue_of(*wants: PendingTask, limits: QueueLimits | None = None) -> QueueAdmission:
    queue = QueueAdmission(limits if limits is not None else QueueLimits())
    for dataset in dict.fromkeys(one.dataset for one in wants):
        queue.offer(dataset, [one for one in wants if one.dataset == dataset], 0)
    return queue


def admit_and_end(queue: QueueAdmission, tenants: dict[str | None, TenantShare] | None = None) -> PendingTask:
    """The next one, which ends at once."""
    (admitted,) = queue.admit(ONE, 1, tenants or {})
    queue.follow(admitted.dataset, ())
    return admitted


def test_no_more_is_admitted_than_there_are_slots_until_something_ends() -> None:
    queue = queue_of(want("a"), want("b"), want("c"))
    assert names(queue.admit(Slots(2, 2), 2)) == ["a", "b"]
    assert queue.admit(Slots(2, 2), 2) == ()
    queue.follow("a", ())
    assert names(queue.admit(Slots(2, 2), 2)) == ["c"]
    assert queue.admit(Slots(0, 0), 0) == ()


def test_a_writer_near_a_stall_overtakes_a_thousand_that_have_waited_long() -> None:
    queue = queue_of(*(want(f"d{number}") for number in range(1_000)))
    for _ in range(50):
        queue.offer((done := admit_and_end(queue)).dataset, [done], 0)
    queue.offer("late", [want("late", PriorityClass.STALL)], 0)
    assert "late" in [admit_and_end(queue).dataset for _ in range(2)], "next, or after one fair claim"


def test_one_dataset_with_ten_thousand_wants_beside_99_with_one() -> None:
    queue = queue_of(
        *(want(f"hot/{n}", priority=1.0) for n in range(10_000)), *(want(f"d{n}") for n in range(99))
    )
    order = [admit_and_end(queue).dataset for _ in range(longest_wait_claims(100))]
    assert set(order) == {"hot", *(f"d{n}" for n in range(99))}
    assert Counter(order)["hot"] > len(order) // 2, "it is more urgent"


def test_every_fourth_claim_is_for_who_has_waited_longest_in_whatever_band() -> None:
    queue = queue_of(
        *(want(f"hot/{n}", PriorityClass.STALL) for n in range(20)),
        want("a"),
        want("b", PriorityClass.ASKED, 1.0),
    )
    order = "".join(admit_and_end(queue).dataset[0] for _ in range(2 * FAIR_EVERY))
    assert order == "hhhhbhhh", "at the first claim nobody had waited longer than the hot one"


# Backlog


def test_what_is_not_wanted_any_more_leaves() -> None:
    queue = queue_of(want("a/1"), want("a/2"), want("b"))
    queue.offer("a", [want("a/2")], 0)
    assert names(queue.admit(Slots(9, 9), 9)) == ["a/2", "b"]


def test_a_want_that_is_offered_again_keeps_its_age() -> None:
    queue = queue_of(want("a", since_ms=5), want("b", since_ms=6))
    queue.offer("a", [want("a", since_ms=9)], 0)
    assert names(queue.admit(ONE, 1)) == ["a"]


def test_a_full_backlog_keeps_the_highest_and_counts_the_rest() -> None:
    wants = [want(f"a/{n}", priority=n / 10) for n in range(10)]
    queue = queue_of(*wants, limits=QueueLimits(longest_backlog=3))
    figures = queue.figures()
    assert (figures.queued, figures.deferred) == (3, 7)
    assert figures.lowest == (PriorityClass.NORMAL, 0.7)
    assert figures.demand == {PriorityClass.NORMAL: 10}, "what is deferred is wanted as well"
    assert names(queue.admit(Slots(9, 9), 9)) == ["a/9", "a/8", "a/7"]


def test_nobody_is_deferred_altogether() -> None:
    hot = [want(f"hot/{n}", PriorityClass.STALL, 1.0) for n in range(100)]
    queue = queue_of(want("a"), *hot, want("b"), limits=QueueLimits(longest_backlog=5))
    queue.offer("c", [want("c", priority=0.0), want("c/2")], 0)
    assert queue.figures().queued == 5
    assert {one.dataset for one in queue.admit(Slots(9, 9), 9)} == {"a", "b", "c", "hot"}


def test_what_was_deferred_is_called_back_when_there_is_room_or_nothing_left_of_it() -> None:
    wants = [want(f"a/{n}") for n in range(8)]
    queue = queue_of(*wants, want("b/1"), want("b/2"), limits=QueueLimits(longest_backlog=4))
    assert queue.figures().deferred == 6
    assert queue.recall(0) == (), "the backlog is full"
    while queue.figures().queued > 2:
        admit_and_end(queue)
    recalled = queue.recall(0)
    assert recalled
    queue.offer("a", wants[-3:], 0)
    assert queue.figures().queued > 2
    assert queue.figures().deferred == 1, "of b"


def test_the_last_of_a_dataset_calls_the_rest_back_however_full_it_is() -> None:
    others = [want(f"d{n}") for n in range(9)]
    hot = [want("a/1", PriorityClass.STALL), want("a/2")]
    queue = queue_of(*others, *hot, limits=QueueLimits(longest_backlog=5))
    assert queue.figures().deferred == 1
    assert queue.recall(0) == ()
    assert names(queue.admit(ONE, 1)) == ["a/1"]
    assert queue.recall(0) == ("a",)


def test_all_that_is_deferred_comes_to_an_end() -> None:
    """Ten datasets with 50 wants each through a backlog of 20."""
    left = {f"d{d}": [want(f"d{d}/{n}") for n in range(50)] for d in range(10)}
    queue = queue_of(*(one for of in left.values() for one in of), limits=QueueLimits(longest_backlog=20))
    for _ in range(500):
        done = admit_and_end(queue)
        left[done.dataset].remove(done)
        for dataset in queue.recall(0):
            queue.offer(dataset, left[dataset], 0)
    assert not any(left.values())
    assert queue.figures().queued == queue.figures().deferred == 0


# Limits


def test_one_dataset_has_no_more_than_its_share_of_the_queues_slots() -> None:
    queue = queue_of(*(want(f"a/{n}") for n in range(9)), want("b"), limits=QueueLimits(largest_share=0.3))
    assert Counter(one.dataset for one in queue.admit(Slots(8, 8), 10)) == {"a": 3, "b": 1}
    assert names(queue_of(want("a"), limits=QueueLimits(largest_share=0.1)).admit(ONE, 1)) == ["a"], (
        "one at least"
    )


def test_a_tenant_has_no_more_than_its_cap() -> None:
    queue = queue_of(
        *(want(f"a{n}", PriorityClass.STALL, tenant="hot") for n in range(9)), want("b", tenant="cold")
    )
    admitted = queue.admit(Slots(8, 8), 8, {"hot": TenantShare(most_running=2)})
    assert Counter(one.tenant for one in admitted) == {"hot": 2, "cold": 1}


def test_tenants_have_claims_by_weight() -> None:
    tenants: dict[str | None, TenantShare] = {"gold": TenantShare(weight=3), "tin": TenantShare(weight=1)}
    queue = queue_of(
        *(want(f"g/{n}", tenant="gold") for n in range(200)),
        *(want(f"t/{n}", tenant="tin") for n in range(200)),
    )
    had = Counter(admit_and_end(queue, tenants).tenant for _ in range(80))
    assert 55 <= had["gold"] <= 62, "a little less than 60: the fair claims know no weights"


def test_a_tenants_hot_dataset_leaves_its_others_their_turns_at_the_cap() -> None:
    """A cap of 1 may leave room at claims that are never the fair ones of the queue."""
    queue = queue_of(
        *(want(f"hot/{n}", PriorityClass.STALL, tenant="t") for n in range(60)),
        want("cold", tenant="t"),
        *(want(f"o/{n}", PriorityClass.NORMAL, tenant="u") for n in range(60)),
    )
    tenants: dict[str | None, TenantShare] = {"t": TenantShare(most_running=1)}
    order: list[str] = []
    for _ in range(16):
        admitted = queue.admit(Slots(2, 2), 2, tenants)
        order += [one.dataset for one in admitted if one.tenant == "t"]
        for one in admitted:
            queue.follow(one.dataset, ())
    assert "cold" in order[: longest_wait_claims(2)]


def test_the_reserve_is_for_small_work_and_writers_near_a_stall() -> None:
    small, large, urgent = (
        want("a", cost=1),
        [want(f"b{n}", PriorityClass.ASKED) for n in range(9)],
        want("c", PriorityClass.STALL),
    )
    queue = queue_of(small, *large)
    assert names(queue.admit(Slots(4, 2), 4)) == ["b0", "b1", "a"]
    queue.offer("c", [urgent], 0)
    assert names(queue.admit(Slots(4, 2), 4)) == ["c"]


# What depends, fails, and runs already


def test_what_waits_for_another_is_admitted_after_its_end() -> None:
    queue = queue_of(want("a/1"), want("a/2", PriorityClass.STALL, after=["a/1"]))
    assert names(queue.admit(Slots(9, 9), 9)) == ["a/1"]
    queue.follow("a", active([want("a/1")], takes_slot=False))
    assert queue.figures().running == 0
    assert queue.admit(Slots(9, 9), 9) == (), "its commit is left to do"
    queue.follow("a", ())
    assert names(queue.admit(Slots(9, 9), 9)) == ["a/2"]


def test_a_chain_keeps_its_first_in_the_backlog() -> None:
    chain = [want("a/1", priority=0.1), want("a/2", PriorityClass.STALL, after=["a/1"])]
    queue = queue_of(*chain, want("b"), limits=QueueLimits(longest_backlog=1))
    assert sorted(names(queue.admit(Slots(9, 9), 9))) == ["a/1", "b"]
    assert queue.figures().deferred == 1


def test_what_runs_since_before_counts_and_is_not_admitted_again() -> None:
    queue = queue_of(want("a/1"), want("a/2"))
    queue.follow("a", active([want("a/1")]))
    assert queue.admit(ONE, 1) == ()
    queue.offer("a", [want("a/1"), want("a/2")], 0)
    assert names(queue.admit(Slots(2, 2), 2)) == ["a/2"]


def test_what_failed_rests_longer_each_time_and_is_called_back_then() -> None:
    queue, now_ms = queue_of(want("a"), want("b")), 0
    pauses = []
    for _ in range(3):
        assert "a" in names(queue.admit(Slots(9, 9), 9))
        queue.failed(key("a"), now_ms)
        queue.offer("a", [want("a")], now_ms)
        assert queue.figures().resting == 1
        assert queue.admit(Slots(9, 9), 9) == ()
        until_ms = next(at for at in range(now_ms, now_ms + 10_000_000, 1_000) if queue.recall(at))
        assert queue.recall(until_ms) == ("a",)
        pauses.append(until_ms - now_ms)
        now_ms = until_ms
        queue.offer("a", [want("a")], now_ms)
    assert pauses == [60_000, 120_000, 240_000]


def test_a_dataset_that_fails_whatever_is_tried_rests_as_a_whole() -> None:
    wants = [want(f"a/{n}", PriorityClass.STALL) for n in range(9)]
    queue = queue_of(*wants, want("b"), want("c"))
    for number in range(2):
        (admitted,) = queue.admit(ONE, 1)
        assert admitted.dataset == "a"
        queue.failed(admitted.key, 0)
        wants.remove(admitted)
        assert (queue.figures().resting > 2) is (number == 1)
    assert names(queue.admit(Slots(9, 9), 9)) == ["b", "c"]
    queue.offer("a", wants, 14_999)
    assert queue.admit(Slots(9, 9), 9) == ()
    assert queue.recall(15_000) == ("a",)
    queue.offer("a", wants, 15_000)
    (admitted,) = queue.admit(Slots(3, 3), 3)
    queue.follow("a", ())
    queue.failed(wants[1].key, 15_000)
    queue.offer("a", wants[2:], 15_000)
    assert queue.figures().resting == 0, "a success begins anew"


def test_what_a_dataset_cannot_use_takes_no_slots_from_other_members() -> None:
    queue = queue_of(
        *(want(f"a/{n}", PriorityClass.STALL) for n in range(9)), limits=QueueLimits(largest_share=0.3)
    )
    queue.admit(ONE, 10)
    assert queue.figures().demand == {PriorityClass.STALL: 3}


def test_what_came_to_nothing_takes_no_slot() -> None:
    queue = queue_of(want("a"), want("b"))
    assert names(queue.admit(ONE, 1)) == ["a"]
    queue.follow("a", ())
    assert names(queue.admit(ONE, 1)) == ["b"]


def test_nothing_is_left_of_a_dataset_that_another_watches() -> None:
    queue = queue_of(want("a/1"), want("a/2"), limits=QueueLimits(longest_backlog=1))
    queue.admit(ONE, 1)
    queue.forget("a")
    assert (queue.figures().queued, queue.figures().deferred, queue.figures().running) == (0, 0, 0)


@pytest.mark.parametrize("wrong", [{"longest_backlog": 0}, {"largest_share": 0.0}, {"largest_share": 1.1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Refused):
        QueueLimits(**wrong)  # type: ignore[arg-type]


class Admissions(RuleBasedStateMachine):
    """Offers, ends, failures and admissions in any order: nothing is lost, doubled or beyond its limits."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = QueueLimits(longest_backlog=4, largest_share=0.5)
        self.queue = QueueAdmission(self.limits)
        self.wanted: dict[str, dict[str, PendingTask]] = {}
        self.running: dict[str, dict[str, PendingTask]] = {}
        self.now_ms = 0

    @rule(
        dataset=st.sampled_from("abc"),
        units=st.dictionaries(st.sampled_from("1234"), st.sampled_from(PriorityClass)),
    )
    def offer(self, dataset: str, units: dict[str, PriorityClass]) -> None:
        running = self.running.get(dataset, {})
        self.wanted[dataset] = {
            unit: want(f"{dataset}/{unit}", band) for unit, band in units.items() if unit not in running
        }
        self._offer(dataset)

    @rule()
    def recall(self) -> None:
        for dataset in self.queue.recall(self.now_ms):
            self._offer(dataset)

    def _offer(self, dataset: str) -> None:
        running = self.running.get(dataset, {})
        free = [one for unit, one in self.wanted.get(dataset, {}).items() if unit not in running]
        self.queue.offer(dataset, free, self.now_ms)

    @rule(total=st.integers(0, 6), kept=st.integers(0, 2))
    def admit(self, total: int, kept: int) -> None:
        before = sum(map(len, self.running.values()))
        admitted = self.queue.admit(Slots(total, max(0, total - kept)), 6)
        assert len(admitted) <= max(0, total - before)
        for one in admitted:
            assert self.wanted[one.dataset].pop(one.key.unit) == one
            self.running.setdefault(one.dataset, {})[one.key.unit] = one
            assert len(self.running[one.dataset]) <= 3

    @rule(dataset=st.sampled_from("abc"), fails=st.booleans(), passes_ms=st.integers(0, 200_000))
    def end(self, dataset: str, fails: bool, passes_ms: int) -> None:
        self.now_ms += passes_ms
        running = self.running.get(dataset, {})
        if running:
            unit, one = running.popitem()
            if fails:
                self.queue.failed(one.key, self.now_ms)
                self.wanted.setdefault(dataset, {})[unit] = one
                self._offer(dataset)
        self.queue.follow(dataset, active(running.values()))

    @invariant()
    def all_is_somewhere(self) -> None:
        figures = self.queue.figures()
        wanted = sum(map(len, self.wanted.values()))
        assert figures.queued + figures.deferred + figures.resting == wanted
        assert figures.running == sum(map(len, self.running.values()))
        assert figures.queued <= max(self.limits.longest_backlog, len(self.wanted))
        assert figures.queued == self.queue._queued_count


TestAdmissions = Admissions.TestCase
TestAdmissions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

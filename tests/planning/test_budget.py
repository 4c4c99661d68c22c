"""The task manager by example, and as a state machine beside a naive model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lithify.base.errors import Refused
from lithify.planning import admission as module
from lithify.planning.admission import Budget, Capacity, DroppedWork, DropReason, PlannedWork, WorkKey

ONE = Capacity(max_running=1)


def key(name: str) -> WorkKey:
    """`dataset/unit`, or a unit of dataset `d`."""
    dataset, _, unit = name.rpartition("/")
    return WorkKey(dataset or "d", unit)


def work(name: str, priority: float = 0.5, cost: int = 1, after: Iterable[str] = ()) -> PlannedWork:
    return PlannedWork(key(name), priority, cost, tuple(map(key, after)))


def names(works: Iterable[PlannedWork]) -> list[str]:
    return [w.key.unit if w.key.dataset == "d" else f"{w.key.dataset}/{w.key.unit}" for w in works]


def drops(dropped: Iterable[DroppedWork]) -> list[tuple[str, DropReason]]:
    return [(drop.work.key.unit, drop.why) for drop in dropped]


def test_the_most_urgent_starts_first_and_equals_in_the_order_they_came() -> None:
    budget = Budget(Capacity(max_running=9))
    budget.offer([work("a", 0.2), work("b", 0.9), work("c", 0.2), work("d", 0.5), work("e", 0.9)], 0)
    assert names(budget.start()) == ["b", "e", "d", "a", "c"]


def test_never_more_than_the_number_and_the_bytes() -> None:
    budget = Budget(Capacity(max_running=3, max_running_bytes=10))
    budget.offer([work("a", 0.9, 6), work("b", 0.8, 4), work("c", 0.7, 1), work("d", 0.6, 0)], 0)
    assert names(budget.start()) == ["a", "b", "d"], "c does not fit, d is free"
    assert sum(running.cost_bytes for running in budget.running) == 10
    assert names(budget.start()) == []


def test_each_end_starts_the_next_at_once() -> None:
    budget = Budget(Capacity(max_running=2))
    budget.offer([work(name) for name in "abcd"], 0)
    assert names(budget.start()) == ["a", "b"]
    budget.finished(key("b"))
    assert names(budget.start()) == ["c"], "a goes on for long"
    budget.finished(key("c"))
    assert names(budget.start()) == ["d"]


def test_large_work_is_passed_over_only_so_often() -> None:
    budget = Budget(Capacity(max_running=4, max_running_bytes=10, max_passed_over=3))
    budget.offer([work("small0", cost=5)], 0)
    budget.start()
    budget.offer([work("large", cost=10)], 0)
    order = []
    for number in range(1, 20):
        budget.offer([work(f"small{number}", cost=5)], 0)
        order += names(budget.start())
        budget.finished(budget.running[0].key)
    assert order.index("large") == 3
    assert len(order) > 10


def test_large_work_that_is_offered_with_every_plan_is_passed_over_only_so_often() -> None:
    """A planner offers all that it has each time; that must not begin the counting anew."""
    budget = Budget(Capacity(max_running=4, max_running_bytes=10, max_passed_over=3))
    budget.offer([work("small0", cost=5)], 0)
    budget.start()
    order = []
    for number in range(1, 20):
        budget.offer([work("large", cost=10), work(f"small{number}", cost=5)], 0)
        order += names(budget.start())
        if "large" in order:
            break
        budget.finished(budget.running[0].key)
    assert order.index("large") == 3


def test_work_above_the_whole_capacity_runs_alone() -> None:
    budget = Budget(Capacity(max_running=4, max_running_bytes=10))
    budget.offer([work("huge", 0.9, 99), work("a", 0.5, 1)], 0)
    assert names(budget.start()) == ["huge"]
    assert names(budget.start()) == []
    budget.finished(key("huge"))
    assert names(budget.start()) == ["a"]


def test_one_dataset_cannot_take_all() -> None:
    budget = Budget(Capacity(max_running=4, max_dataset_share=0.5))
    budget.offer([work(f"x/{i}", 0.9) for i in range(9)] + [work("y/0", 0.1)], 0)
    assert names(budget.start()) == ["x/0", "x/1", "y/0"]
    budget.finished(key("x/0"))
    assert names(budget.start()) == ["x/2"]


def test_a_share_is_of_bytes_too_but_each_dataset_may_run_one() -> None:
    budget = Budget(Capacity(max_running=4, max_running_bytes=100, max_dataset_share=0.25))
    budget.offer([work("x/0", 0.9, 60), work("x/1", 0.9, 1), work("y/0", 0.1, 20), work("y/1", 0.1, 6)], 0)
    assert names(budget.start()) == ["x/0", "y/0"]


def test_large_work_is_not_passed_over_for_ever_within_its_dataset() -> None:
    budget = Budget(Capacity(max_running=4, max_running_bytes=100, max_dataset_share=0.5, max_passed_over=2))
    budget.offer([work("x/first", cost=25)], 0)
    budget.start()
    budget.offer([work("x/large", cost=40)], 0)
    order = []
    for number in range(9):
        budget.offer([work(f"x/{number}", cost=25), work(f"y/{number}", cost=25)], 0)
        order += names(budget.start())
        for running in budget.running:
            if running.key.dataset == "y":
                budget.finished(running.key)
        budget.finished(next(w.key for w in budget.running if w.key.dataset == "x"))
    assert [name for name in order if name.startswith("x/")].index("x/large") == 2
    assert len([name for name in order if name.startswith("y/")]) == 9, "others are not held up"


def test_the_queue_is_bounded_and_sheds_the_least_urgent_and_youngest() -> None:
    budget = Budget(Capacity(max_running=1, max_queued=3))
    assert drops(budget.offer([work("a", 0.5), work("b", 0.2), work("c", 0.2)], 0)) == []
    assert drops(budget.offer([work("d", 0.2)], 0)) == [("d", DropReason.SHED)]
    assert drops(budget.offer([work("e", 0.9)], 0)) == [("c", DropReason.SHED)]
    assert names(budget.queued) == ["e", "a", "b"]


def test_running_work_is_never_shed() -> None:
    budget = Budget(Capacity(max_running=1, max_queued=1))
    budget.offer([work("a", 0.1)], 0)
    budget.start()
    assert drops(budget.offer([work("b", 0.9), work("c", 0.8)], 0)) == [("c", DropReason.SHED)]
    assert names(budget.running) == ["a"]


def test_offered_again_work_keeps_its_place_and_takes_the_new_values() -> None:
    budget = Budget(ONE)
    budget.offer([work("a"), work("b"), work("c")], 0)
    budget.offer([work("c"), work("b", cost=7), work("a")], 0)
    assert names(budget.queued) == ["a", "b", "c"]
    assert budget.queued[1].cost_bytes == 7
    budget.offer([work("c", 0.9)], 0)
    assert names(budget.start()) == ["c"]
    assert budget.offer([work("c", 0.9)], 0) == ()
    assert names(budget.queued) == ["a", "b"], "what runs is ignored"


def test_work_waits_for_its_predecessors() -> None:
    budget = Budget(Capacity(max_running=9))
    budget.offer([work("c", 0.9, after=["a", "b"]), work("a", 0.5), work("b", 0.4, after=["a"])], 0)
    assert names(budget.start()) == ["a"]
    budget.finished(key("a"))
    assert names(budget.start()) == ["b"]
    budget.finished(key("b"))
    assert names(budget.start()) == ["c"]


def test_unknown_predecessors_have_ended() -> None:
    budget = Budget(ONE)
    budget.offer([work("a", after=["long gone"])], 0)
    assert names(budget.start()) == ["a"]


CHAIN = [work("a", 0.9), work("b", 0.8, after=["a"]), work("c", 0.7, after=["b"]), work("x", 0.6)]
ORPHANS = [("b", DropReason.PREDECESSOR), ("c", DropReason.PREDECESSOR)]


def test_what_waits_for_failed_work_is_planned_anew() -> None:
    budget = Budget(ONE)
    budget.offer(CHAIN, 0)
    budget.start()
    assert drops(budget.failed(key("a"), 0)) == ORPHANS
    assert names(budget.queued) == ["x"]


def test_what_waits_for_cancelled_work_is_planned_anew() -> None:
    budget = Budget(ONE)
    budget.offer(CHAIN, 0)
    assert drops(budget.cancelled(key("a"))) == ORPHANS
    budget.start()
    assert drops(budget.cancelled(key("x"))) == []
    assert budget.running == budget.queued == ()


def test_what_waits_for_shed_work_is_planned_anew() -> None:
    budget = Budget(Capacity(max_running=1, max_queued=4))
    budget.offer([work("x", 0.8), work("a", 0.3), work("b", 0.3, after=["a"])], 0)
    assert drops(budget.offer([work("y", 0.9), work("z", 0.9), work("w", 0.9)], 0)) == [
        ("b", DropReason.SHED),
        ("a", DropReason.SHED),
    ]
    assert drops(budget.offer([work("v", 0.9, after=["x"])], 0)) == [
        ("x", DropReason.SHED),
        ("v", DropReason.PREDECESSOR),
    ]


def test_a_failing_unit_backs_off_and_others_go_on() -> None:
    budget = Budget(Capacity(max_running=1, first_pause_ms=100, max_pause_ms=300))
    waits = []
    now = 0
    for _ in range(4):
        budget.offer([work("bad", 0.9)], now)
        assert names(budget.start()) == ["bad"]
        budget.failed(key("bad"), now)
        assert drops(budget.offer([work("bad", 0.9), work("after", 0.9, after=["bad"])], now)) == [
            ("bad", DropReason.BACKING_OFF),
            ("after", DropReason.PREDECESSOR),
        ]
        budget.offer([work("good", 0.1)], now)
        assert names(budget.start()) == ["good"]
        budget.finished(key("good"))
        until = next(t for t in range(now, now + 999) if not budget.offer([work("bad")], t))
        waits.append(until - now)
        now = until
    assert waits == [100, 200, 300, 300]


def test_success_ends_the_back_off() -> None:
    budget = Budget(Capacity(first_pause_ms=100, max_pause_ms=900))
    for now in (0, 100):
        budget.offer([work("a")], now)
        budget.start()
        budget.failed(key("a"), now)
    budget.offer([work("a")], 300)
    budget.start()
    budget.finished(key("a"))
    budget.offer([work("a")], 300)
    budget.start()
    budget.failed(key("a"), 300)
    assert budget.offer([work("a")], 399)
    assert not budget.offer([work("a")], 400)


def test_the_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED_FAILURES", 3)
    budget = Budget(ONE)
    for number in range(5):
        budget.failed(key(f"u{number}"), number)
    dropped = budget.offer([work(f"u{number}") for number in range(5)], 0)
    assert drops(dropped) == [(f"u{number}", DropReason.BACKING_OFF) for number in (2, 3, 4)]


def test_what_ran_before_counts() -> None:
    budget = Budget(Capacity(max_running=2))
    budget.adopt([work("old")])
    budget.offer([work("old"), work("a"), work("b", after=["old"])], 0)
    assert names(budget.start()) == ["a"]
    budget.finished(key("old"))
    assert names(budget.start()) == ["b"]


def test_queued_work_that_turns_out_to_run_leaves_the_queue() -> None:
    """Another coordinator started it."""
    budget = Budget(ONE)
    budget.offer([work("a"), work("b")], 0)
    budget.adopt([work("a")])
    assert (names(budget.running), names(budget.queued)) == (["a"], ["b"])
    assert names(budget.start()) == []
    budget.finished(key("a"))
    assert names(budget.start()) == ["b"]


def test_work_that_waits_for_itself_is_a_mistake() -> None:
    budget = Budget(ONE)
    budget.offer([work("a", after=["b"]), work("b", after=["a"])], 0)
    with pytest.raises(ValueError, match="waits only for queued work"):
        budget.start()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running": 0},
        {"max_running_bytes": 0},
        {"max_queued": 0},
        {"max_dataset_share": 0.0},
        {"max_dataset_share": 1.1},
        {"max_passed_over": -1},
        {"first_pause_ms": 0},
        {"max_pause_ms": 1},
    ],
)
def test_impossible_capacities_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(Refused, match=name):
        Capacity(**wrong)  # type: ignore[arg-type] # that is the point


CAPACITY = Capacity(
    max_running=3,
    max_running_bytes=10,
    max_queued=6,
    max_dataset_share=0.7,
    max_passed_over=2,
    first_pause_ms=10,
    max_pause_ms=40,
)
KEYS = [key(f"{dataset}/{unit}") for dataset in "xy" for unit in range(7)]


class BudgetMachine(RuleBasedStateMachine):
    """Beside plain lists and dictionaries that are searched anew for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(CAPACITY)
        self.queue: list[PlannedWork] = []
        """In order of arrival."""
        self.running: list[PlannedWork] = []
        self.failures: dict[WorkKey, tuple[int, int]] = {}
        self.passed: dict[WorkKey, int] = {}
        self.now = 0

    def ordered(self) -> list[PlannedWork]:
        return sorted(self.queue, key=lambda w: -w.priority)

    def drop_waiting_for(self, gone: set[WorkKey]) -> set[WorkKey]:
        orphans: set[WorkKey] = set()
        while new := {w.key for w in self.queue if (gone | orphans) & set(w.after)} - orphans:
            orphans |= new
        self.queue = [w for w in self.queue if w.key not in orphans]
        return orphans

    @rule(
        numbers=st.lists(st.integers(0, len(KEYS) - 1), max_size=4, unique=True),
        priority=st.sampled_from([0.1, 0.5, 0.9]),
        cost=st.sampled_from([0, 1, 4, 6, 30]),
        back=st.integers(1, 3),
    )
    def offer(self, numbers: list[int], priority: float, cost: int, back: int) -> None:
        """Predecessors have smaller numbers, so nothing waits for itself."""
        works = [
            PlannedWork(
                KEYS[n], priority, cost + n % 2, (KEYS[n - back],) if n % 3 == 0 and n >= back else ()
            )
            for n in numbers
        ]
        got = self.budget.offer(works, self.now)
        want: set[tuple[WorkKey, DropReason]] = set()
        refused: set[WorkKey] = set()
        for w in works:
            if self.now < self.failures.get(w.key, (0, 0))[1]:
                refused.add(w.key)
                want.add((w.key, DropReason.BACKING_OFF))
            elif any(q.key == w.key for q in self.queue):
                self.queue = [w if q.key == w.key else q for q in self.queue]
            elif all(r.key != w.key for r in self.running):
                self.queue.append(w)
                self.passed[w.key] = 0
        want |= {(k, DropReason.PREDECESSOR) for k in self.drop_waiting_for(refused)}
        while len(self.queue) > CAPACITY.max_queued:
            last = self.ordered()[-1]
            assert all(last.priority <= w.priority for w in self.queue)
            self.queue.remove(last)
            want.add((last.key, DropReason.SHED))
            want |= {(k, DropReason.PREDECESSOR) for k in self.drop_waiting_for({last.key})}
        assert {(d.work.key, d.why) for d in got} == want

    @rule()
    def start(self) -> None:
        got = self.budget.start()
        want: list[PlannedWork] = []
        lacking: list[tuple[PlannedWork, bool]] = []
        for w in self.ordered():
            known = {o.key for o in (*self.queue, *self.running)} - {w.key}
            own = [r for r in self.running if r.key.dataset == w.key.dataset]
            closed = any(
                self.passed[o.key] >= CAPACITY.max_passed_over
                and (everywhere or o.key.dataset == w.key.dataset)
                for o, everywhere in lacking
            )
            if len(self.running) >= CAPACITY.max_running or closed or known & set(w.after):
                continue
            share = CAPACITY.max_dataset_share
            has_share = not own or (
                len(own) < math.floor(CAPACITY.max_running * share)
                and sum(r.cost_bytes for r in own) + w.cost_bytes <= CAPACITY.max_running_bytes * share
            )
            total = sum(r.cost_bytes for r in self.running)
            has_room = not self.running or total + w.cost_bytes <= CAPACITY.max_running_bytes
            if not (has_share and has_room):
                lacking.append((w, has_share))
                continue
            for o, everywhere in lacking:
                if everywhere or o.key.dataset == w.key.dataset:
                    self.passed[o.key] += 1
            self.queue.remove(w)
            self.running.append(w)
            want.append(w)
        assert list(got) == want

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["finished", "failed", "cancelled"]))
    def end(self, data: st.DataObject, how: str) -> None:
        w = data.draw(st.sampled_from(self.running))
        self.running.remove(w)
        if how == "finished":
            self.budget.finished(w.key)
            self.failures.pop(w.key, None)
            return
        if how == "failed":
            got = self.budget.failed(w.key, self.now)
            count = self.failures.get(w.key, (0, 0))[0] + 1
            self.failures[w.key] = (count, self.now + min(10 * 2 ** (count - 1), 40))
        else:
            got = self.budget.cancelled(w.key)
        assert {d.work.key for d in got} == self.drop_waiting_for({w.key})

    @rule()
    def go_on_from_a_copy(self) -> None:
        """What is done to the original afterwards does not show in the copy."""
        left, self.budget = self.budget, self.budget.copy()
        left.offer([PlannedWork(key("late"), 1.0, 0)], self.now)
        left.start()

    @rule(duration=st.integers(1, 25))
    def wait(self, duration: int) -> None:
        self.now += duration

    @invariant()
    def agree(self) -> None:
        assert list(self.budget.queued) == self.ordered()
        assert list(self.budget.running) == self.running

    @invariant()
    def within_limits(self) -> None:
        assert len(self.budget.queued) <= CAPACITY.max_queued
        assert len(self.budget.running) <= CAPACITY.max_running
        assert (
            sum(w.cost_bytes for w in self.budget.running) <= CAPACITY.max_running_bytes
            or len(self.budget.running) == 1
        )


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

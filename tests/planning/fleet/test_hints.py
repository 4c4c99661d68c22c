"""Which hint a worker takes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lithify.planning.admission import WorkKey
from lithify.planning.fleet import task_offers
from lithify.planning.fleet.fairness import FAIR_EVERY, FairTurns, longest_wait_claims
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import (
    HANDOVER_MS,
    LONGEST_DELAY_MS,
    LOST_MS,
    SPREAD,
    ClaimOffer,
    HintChoice,
    delay_ms,
    meant_for,
)
from tests.planning.fleet.wanting import LARGE_BYTES

FREE = {"q": Slots(9, 9)}


def hint(
    name: str, band: PriorityClass = PriorityClass.NORMAL, priority: float = 0.5, **fields: object
) -> ClaimOffer:
    return replace(ClaimOffer(f"db-{name}", name, band, priority, LARGE_BYTES, 0), **fields)  # type: ignore[arg-type]


def choice_of(*hints: ClaimOffer, now_ms: int = 0) -> HintChoice:
    choice = HintChoice("me")
    choice.see({"q": hints}, now_ms)
    return choice


def take(
    choice: HintChoice, now_ms: int = 0, slots: dict[str, Slots] | None = None, usage: Usage | None = None
) -> str:
    """The name of the next one, which is claimed; empty if there is none."""
    slots, usage = slots or FREE, usage or Usage()
    found = choice.next(slots, usage, {}, now_ms)
    if found is None:
        return ""
    choice.claimed(found[1], slots, usage, {}, now_ms)
    return found[1].compaction


def mine(name: str, band: PriorityClass = PriorityClass.NORMAL, priority: float = 0.5) -> ClaimOffer:
    return hint(name, band, priority, worker="me")


def test_the_best_band_then_priority_then_age() -> None:
    choice = choice_of(mine("a", PriorityClass.NORMAL, 1.0), mine("b", PriorityClass.ASKED, 0.1))
    choice.see(
        {
            "q": [
                mine("a", priority=1.0),
                mine("b", PriorityClass.ASKED, 0.1),
                mine("c", PriorityClass.ASKED, 0.1),
            ]
        },
        5,
    )
    assert [take(choice, 5) for _ in range(4)] == ["b", "c", "a", ""]


def test_what_is_meant_for_this_worker_comes_first_in_its_band() -> None:
    choice = choice_of(hint("a", priority=1.0), mine("b"), hint("c", PriorityClass.ASKED))
    assert [take(choice) for _ in range(3)] == ["c", "b", "a"]


def test_workers_that_become_free_together_want_different_ones_of_the_first() -> None:
    hints = [hint(f"h{n:02}", priority=1 - n / 100) for n in range(20)]
    wanted = set()
    for n in range(50):
        choice = HintChoice(f"worker-{n}")
        choice.see({"q": hints}, 0)
        found = choice.next(FREE, Usage(), {}, 0)
        assert found is not None
        wanted.add(found[1].compaction)
    assert wanted == {f"h{n:02}" for n in range(SPREAD)}


def test_what_is_claimed_or_gone_from_the_boards_is_not_taken_again() -> None:
    choice = choice_of(mine("a"), mine("b"))
    assert take(choice) == "a"
    choice.see({"q": [mine("a")]}, 1)
    assert take(choice, 1) == "", "its board has it still"


def test_who_loses_one_goes_on_to_the_next_and_tries_it_again_when_it_is_another() -> None:
    choice = choice_of(hint("a", PriorityClass.STALL), mine("b"), hint("c"))
    choice.lost(hint("a"), 0)
    assert [take(choice), take(choice)] == ["b", ""], "others may have had c as well"
    choice.see({"q": [hint("a", PriorityClass.STALL), hint("c")]}, 1)
    assert take(choice, 1) == "c"
    choice.see({"q": [hint("a", PriorityClass.STALL, attempts=1)]}, 10)
    assert take(choice, 10) == "a"
    choice = choice_of(hint("a"))
    choice.lost(hint("a"), 0)
    choice.see({"q": [hint("a")]}, LOST_MS - 1)
    assert take(choice, LOST_MS - 1) == ""
    assert take(choice, LOST_MS) == "a", "so that a mistake is not for ever"


def test_what_failed_here_is_left_to_others_for_a_pause_that_grows() -> None:
    choice = choice_of(hint("a"))
    key = hint("a").key
    choice.failed(key, 0)
    choice.see({"q": [hint("a", attempts=1)]}, 59_999)
    assert take(choice, 59_999) == ""
    assert take(choice, 60_000) == "a"
    choice.failed(key, 60_000)
    choice.see({"q": [hint("a", attempts=2)]}, 60_000)
    assert take(choice, 60_000 + 239_999) == ""
    assert take(choice, 60_000 + 240_000) == "a"


def test_every_fourth_claim_is_for_what_was_passed_over_most() -> None:
    choice, old, order = HintChoice("me"), [hint("old-1"), hint("old-2")], []
    for number in range(2 * FAIR_EVERY):
        choice.see({"q": [*old, hint(f"new-{number}", PriorityClass.STALL)]}, number)
        order.append(take(choice, number))
    assert [name[:3] for name in order] == ["new", "new", "new", "old", "new", "new", "new", "old"]
    assert longest_wait_claims(3) >= 2 * FAIR_EVERY


def unfairness(seed: int) -> str:
    """What is unfair in a hundred claims of a worker while offers come, most of them urgent."""
    rng, choice = random.Random(seed), HintChoice("me")
    board: dict[WorkKey, ClaimOffer] = {}
    passed: Counter[WorkKey] = Counter()
    most: Counter[WorkKey] = Counter()
    worse_in_a_row = 0
    for step in range(100):
        while len(board) < 4:
            band = rng.choice([PriorityClass.STALL] * 4 + list(PriorityClass))
            new = hint(f"{step}-{len(board)}", band, rng.random())
            board[new.key] = new
        choice.see({"q": board.values()}, step)
        found = choice.next(FREE, Usage(), {}, step)
        assert found is not None
        claimed = board.pop(found[1].key)
        choice.claimed(claimed, FREE, Usage(), {}, step)
        for key in board:
            passed[key], most[key] = passed[key] + 1, max(most[key], len(board) + 1)
            if passed[key] > longest_wait_claims(most[key]):
                return "starved"
        is_worse = any(other.band < claimed.band for other in board.values())
        worse_in_a_row = worse_in_a_row + 1 if is_worse else 0
        if worse_in_a_row > 1:
            return "class"
    return ""


def test_a_worker_takes_the_best_class_first_and_passes_over_nothing_for_long() -> None:
    assert {unfairness(seed) for seed in range(30)} == {""}


class NeverFair(FairTurns[Any]):
    def is_due(self, scope: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("name", "wrong", "notices"),
    [
        ("FairTurns", NeverFair, "starved"),
        ("_order", lambda seen: (-seen.hint.priority, seen.since_ms), "class"),
    ],
)
def test_what_is_unfair_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: object, notices: str
) -> None:
    monkeypatch.setattr(task_offers, name, wrong)
    assert {unfairness(seed) for seed in range(30)} <= {"", notices}
    assert notices in {unfairness(seed) for seed in range(30)}


def test_ordinary_work_does_not_take_the_reserve() -> None:
    choice, slots = choice_of(hint("large", PriorityClass.ASKED), hint("small", bytes=1)), {"q": Slots(2, 1)}
    usage = Usage(total=1, ordinary=1)
    assert take(choice, slots=slots, usage=usage) == "small"
    assert take(choice, slots=slots, usage=usage) == ""
    assert take(choice, slots=slots) == "large"


def test_queues_have_turns_by_weight_and_only_those_that_are_served() -> None:
    choice, slots = HintChoice("me"), {"q": Slots(9, 9), "r": Slots(9, 9)}
    weights, had = {"q": 3, "r": 1}, []
    for number in range(16):
        boards = {queue: [hint(f"{queue}{number}")] for queue in ("q", "r", "s")}
        choice.see(boards, number)
        found = choice.next(slots, Usage(), weights, number)
        assert found is not None
        choice.claimed(found[1], slots, Usage(), weights, number)
        had.append(found[0])
    assert (had.count("q"), had.count("r")) == (12, 4)


def test_what_is_for_another_is_left_alone_until_that_one_had_its_time() -> None:
    mine, others = (
        hint("mine", worker="me", idle_workers=50),
        hint("other", PriorityClass.STALL, worker="you", idle_workers=50),
    )
    choice = choice_of(mine, others)
    assert take(choice) == "mine"
    assert take(choice) == ""
    at_ms = delay_ms(others, "me")
    assert HANDOVER_MS <= at_ms <= LONGEST_DELAY_MS
    choice.see({"q": [others]}, at_ms - 1)
    assert take(choice, at_ms) == "", "it may be gone since"
    choice.see({"q": [others]}, at_ms)
    assert take(choice, at_ms) == "other"


def test_workers_come_one_after_the_other() -> None:
    """For each hint in another order."""
    workers = [f"worker-{number}" for number in range(8)]
    orders = set()
    for name in ("a", "b", "c", "d"):
        delays = {worker: delay_ms(hint(name, idle_workers=8), worker) for worker in workers}
        assert len(set(delays.values())) > 3
        orders.add(tuple(sorted(workers, key=lambda worker: delays[worker])))
    assert len(orders) == 4
    assert delay_ms(hint("a"), "worker-1") == 0, "while nobody is idle it is for everybody"


def test_each_free_slot_is_given_one_hint() -> None:
    keys = [WorkKey("db", str(number)) for number in range(10)]
    free = {"a": 2, "b": 1, "c": 0, "d": 3}
    found = meant_for(keys, free)
    assert list(found) == keys[:6]
    assert {worker: list(found.values()).count(worker) for worker in free} == free
    assert meant_for(keys, {}) == {}


def test_what_failed_with_a_worker_is_for_another() -> None:
    keys, tried = [WorkKey("db", str(number)) for number in range(9)], {WorkKey("db", "0"): {"a", "b"}}
    found = meant_for(keys, {"a": 1, "b": 9}, lambda key: tried.get(key, ()))
    assert keys[0] not in found
    assert len(found) == 8


def test_two_who_give_hints_out_rarely_choose_the_same() -> None:
    free = {f"worker-{number}": 1 for number in range(100)}
    ours = meant_for([WorkKey("ours", str(number)) for number in range(10)], free)
    theirs = meant_for([WorkKey("theirs", str(number)) for number in range(10)], free)
    assert len(set(ours.values()) & set(theirs.values())) <= 3


def test_some_are_given_to_first() -> None:
    keys, free = [WorkKey("db", str(number)) for number in range(5)], {"a": 1, "b": 2, "c": 9}
    found = list(meant_for(keys, free, rank={"a": 1, "b": 1, "c": 2}.__getitem__).values())
    assert sorted(found[:3]) == ["a", "b", "b"]
    assert found[3:] == ["c", "c"]

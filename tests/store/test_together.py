"""Requests that go out together: their order, how many there are at once, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from lithify.base.concurrency import all_of, each_of
from tests.store.interrupting import interrupting

LIMIT_S = 20.0


def test_answers_come_in_the_order_of_the_questions() -> None:
    is_late = threading.Event()

    def late() -> int:
        assert is_late.wait(LIMIT_S)
        return 0

    def last() -> int:
        is_late.set()
        return 3

    assert all_of([late, lambda: 1, lambda: 2, last], 4) == [0, 1, 2, 3]
    assert all_of(iter([]), 4) == []


def test_so_many_go_on_at_once_and_no_more() -> None:
    lock, meeting = threading.Lock(), threading.Barrier(3, timeout=LIMIT_S)
    under_way, most = 0, 0

    def count() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        meeting.wait()
        with lock:
            under_way -= 1

    all_of([count] * 9, 3)
    assert most == 3


def test_after_a_failure_none_is_begun_and_those_under_way_have_ended() -> None:
    ended = list[str]()
    has_failed = threading.Event()

    def fail() -> None:
        has_failed.set()
        raise ZeroDivisionError

    def end() -> None:
        assert has_failed.wait(LIMIT_S)
        ended.append("end")

    with pytest.raises(ZeroDivisionError):
        all_of([fail, end, lambda: ended.append("more")], 2)
    assert ended == ["end"]


def test_one_after_another_is_begun_as_they_are_taken() -> None:
    begun = list[int]()

    def begin(number: int) -> Callable[[], int]:
        begun.append(number)
        return lambda: number

    taken = each_of((begin(number) for number in range(6)), 2)
    assert begun == []
    for number in range(5):
        assert next(taken) == number
        assert begun == list(range(min(number + 3, 6)))
    assert list(taken) == [5]


def test_who_stops_taking_waits_for_none() -> None:
    is_over = threading.Event()
    taken = each_of(iter([lambda: True, lambda: is_over.wait(LIMIT_S)]), 2)
    try:
        assert next(taken)
        taken.close()  # type: ignore[attr-defined]
        assert not is_over.is_set()
    finally:
        is_over.set()


@pytest.mark.parametrize("together", [all_of, each_of])
def test_an_interrupt_is_not_held_up(
    together: Callable[[Iterable[Callable[[], None]], int], Iterable[None]],
) -> None:
    is_over = threading.Event()

    def wait() -> None:
        assert is_over.wait(LIMIT_S)
        ended.append("late")

    ended = list[str]()
    try:
        with interrupting() as interrupt, pytest.raises(KeyboardInterrupt):
            list(together([interrupt, wait], 2))
        assert not ended
    finally:
        is_over.set()

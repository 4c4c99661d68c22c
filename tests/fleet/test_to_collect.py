"""What is to be collected: each dataset once, until it is over."""

from __future__ import annotations

import threading

from lithify.api.fleet_serving import ToCollect
from lithify.fleet.catalog.model import DatasetRule

A, B = DatasetRule("s3://b/a"), DatasetRule("s3://b/b")
NEWER = DatasetRule("s3://b/a", tenant="red")


def test_what_is_added_again_and_again_is_collected_once() -> None:
    due = ToCollect()
    for rule in (A, B, A, NEWER):
        due.add(rule.pattern, rule)
    assert [due.take(), due.take()] == [(A.pattern, NEWER), (B.pattern, B)]
    due.add(A.pattern, A)
    assert due.take() == (A.pattern, A), "a later time is another one"


def test_at_the_end_nothing_more_is_collected() -> None:
    due = ToCollect()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(due.take()), daemon=True)
    thread.start()
    due.end()
    thread.join(10)
    due.add(A.pattern, A)
    assert (taken, due.take()) == ([None], None)

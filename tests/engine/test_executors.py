"""An application that its cluster has forgotten is stopped, and no other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import pytest

from lithify.engine.executors import ExecutorWatch, Patience
from lithify.engine.settings import has_lasting_executors

LIMIT_S = 120.0


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ([2, 0, 0, 0], 3),
        ([2, 2, 0, 0, 0, 0], 4),
        ([0, 0, 0, 0, 0, 0], None),
        ([0, 0, 0, 1, 0, 0, 0], 6),
        ([2, 0, 0, 1, 0, 0, 1, 0, 0], None),
    ],
    ids=["gone", "gone later", "never there", "there late", "replaced in time"],
)
def test_patience_ends_when_executors_were_there_and_none_has_come_for_long(
    seen: Sequence[int], ends: int | None
) -> None:
    patience = Patience(limit_s=20.0)
    answers = [patience.ends(count, 10.0 * n) for n, count in enumerate(seen)]
    assert answers.index(True) == ends if ends is not None else not any(answers)


def test_what_has_lost_all_executors_is_stopped_once() -> None:
    counts = itertools.chain([1, 1], itertools.repeat(0))
    stopped = threading.Semaphore(0)
    watch = ExecutorWatch(lambda: next(counts), stopped.release, limit_s=0.01, every_s=0.001)
    assert stopped.acquire(timeout=LIMIT_S)
    watch.join(LIMIT_S)
    assert not stopped.acquire(blocking=False)


def test_nobody_is_stopped_when_there_is_nobody_to_ask() -> None:
    stopped: list[str] = []

    def count() -> int:
        raise ConnectionError("the JVM is gone")

    ExecutorWatch(count, lambda: stopped.append("stopped"), limit_s=0.0, every_s=0.001).join(LIMIT_S)
    assert not stopped


def test_a_watch_that_is_closed_ends() -> None:
    watch = ExecutorWatch(lambda: 1, lambda: None, every_s=LIMIT_S)
    watch.close()
    watch.join(LIMIT_S / 2)


@pytest.mark.parametrize(
    ("master", "dynamic", "is_watched"),
    [
        ("spark://host:7077", None, True),
        ("spark://host:7077", "false", True),
        ("spark://host:7077", "True", False),
        ("local[2]", None, False),
        ("yarn", None, False),
        ("k8s://https://host:6443", None, False),
    ],
)
def test_only_executors_that_are_to_stay_are_watched(
    master: str, dynamic: str | None, is_watched: bool
) -> None:
    conf = {"spark.master": master}
    if dynamic is not None:
        conf["spark.dynamicAllocation.enabled"] = dynamic
    assert has_lasting_executors(conf) is is_watched

"""A failure is one line for people who watch a run."""

from __future__ import annotations

import io
from contextlib import suppress

from rich.console import Console

from lithify.base import events
from lithify.observe.progress import ProgressBars

URL, ONE, OTHER = "file:///db", "01M7Y73N1RT45V6YVXGPSA14XX", "01M7Y73N1RT45V6YVXGPSA14YY"


def told(*happened: events.Event) -> list[str]:
    screen = io.StringIO()
    with ProgressBars(Console(file=screen, width=200)) as bars:
        for event in happened:
            bars(event)
    return screen.getvalue().splitlines()


def failed(reason: str, compaction: str = ONE) -> events.Event:
    return events.AttemptFailed(URL, compaction, reason)


AGAIN = events.Claimed(URL, ONE, "w")


def test_who_sums_up_the_run_tells_of_the_last_attempt() -> None:
    assert told(AGAIN, failed("disk on fire"), events.Failed(URL, ONE, 1, "disk on fire")) == []
    assert told(AGAIN, failed("disk on fire")) == []


def test_what_is_tried_again_says_why_once_for_the_same_reason() -> None:
    lines = told(AGAIN, failed("a"), AGAIN, failed("a"), AGAIN, failed("b"), AGAIN, failed("b"))
    assert lines == [f"SA14XX failed and is retried: {reason}" for reason in ("a", "b")]


def test_who_is_interrupted_sees_what_nobody_will_sum_up() -> None:
    screen = io.StringIO()
    bars = ProgressBars(Console(file=screen, width=200))
    with suppress(KeyboardInterrupt), bars:
        bars(failed("disk on fire"))
        raise KeyboardInterrupt
    assert screen.getvalue() == "SA14XX failed: disk on fire\n"

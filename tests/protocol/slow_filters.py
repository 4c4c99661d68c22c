"""Compaction filters that take their time; tasks import them by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lithify.datasets.slatedb.hooks import FilterDecision, Keep, Row

SLOW_ROW_S = 0.004
SLOWER = 4
HELD_S = 200.0
on_row: list[Callable[[], None]] = []
"""What to do for each row, in a test that runs the task itself."""


def observed(row: Row) -> FilterDecision:
    """Lets the test do something in the middle of a range."""
    for act in on_row:
        act()
    return Keep()


def slow(row: Row) -> FilterDecision:
    time.sleep(SLOW_ROW_S)
    return Keep()


def slower(row: Row) -> FilterDecision:
    time.sleep(SLOW_ROW_S * SLOWER)
    return Keep()


def hanging(row: Row) -> FilterDecision:
    """Waits for the file that the row names to vanish, if it names one."""
    name = (row.value or b"").partition(b" ")[0]
    deadline_s = time.monotonic() + HELD_S
    while name.startswith(b"/") and Path(name.decode()).exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return Keep()

"""Waiting for a store, as people see it: on the line of progress and in the log."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from lithify.base import events
from lithify.observe.logs import EventLog
from lithify.observe.progress import ProgressBars
from lithify.store.resilience.waiting import log_waiting
from lithify.testing import ManualClock

WAITING = events.WaitingForStore("s3://b/db", "s3://b", 5.2, "connection refused")
BACK = events.StoreBack("s3://b/db", "s3://b", 12.4)


def drawn(bars: ProgressBars, screen: io.StringIO) -> str:
    """What is on the screen from now on."""
    screen.seek(0)
    screen.truncate()
    bars.refresh()
    return screen.getvalue()


def test_the_line_counts_the_seconds_by_itself_and_goes_when_it_is_over() -> None:
    screen, clock = io.StringIO(), ManualClock()
    with ProgressBars(Console(file=screen, force_terminal=True, width=150), clock) as bars:
        bars(events.Prepared("s3://b/db", "01ABCDEF", 4, 1000))
        bars(WAITING)
        assert "waiting for the store for 5 s: connection refused" in drawn(bars, screen)
        clock.advance_s(7)
        assert "waiting for the store for 12 s: connection refused" in drawn(bars, screen)
        bars(events.WaitingForStore("s3://b/db", "s3://b", 12.2, "503 Slow Down"))
        again = drawn(bars, screen)
        assert again.count("waiting for the store") == 1
        assert "503 Slow Down" in again
        bars(BACK)
        assert "The store is available again" in screen.getvalue()
        after = drawn(bars, screen)
        assert "waiting" not in after
        assert "ABCDEF" in after


def test_a_catalog_is_named() -> None:
    screen = io.StringIO()
    with ProgressBars(Console(file=screen, force_terminal=True, width=150), ManualClock()) as bars:
        bars(events.WaitingForStore("iceberg://lake/db.events", "catalog lake", 5.2, "503"))
        assert "waiting for catalog lake for 5 s: 503" in drawn(bars, screen)
        bars(events.StoreBack("iceberg://lake/db.events", "catalog lake", 12.4))
        assert "Catalog lake is available again" in screen.getvalue()


@pytest.mark.parametrize("observe", [log_waiting, EventLog(ManualClock())])
def test_the_log_says_it_where_only_warnings_are_shown(
    observe: events.Observer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        observe(WAITING)
        observe(BACK)
    first, second = caplog.records
    assert "waiting for" in first.getMessage()
    assert "connection refused" in first.getMessage() or first.fields["cause"] == "connection refused"  # type: ignore[attr-defined]
    assert "available again" in second.getMessage() or second.getMessage() == "store back"

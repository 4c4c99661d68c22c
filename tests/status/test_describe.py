"""How far a compaction is, how long it still takes, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.ids import RandomIds
from lithify.protocol.attempts import Attempt, Movement
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState
from lithify.protocol.status import CompactionDetails, CompactionStatus, RangeState, Stay, describe

NOW_MS = 1_700_000_100_000
TIMEOUT_MS = 30_000
ID = RandomIds().ulid(NOW_MS - 100_000)
DONE = RangeState(True, 10)
OPEN = RangeState(False, 0)


def running() -> Compaction[Any, Any, Any]:
    return Compaction(ID, "spec", CompactionState.RUNNING, worker=AssignedWorker("w", NOW_MS))


def moving(index: int, bytes_read: int, name: str = "w") -> Movement:
    return Movement(index, name, NOW_MS - 50_000, bytes_read, bytes_read, NOW_MS)


def status_of(
    compaction: Compaction[Any, Any, Any], known: CompactionDetails, alive: bool | None = True
) -> CompactionStatus:
    return describe(compaction, "root", known, NOW_MS, TIMEOUT_MS, alive)


@pytest.mark.parametrize(
    ("ranges", "movements", "done_bytes"),
    [
        ((), {}, 0),
        ((), {"a": moving(0, 300), "b": moving(1, 100)}, 400),
        ((), {"a": moving(0, 5000)}, 1000),
        ((DONE, OPEN, OPEN, OPEN), {}, 250),
        ((DONE, OPEN, OPEN, OPEN), {"a": moving(1, 100), "b": moving(2, 900)}, 600),
        ((OPEN, OPEN, OPEN, OPEN), {"first try": moving(1, 100), "second": moving(1, 60)}, 100),
        ((RangeState(False, 120), OPEN, OPEN, OPEN), {}, 120),
        ((DONE, DONE, DONE, DONE), {}, 1000),
    ],
)
def test_how_far(ranges: tuple[RangeState, ...], movements: dict[str, Movement], done_bytes: int) -> None:
    found = status_of(running(), CompactionDetails(1000, ranges, movements=movements))
    assert found.done_bytes == done_bytes
    assert found.finished_ranges == sum(r.is_finished for r in ranges)
    assert found.share_done == done_bytes / 1000


def test_how_long_still_is_reckoned_from_what_this_worker_did() -> None:
    # Half was finished when it was claimed 10 s ago; another quarter is now: 10 s more.
    stay = Stay(NOW_MS - 10_000, (DONE, DONE, OPEN, OPEN))
    known = CompactionDetails(1000, (DONE, DONE, DONE, OPEN), stay)
    assert status_of(running(), known).remaining_ms == 10_000
    assert status_of(running(), known).bytes_per_s == 25
    assert status_of(running(), known).since_ms == NOW_MS - 10_000
    reported = replace(known, movements={"a": moving(3, 125)})
    assert status_of(running(), reported).bytes_per_s == round(375 / 10)
    assert status_of(running(), reported).remaining_ms == round(125 / 375 * 10_000)
    assert status_of(running(), replace(known, ranges=(DONE, DONE, OPEN, OPEN))).remaining_ms is None
    assert status_of(running(), replace(known, stay=None)).remaining_ms is None
    assert status_of(running(), replace(known, stay=None)).bytes_per_s is None


def test_waiting_for_spark_does_not_slow_the_estimate_down() -> None:
    # Claimed 100 s ago, first ranges recorded 10 s ago, as much again since: 10 s for each quarter.
    known = CompactionDetails(
        1000,
        (DONE, DONE, OPEN, OPEN),
        Stay(NOW_MS - 100_000),
        first_progress=Stay(NOW_MS - 10_000, (DONE, OPEN, OPEN, OPEN)),
    )
    assert status_of(running(), known).remaining_ms == 20_000
    # Nothing since the first record: the claim has to do.
    assert status_of(running(), replace(known, ranges=(DONE, OPEN, OPEN, OPEN))).remaining_ms == 300_000


def test_the_pace_is_not_that_of_a_moment() -> None:
    """What other ranges had read when the first were recorded is not known."""
    known = CompactionDetails(
        1000,
        (DONE, OPEN, OPEN, OPEN),
        Stay(NOW_MS - 10_000),
        first_progress=Stay(NOW_MS - 1, (DONE, OPEN, OPEN, OPEN)),
        movements={str(n): Movement(n, "w", 0, 200, 0, NOW_MS) for n in (1, 2, 3)},
    )
    assert status_of(running(), known).bytes_per_s == 85, "850 bytes in ten seconds"


@pytest.mark.parametrize(
    ("compaction", "silent_ms", "attempts", "alive", "waits_for"),
    [
        (Compaction(ID, "s"), 0, 0, True, "the coordinator's next poll"),
        (Compaction(ID, "s"), 0, 0, False, "a coordinator; none is running"),
        (Compaction(ID, "s"), 0, 0, None, "the coordinator; whether one is running is unknown"),
        (Compaction(ID, "s", CompactionState.SCHEDULED), 0, 0, True, "a free worker to claim it"),
        (
            Compaction(ID, "s", CompactionState.SCHEDULED),
            0,
            2,
            True,
            "a free worker to claim it after 2 failed attempts",
        ),
        (Compaction(ID, "s", CompactionState.COMPACTED), 0, 0, False, "a coordinator; none is running"),
        (
            Compaction(ID, "s", CompactionState.COMPACTED),
            0,
            0,
            True,
            "its commit, which may include compactions",
        ),
        (running(), TIMEOUT_MS, 0, True, ""),
        (
            running(),
            TIMEOUT_MS + 1,
            0,
            True,
            "its silent worker's compaction to be reclaimed by the coordinator's next poll",
        ),
        (running(), None, 0, True, ""),
        (
            replace(running(), worker=None),
            0,
            0,
            False,
            "its silent worker's compaction to be reclaimed by a coordinator",
        ),
    ],
)
def test_what_it_waits_for(
    compaction: Compaction[Any, Any, Any],
    silent_ms: int | None,
    attempts: int,
    alive: bool | None,
    waits_for: str,
) -> None:
    tries = tuple(Attempt("w", f"reason {n}", n) for n in range(attempts))
    heard_ms = None if silent_ms is None else NOW_MS - silent_ms
    found = status_of(compaction, CompactionDetails(1000, attempts=tries, heard_ms=heard_ms), alive)
    assert found.waits_for.startswith(waits_for)
    assert bool(found.waits_for) == bool(waits_for)
    assert found.attempts == attempts
    assert found.last_failure == (f"reason {attempts - 1}" if attempts else None)


def test_compacted_is_all_done() -> None:
    assert (
        status_of(Compaction(ID, "s", CompactionState.COMPACTED), CompactionDetails(1000)).share_done == 1.0
    )


@given(
    st.integers(0, 1000),
    st.lists(st.builds(RangeState, st.booleans(), st.integers(0, 2000)), max_size=5).map(tuple),
    st.dictionaries(st.text(max_size=2), st.builds(moving, st.integers(0, 6), st.integers(0, 3000))),
)
def test_nobody_is_ever_more_than_done(
    cost_bytes: int, ranges: tuple[RangeState, ...], movements: dict[str, Movement]
) -> None:
    known = CompactionDetails(cost_bytes, ranges, Stay(NOW_MS - 1000), movements=movements)
    found = status_of(running(), known)
    assert 0 <= found.done_bytes <= cost_bytes
    assert 0 <= found.share_done <= 1
    assert found.remaining_ms is None or found.remaining_ms >= 0

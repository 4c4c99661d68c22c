"""What is told of a fleet: how fast work goes, how long it had waited, and of whom by name."""

from __future__ import annotations

import pytest

from lithify.planning.fleet.labels import FORGOTTEN_MS, LabelLimiter
from lithify.planning.fleet.pace import FIRST_BYTES_PER_S, FIXED_BYTES, SlotPace, backlog_ms, mean_pace
from lithify.planning.fleet.waits import BOUNDS_MS, Waits, together


def test_a_pace_is_what_was_worked_off_of_late() -> None:
    pace = SlotPace()
    assert pace.bytes_per_s == 0
    pace.finished(9 * FIXED_BYTES, 10)
    assert pace.bytes_per_s == FIXED_BYTES
    for _ in range(100):
        pace.finished(9 * FIXED_BYTES, 5)
    assert pace.bytes_per_s == pytest.approx(2 * FIXED_BYTES, rel=0.001)


def test_a_backlog_is_in_seconds_of_one_slot() -> None:
    assert backlog_ms(0, 0, 0) == 0
    assert backlog_ms(2, 8 * FIXED_BYTES, FIXED_BYTES) == 10_000
    assert backlog_ms(0, 3 * FIRST_BYTES_PER_S, 0) == 3_000, "while nobody knows better"
    assert mean_pace([0, 10, 20]) == 15
    assert mean_pace([0]) == 0


def test_waits_are_counted_by_bucket_and_add_up() -> None:
    waits = Waits().plus(0).plus(1_000).plus(1_001).plus(10_000_000)
    assert waits.count == 4
    assert waits.total_ms == 10_002_001
    assert [waits.at_most_ms(part) for part in (0.25, 0.5, 0.75, 0.95)] == [250, 1_000, 2_000, None]
    assert Waits().at_most_ms(0.5) is None
    both = together([waits, Waits().plus(BOUNDS_MS[0])])
    assert (both.count, both.counts[0], both.total_ms) == (5, 2, waits.total_ms + BOUNDS_MS[0])
    assert together([]) == Waits()


def test_a_bounded_number_of_tenants_is_told_of_by_name() -> None:
    named = LabelLimiter(most=3)
    named.see((f"t{n}" for n in range(1_000)), ["vip"], 0)
    tenants = [*(f"t{n}" for n in range(1_000)), "vip", None]

    def told() -> set[str | None]:
        return {named.name(tenant) for tenant in tenants} - {None}

    assert told() == {"vip", "t0", "t1", "t2"}
    assert [named.name(tenant) for tenant in ("t1", "t7", None, "vip")] == ["t1", None, None, "vip"]
    named.see(["t0", "t9", None], ["vip"], FORGOTTEN_MS - 1)
    assert told() == {"vip", "t0", "t1", "t2"}, "who had something an hour ago keeps its place"
    named.see(["t9"], [], FORGOTTEN_MS)
    assert told() == {"t0", "t9"}

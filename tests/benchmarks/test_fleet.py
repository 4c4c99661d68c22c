"""What a fleet costs, and how long it lets wait, small."""

from __future__ import annotations

from typing import Any

from benchmarks.fleet import measure
from benchmarks.fleet_waits import MAX_START_S, START_LATENCY_S, cold_start


def test_an_idle_fleet_is_counted_and_writes_to_no_database() -> None:
    found = measure(scale=0.002, workers=2, coordinators=2, counted_s=600.0)
    assert found.databases == 20
    assert found.written_to_databases == 0
    assert found.per_minute["GET"] >= 20 * 2 / 5, "at least two requests a look, every five minutes"
    beats = 2 * 6 + 2 * 1
    assert beats <= found.per_minute["PUT"] < 4 * 6, (
        "coordinators every ten seconds, idle workers every minute"
    )
    assert found.dollars_a_day > 0


def test_a_busy_fleet_compacts_what_is_hot_and_leaves_the_rest_alone() -> None:
    given: dict[str, Any] = {"counted_s": 120.0, "warm_up_s": 400.0, "per_minute": 10}
    found = measure(scale=0.002, workers=2, coordinators=1, hot=4, **given)
    assert found.written_to_databases == 0
    assert found.compactions_per_minute >= 8
    assert found.per_minute["PUT"] >= 3 * found.compactions_per_minute


def test_a_cold_start_ends_when_all_is_seen() -> None:
    assert START_LATENCY_S < cold_start(20) < MAX_START_S

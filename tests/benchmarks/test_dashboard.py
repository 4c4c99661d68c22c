"""The measurement of the dashboard, with a small fleet."""

from __future__ import annotations

from pathlib import Path

from benchmarks.dashboard import fleet_of, serve


def test_it_asks_for_all_pages_of_a_fleet(tmp_path: Path) -> None:
    found = serve(fleet_of(tmp_path, 3))
    assert found.first.wall_ms > 0
    assert found.again.cpu_ms <= found.first.cpu_ms
    assert found.memory_mb >= 0

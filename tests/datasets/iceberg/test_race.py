"""A few seconds of the race in `race`; the command runs longer ones."""

from __future__ import annotations

from pathlib import Path

from tests.datasets.iceberg.race import race


def test_a_short_race(tmp_path: Path) -> None:
    outcome = race(tmp_path, 6.0, 1, in_processes=False)
    assert outcome.is_exact, outcome
    assert outcome.orphans_left == 0
    assert outcome.appends > 3
    assert outcome.deletes > 0
    assert outcome.compactions > 0

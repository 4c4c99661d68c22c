"""A run that dies between its lease and its epoch hands no foreign epoch on."""

from __future__ import annotations

from pathlib import Path

from tests.processes.lease_kills import kills

KILLS = 3
"""`make chaos` has 30."""


def test_killed_between_the_lease_and_the_epoch(tmp_path: Path) -> None:
    made = list(kills(tmp_path, KILLS))
    assert len({kill.point for kill in made}) == KILLS
    assert [kill for kill in made if not kill.is_good] == []

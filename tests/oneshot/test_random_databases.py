"""Random databases that both compactors have compacted. `make databases` plays two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oneshot.random_databases import compact_both

DATABASES = 20
PER_TEST = 10


@pytest.mark.parametrize("first_seed", range(0, DATABASES, PER_TEST))
def test_both_compactors_leave_the_same_rows(first_seed: int, tmp_path: Path) -> None:
    for seed in range(first_seed, first_seed + PER_TEST):
        compact_both(seed, tmp_path / str(seed))

"""Some of the random histories that three readers judge; `make histories` plays two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.iceberg.history_random import play

SEEDS = 2


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_what_is_left_of_a_history_is_whole(seed: int, tmp_path: Path) -> None:
    counts = play(seed, tmp_path)
    assert counts["snapshots judged"] > 0
    assert counts["snapshots expired"] > 0

"""Some of the random tables with garbage; `make garbage` plays a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.iceberg.garbage_random import play
from tests.s3 import S3

SEEDS = 6


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_nothing_needed_goes_and_nothing_of_ours_stays(seed: int, tmp_path: Path, s3: S3) -> None:
    counts = play(seed, tmp_path, s3 if seed % 3 == 0 else None)
    assert counts["files"] > counts["needed"]

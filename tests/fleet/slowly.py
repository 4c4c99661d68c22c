"""A compaction filter that keeps everything and takes its time, so that processes can be killed meanwhile."""

from __future__ import annotations

import time

from lithify.datasets.slatedb.hooks import FilterDecision, Keep, Row

FILTER = f"{__name__}:keep"
ROW_S = 0.1


def keep(row: Row) -> FilterDecision:
    """Each row, after a while."""
    time.sleep(ROW_S)
    return Keep()

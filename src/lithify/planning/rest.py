"""Backoff after failures, for a dataset or for the whole process. Pure.

1. A dataset whose attempts all fail, whichever compaction is claimed, is backed off from, for a pause that
grows with each failure in a row.
2. When failures of several datasets follow each other without a success, the process itself is at fault (its
engine, its connection to the store): then all datasets back off.

So one dataset that always fails does not slow the others, and a broken process does not use up the attempts
of all datasets.
"""

from __future__ import annotations

from lithify.base.backoff import GrowingPause


class Rest:
    """Counts failures in a row, per dataset and for the process, and computes the resulting backoffs."""

    def __init__(self, pause: GrowingPause) -> None:
        self._pause = pause
        self._of_dataset: dict[str, tuple[int, int]] = {}
        """Per dataset: the number of failures in a row, and the time of the last one."""
        self._of_process = (0, 0)
        self._failing: set[str] = set()
        """Datasets with a failure since the last success of any dataset."""

    def failed(self, url: str, now_ms: int) -> None:
        self._of_dataset[url] = self._of_dataset.get(url, (0, 0))[0] + 1, now_ms
        self._of_process = self._of_process[0] + 1, now_ms
        self._failing.add(url)

    def succeeded(self, url: str) -> None:
        self._of_dataset.pop(url, None)
        self._of_process = (0, 0)
        self._failing.clear()

    def lasts(self, url: str, now_ms: int) -> bool:
        if len(self._failing) > 1 and self._pause.lasts(*self._of_process, now_ms):
            return True
        return self._pause.lasts(*self._of_dataset.get(url, (0, 0)), now_ms)

"""Rest of who fails: a dataset, or the whole process. Pure.

1. A dataset whose attempts all fail, whatever is claimed, is left alone in between, for a pause that grows
   with each failure in a row.
2. When failures of several datasets follow each other without a success, it is the process that fails (its
   engine, its way to the store): then all of them rest.

So one dataset that is poisoned throughout does not slow the others, and a sick process does not use up
everybody's attempts.
"""

from __future__ import annotations

from lithify.base.backoff import GrowingPause


class Rest:
    """Failures in a row, of each dataset and of the process, and the pauses that follow them."""

    def __init__(self, pause: GrowingPause) -> None:
        self._pause = pause
        self._of_dataset: dict[str, tuple[int, int]] = {}
        """How many, and when the last one was."""
        self._of_process = (0, 0)
        self._failing: set[str] = set()
        """Datasets with a failure since anything succeeded."""

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

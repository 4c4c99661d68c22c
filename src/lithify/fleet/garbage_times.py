"""The schedule for collecting garbage of a coordinator's datasets and doing their other duties (pure).

Garbage is collected `COLLECT_AFTER_S` after the last commit, once the dataset has no active work: what
commits have left is garbage by then. If commits never end, it is collected `COLLECT_AT_LEAST_S` after the
first one, and again after as long; if there are never any, because nothing of the dataset can or may be
compacted, equally often.
"""

from __future__ import annotations

from lithify.fleet.handover import DatasetCheckpoint

COLLECT_AFTER_S = 600.0
COLLECT_AT_LEAST_S = 3_600.0
_AFTER_MS = round(COLLECT_AFTER_S * 1000)
_AT_LEAST_MS = round(COLLECT_AT_LEAST_S * 1000)


class GarbageTimes:
    """The schedule for one coordinator's datasets, in wall-clock milliseconds of the coordinator."""

    def __init__(self) -> None:
        self._committed_since_ms: dict[str, int] = {}
        """Time of the first commit since garbage was last collected, by URL."""

    def is_due(
        self,
        url: str,
        known: DatasetCheckpoint,
        now_ms: int,
        *,
        is_at_rest: bool,
        never_commits: bool = False,
    ) -> bool:
        """Return whether to collect garbage of a dataset now."""
        committed_ms, collected_ms = known.committed_ms, known.collected_ms
        if never_commits and (collected_ms is None or now_ms - collected_ms >= _AT_LEAST_MS):
            return True
        if committed_ms is None or (collected_ms is not None and collected_ms >= committed_ms + _AFTER_MS):
            return False
        is_quiet = is_at_rest and now_ms - committed_ms >= _AFTER_MS
        since_ms = self._committed_since_ms.setdefault(url, committed_ms)
        return is_quiet or now_ms - since_ms >= _AT_LEAST_MS

    def has_collected(self, url: str, now_ms: int) -> None:
        """Record that the dataset was handed to collection."""
        self._committed_since_ms[url] = now_ms

    def forget(self, url: str) -> None:
        """Forget a dataset that this coordinator owns no longer."""
        self._committed_since_ms.pop(url, None)

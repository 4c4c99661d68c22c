"""The schedule for collecting garbage of a coordinator's datasets and doing their other duties (pure).

The duties of every dataset that the fleet coordinates are due

1. `COLLECT_AFTER_S` after the last commit, once the dataset has no active work: what commits have left is
   garbage by then. If commits never end, `COLLECT_AT_LEAST_S` after the first one, and again after as long;
2. when the last collection said that more would be due: a checkpoint ends, a grace period is over, the
   interval of a policy has passed;
3. `COLLECT_AT_LEAST_S` after the last ones, if the dataset has changed since; likewise always if nothing of
   it can or may be compacted;
4. `COLLECT_EVERY_S` after the last ones;
5. after a change of its coordinator, unless the former one has left word of when they were done: within
   `COLLECT_FIRST_S`, for each dataset at a time of its own.

Duties count as done when their end is reported; if it is not, they are due again after `COLLECT_AT_LEAST_S`.
"""

from __future__ import annotations

from hashlib import blake2b

from lithify.fleet.handover import DatasetCheckpoint

COLLECT_AFTER_S = 600.0
COLLECT_AT_LEAST_S = 3_600.0
COLLECT_FIRST_S = 3_600.0
COLLECT_EVERY_S = 86_400.0
_AFTER_MS = round(COLLECT_AFTER_S * 1000)
_AT_LEAST_MS = round(COLLECT_AT_LEAST_S * 1000)
_FIRST_MS = round(COLLECT_FIRST_S * 1000)
_EVERY_MS = round(COLLECT_EVERY_S * 1000)


class GarbageTimes:
    """The schedule for one coordinator's datasets, in wall-clock milliseconds of the coordinator."""

    def __init__(self) -> None:
        self._committed_since_ms: dict[str, int] = {}
        """Time of the first commit since garbage was last collected, by URL."""
        self._requested_ms: dict[str, int] = {}
        """When duties were requested whose end has not been reported, by URL."""
        self._first_ms: dict[str, int] = {}
        """When the first duties are due of a dataset of which nothing is known, by URL."""

    def is_due(
        self,
        url: str,
        known: DatasetCheckpoint,
        now_ms: int,
        *,
        is_at_rest: bool,
        never_commits: bool = False,
    ) -> bool:
        """Return whether the duties of a dataset are due now."""
        requested_ms = self._requested_ms.get(url)
        if requested_ms is not None and abs(now_ms - requested_ms) < _AT_LEAST_MS:
            return False
        if self._is_due_after_commits(url, known, now_ms, is_at_rest=is_at_rest):
            return True
        if known.collected_ms is None and known.committed_ms is not None:
            return never_commits  # else after its commits
        if known.collected_ms is None:
            first_ms = self._first_ms.setdefault(url, now_ms + _share_of(url, _FIRST_MS))
            return never_commits or now_ms >= first_ms
        return self._is_due_again(known, known.collected_ms, now_ms, never_commits=never_commits)

    def requested(self, url: str, now_ms: int) -> None:
        """Record that the duties of the dataset were requested."""
        self._requested_ms[url] = now_ms

    def done(self, url: str, now_ms: int) -> None:
        """Record that they are done."""
        self._requested_ms.pop(url, None)
        self._first_ms.pop(url, None)
        self._committed_since_ms[url] = now_ms

    def forget(self, url: str) -> None:
        """Forget a dataset that this coordinator owns no longer."""
        for times in (self._committed_since_ms, self._requested_ms, self._first_ms):
            times.pop(url, None)

    def _is_due_after_commits(
        self, url: str, known: DatasetCheckpoint, now_ms: int, *, is_at_rest: bool
    ) -> bool:
        committed_ms, collected_ms = known.committed_ms, known.collected_ms
        if committed_ms is None or (collected_ms is not None and collected_ms >= committed_ms + _AFTER_MS):
            return False
        since_ms = self._committed_since_ms.setdefault(url, committed_ms)
        return (is_at_rest and now_ms - committed_ms >= _AFTER_MS) or now_ms - since_ms >= _AT_LEAST_MS

    def _is_due_again(
        self, known: DatasetCheckpoint, collected_ms: int, now_ms: int, *, never_commits: bool
    ) -> bool:
        passed_ms = now_ms - collected_ms
        has_changed = known.changed_ms is not None and known.changed_ms > collected_ms
        if passed_ms < 0 or passed_ms >= _EVERY_MS:
            return True
        if passed_ms >= _AT_LEAST_MS and (has_changed or never_commits):
            return True
        is_reported = known.due_ms is not None and now_ms >= known.due_ms
        return is_reported and passed_ms >= (_AT_LEAST_MS if has_changed else _AFTER_MS)


def _share_of(url: str, span_ms: int) -> int:
    """Return a part of the span that differs from dataset to dataset, and is always the same for each."""
    digest = blake2b(url.encode(errors="surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") * span_ms >> 32

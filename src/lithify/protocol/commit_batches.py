"""Batches of finished compactions, for datasets where each publication is costly for readers. Pure.

1. All work that is planned, active or finished between two idle moments is one *run*. Its finished part is
published once it makes one of `most` equal parts of the run, by bytes of inputs.
2. It is also published when nothing else is active and nothing more can start, when it has waited for
`max_wait_ms`, if that is given, and when it has `MAX_OUTPUTS`, so that its record stays small.

So a run makes about `most` publications at most, however many compactions it has, and ends with all of it
published. Waiting compactions are recorded as finished: no crash loses them.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_OUTPUTS = 20_000
"""This many recorded outputs take some megabytes."""


@dataclass(slots=True)
class CommitBatches:
    """The batches of one dataset."""

    max_wait_ms: int | None = None
    """`None`: no limit."""
    _published_bytes: int = 0
    """Bytes published in this run."""
    _run_bytes: int = 0
    """The largest size of the run so far, including its published part."""
    _since_ms: int | None = None
    """Since when a finished compaction waits."""

    def saw(self, outstanding_bytes: int) -> None:
        """Record how many bytes are planned, active or finished, and not published. 0 ends the run."""
        if not outstanding_bytes:
            self._published_bytes = self._run_bytes = 0
        self._run_bytes = max(self._run_bytes, self._published_bytes + outstanding_bytes)

    def is_due(self, ready_bytes: int, ready_outputs: int, most: int, now_ms: int) -> bool:
        """Return whether to publish the finished compactions while others are active. Times are of a
        monotonic clock."""
        if self._since_ms is None:
            self._since_ms = now_ms
        has_waited = self.max_wait_ms is not None and now_ms - self._since_ms >= self.max_wait_ms
        is_large = ready_bytes * most >= self._run_bytes or ready_outputs >= MAX_OUTPUTS
        return has_waited or is_large

    def published(self, ready_bytes: int) -> None:
        """Record that all finished compactions are published."""
        self._published_bytes += ready_bytes
        self._since_ms = None

"""When finished compactions are published together, where each publication costs readers something. Pure.

1. What is planned, under way or finished between two moments of rest is one *run*. The finished part of it is
   published once it makes one of `most` equal parts of the run, by bytes of inputs.
2. It is also published when nothing else is under way and nothing more can start, when it has waited for
   `max_wait_ms`, if that is given, and when it has `MAX_OUTPUTS`, so that its record stays small.

So a run makes about `most` publications at most, however many compactions it has, and ends with all of it
published. What waits is on record as finished: no crash loses it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_OUTPUTS = 20_000
"""So many outputs on record take some megabytes."""


@dataclass(slots=True)
class CommitBatches:
    """Those of one dataset."""

    max_wait_ms: int | None = None
    """`None`: without limit."""
    _published_bytes: int = 0
    """In this run."""
    _run_bytes: int = 0
    """The most that the run was seen to have, with what is published of it."""
    _since_ms: int | None = None
    """Since when something that is finished waits."""

    def saw(self, outstanding_bytes: int) -> None:
        """Take in how much is planned, under way or finished, and not published. 0 ends the run."""
        if not outstanding_bytes:
            self._published_bytes = self._run_bytes = 0
        self._run_bytes = max(self._run_bytes, self._published_bytes + outstanding_bytes)

    def is_due(self, ready_bytes: int, ready_outputs: int, most: int, now_ms: int) -> bool:
        """Whether to publish what is finished, while others are under way. Times are of a clock that does not
        jump."""
        if self._since_ms is None:
            self._since_ms = now_ms
        has_waited = self.max_wait_ms is not None and now_ms - self._since_ms >= self.max_wait_ms
        is_large = ready_bytes * most >= self._run_bytes or ready_outputs >= MAX_OUTPUTS
        return has_waited or is_large

    def published(self, ready_bytes: int) -> None:
        """Take in that all that was finished is published."""
        self._published_bytes += ready_bytes
        self._since_ms = None

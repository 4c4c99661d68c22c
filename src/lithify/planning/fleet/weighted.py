"""Turns in proportion to weights: start-time fair queueing.

1. A turn costs its key 1 / weight: the key's next turn *starts* so much later in virtual time.
2. The next turn goes to the earliest start; among equals, to the first one offered.
3. Virtual time is the start of the last turn given. A key that has not waited meanwhile starts no earlier
than that: it can neither save up turns nor is it punished for those it had.

Invariant: over any time in which all keys wait, each has turns in proportion to its weight, within one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")

_TURN = 1 << 40
"""The cost of a turn at weight 1, in ticks of virtual time: large enough that rounding never matters."""
MAX_REMEMBERED = 10_000


class WeightedTurns(Generic[KeyT]):
    """Tracks when the next turn of each key starts. May be lost: then all keys start together."""

    def __init__(self) -> None:
        self._now = 0
        self._starts: dict[KeyT, int] = {}

    def next(self, weights: Mapping[KeyT, int]) -> KeyT:
        """Return the key that has the next turn, given the waiting keys with their weights of at least 1."""
        return min(weights, key=self._start)

    def had(self, key: KeyT, weight: int) -> None:
        """Record that `key` had a turn."""
        self._now = self._start(key)
        self._starts[key] = self._now + _TURN // max(1, weight)
        if len(self._starts) > MAX_REMEMBERED:
            del self._starts[next(iter(self._starts))]

    def _start(self, key: KeyT) -> int:
        return max(self._now, self._starts.get(key, self._now))

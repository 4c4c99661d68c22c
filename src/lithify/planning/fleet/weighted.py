"""Turns in proportion to weights: start-time fair queueing.

1. Who has a turn pays 1 / weight for it: its next turn *starts* so much later in virtual time.
2. The next turn goes to the earliest start; of equals to the first in the order in which they are offered.
3. Virtual time is the start of the last turn given. Who has not waited meanwhile starts no earlier than
   that: it can neither save up turns nor is it punished for those it had.

Invariant: over any time in which they all wait, each has turns in proportion to its weight, within one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")

_TURN = 1 << 40
"""What a turn costs at weight 1, in ticks of virtual time: so many that rounding never matters."""
MAX_REMEMBERED = 10_000


class WeightedTurns(Generic[KeyT]):
    """Remembers when the next turn of whom starts. May be lost: all then start together."""

    def __init__(self) -> None:
        self._now = 0
        self._starts: dict[KeyT, int] = {}

    def next(self, weights: Mapping[KeyT, int]) -> KeyT:
        """Whose turn it is, of these who wait, with their weights of at least 1."""
        return min(weights, key=self._start)

    def had(self, key: KeyT, weight: int) -> None:
        """`key` had a turn."""
        self._now = self._start(key)
        self._starts[key] = self._now + _TURN // max(1, weight)
        if len(self._starts) > MAX_REMEMBERED:
            del self._starts[next(iter(self._starts))]

    def _start(self, key: KeyT) -> int:
        return max(self._now, self._starts.get(key, self._now))

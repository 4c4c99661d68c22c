"""Whose turn it is: the most urgent first, with ageing, so that nobody waits for ever. Pure.

1. Each who waits has a priority, 0 (may wait) to 1 (urgent), as it is now.
2. Urgency is the priority plus 1 / `AGEING_TURNS` for each turn that somebody else was given meanwhile. The
   most urgent has the next turn; of equals the first in the order in which they are offered.
3. Who had a turn begins again at its priority alone.

Invariant (with priorities from 0 to 1, however they change): of N who wait, each has a turn after at most
`AGEING_TURNS` + N - 1 turns of others. After `AGEING_TURNS` of them it is at least as urgent as anybody who
has just had one, so from then on each of the others comes before it at most once.

Counted in turns, not in time: a slow engine makes nobody more urgent than another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")

AGEING_TURNS = 8
"""So many turns of others outweigh the whole span of priorities."""


class Turns(Generic[KeyT]):
    """Remembers how many turns went by for whom. May be lost: everybody then begins to wait anew."""

    def __init__(self) -> None:
        self._passed_over: dict[KeyT, int] = {}

    def order(self, offers: Mapping[KeyT, float]) -> list[KeyT]:
        """All who wait with their priorities, the next first."""
        return sorted(offers, key=lambda key: -self._urgency(key, offers[key]))

    def had(self, key: KeyT, waiting: Iterable[KeyT]) -> None:
        """`key` had a turn while all of these waited."""
        for other in waiting:
            self._passed_over[other] = self._passed_over.get(other, 0) + 1
        self._passed_over.pop(key, None)

    def forget(self, key: KeyT) -> None:
        """It does not wait any more."""
        self._passed_over.pop(key, None)

    def keep(self, keys: Collection[KeyT]) -> None:
        """Forget all but these."""
        self._passed_over = {key: count for key, count in self._passed_over.items() if key in keys}

    def _urgency(self, key: KeyT, priority: float) -> float:
        return priority + self._passed_over.get(key, 0) / AGEING_TURNS

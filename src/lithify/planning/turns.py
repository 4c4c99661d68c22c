"""Turns by urgency with ageing, so that no key starves. Pure.

1. Each waiting key has a current priority, 0 (may wait) to 1 (urgent).
2. Urgency is the priority plus 1 / `AGEING_TURNS` for each turn that another key was given meanwhile. The
most urgent key has the next turn; among equals, the first one offered.
3. After a turn, a key starts again at its priority alone.

Invariant (with priorities from 0 to 1, however they change): of N waiting keys, each has a turn after at most
`AGEING_TURNS` + N - 1 turns of others. After `AGEING_TURNS` of them it is at least as urgent as any key that
has just had a turn, so from then on each of the others comes before it at most once.

Ageing is counted in turns, not in time: a slow engine changes no urgency.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")

AGEING_TURNS = 8
"""The number of turns of others that outweighs the whole span of priorities."""


class Turns(Generic[KeyT]):
    """Counts the turns that each key has waited. May be lost: then all keys start to wait anew."""

    def __init__(self) -> None:
        self._passed_over: dict[KeyT, int] = {}

    def order(self, offers: Mapping[KeyT, float]) -> list[KeyT]:
        """Return all waiting keys, given with their priorities, the next one first."""
        return sorted(offers, key=lambda key: -self._urgency(key, offers[key]))

    def had(self, key: KeyT, waiting: Iterable[KeyT]) -> None:
        """Record that `key` had a turn while all of `waiting` waited."""
        for other in waiting:
            self._passed_over[other] = self._passed_over.get(other, 0) + 1
        self._passed_over.pop(key, None)

    def forget(self, key: KeyT) -> None:
        """Forget a key that does not wait any more."""
        self._passed_over.pop(key, None)

    def keep(self, keys: Collection[KeyT]) -> None:
        """Forget all other keys."""
        self._passed_over = {key: count for key, count in self._passed_over.items() if key in keys}

    def _urgency(self, key: KeyT, priority: float) -> float:
        return priority + self._passed_over.get(key, 0) / AGEING_TURNS

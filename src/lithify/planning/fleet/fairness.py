"""Fair turns and turns in proportion to weights.

*Fair turns*, so that no key starves however urgent others are: every fourth claim goes to the key that has
waited longest.

Urgent work overtakes all other work; urgency alone would let a hot dataset keep the others out. With ageing
alone, a thousand keys that have waited long would all come before a writer that is about to stall. So:

1. Of every `FAIR_EVERY` claims one is *fair*: it goes to the key that was passed over by most claims since
its last one (`lithify.planning.turns`, all at the same priority). The others go by urgency.
2. Only claims that a waiting key could have had count for it: not those while its tenant had no slot, for
example.
3. Claims are counted by scope (`is_due`), so that a limit which only leaves room at some claims cannot keep
the fair ones from any key.

Invariant: with N waiting keys, none is passed over by more than `longest_wait_claims(N)` claims of its scope.
Each fair claim goes to the key with the highest count; a key that had a claim starts at 0, behind all waiting
keys, so each of the others goes first at most once.

*Turns in proportion to weights*: start-time fair queueing.

1. A turn costs its key 1 / weight: the key's next turn *starts* so much later in virtual time.
2. The next turn goes to the earliest start; among equals, to the first one offered.
3. Virtual time is the start of the last turn given. A key that has not waited meanwhile starts no earlier
than that: it can neither save up turns nor is it punished for those it had.

Invariant: over any time in which all keys wait, each has turns in proportion to its weight, within one turn.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from lithify.planning.turns import Turns

KeyT = TypeVar("KeyT")

FAIR_EVERY = 4


def longest_wait_claims(waiting: int) -> int:
    """Return how many claims of others one of `waiting` keys may have to wait for."""
    return FAIR_EVERY * (waiting + 1)


class FairTurns(Generic[KeyT]):
    """Counts the claims that passed over each waiting key."""

    def __init__(self) -> None:
        self._turns: Turns[KeyT] = Turns()
        self._since_fair: dict[Hashable, int] = {}

    def is_due(self, scope: Hashable) -> bool:
        """Return whether the next claim of this scope is fair."""
        return self._since_fair.get(scope, 0) >= FAIR_EVERY - 1

    def longest(self, waiting: Iterable[KeyT]) -> KeyT:
        """Return the key that has waited longest; among equals the first."""
        return self._turns.order(dict.fromkeys(waiting, 0.0))[0]

    def had(self, key: KeyT, waiting: Iterable[KeyT]) -> None:
        """Record that `key` had a claim that all of `waiting` could have had."""
        self._turns.had(key, waiting)

    def count(self, scope: Hashable, *, is_fair: bool) -> None:
        """Record a claim of this scope, and whether it went to the key that had waited longest in it."""
        self._since_fair[scope] = 0 if is_fair else self._since_fair.get(scope, 0) + 1

    def forget(self, key: KeyT) -> None:
        """Forget a key that does not wait any more."""
        self._turns.forget(key)

    def keep(self, keys: Collection[KeyT]) -> None:
        """Forget all other keys."""
        self._turns.keep(keys)


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

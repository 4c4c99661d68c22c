"""That nobody waits for ever, however urgent others are: every fourth claim is for who has waited longest.

Urgent work overtakes everything else; with nothing but that, a hot dataset would keep the others out. With
ageing alone, a thousand who have waited long would all come before a writer that stalls. So:

1. Of every `FAIR_EVERY` claims one is *fair*: it goes to the one that was passed over by most claims since
   its last one (`lithify.planning.turns`, all at the same priority). The others go by urgency.
2. Only claims that it could have had count for one that waits: not those while its tenant had no slot, for
   example.
3. Claims are counted by scope (`is_due`), so that a limit which only ever leaves room at some claims cannot
   keep the fair ones from anybody.

Invariant: with N that wait, none is passed over by more than `longest_wait_claims(N)` claims of its scope.
At each fair claim the one with the most goes; who had a claim begins at none, behind all who wait, so each
of the others goes first at most once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

from lithify.planning.turns import Turns

KeyT = TypeVar("KeyT")

FAIR_EVERY = 4


def longest_wait_claims(waiting: int) -> int:
    """How many claims of others one of so many may have to wait for."""
    return FAIR_EVERY * (waiting + 1)


class FairTurns(Generic[KeyT]):
    """Counts the claims that passed who waits over."""

    def __init__(self) -> None:
        self._turns: Turns[KeyT] = Turns()
        self._since_fair: dict[Hashable, int] = {}

    def is_due(self, scope: Hashable) -> bool:
        """Whether the next claim of this scope is fair."""
        return self._since_fair.get(scope, 0) >= FAIR_EVERY - 1

    def longest(self, waiting: Iterable[KeyT]) -> KeyT:
        """Who waits longest; of equals the first."""
        return self._turns.order(dict.fromkeys(waiting, 0.0))[0]

    def had(self, key: KeyT, waiting: Iterable[KeyT]) -> None:
        """`key` had a claim that all of these could have had."""
        self._turns.had(key, waiting)

    def count(self, scope: Hashable, *, is_fair: bool) -> None:
        """A claim of this scope was made; whether it went to who had waited longest in it."""
        self._since_fair[scope] = 0 if is_fair else self._since_fair.get(scope, 0) + 1

    def forget(self, key: KeyT) -> None:
        """It does not wait any more."""
        self._turns.forget(key)

    def keep(self, keys: Collection[KeyT]) -> None:
        """Forget all but these."""
        self._turns.keep(keys)

"""Histogram of how long claimed tasks had waited since they were first seen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from lithify.base.documents import Count

BOUNDS_MS = (250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 7_200_000)
"""Upper bounds of the buckets; one more bucket has the rest."""
_BUCKETS = len(BOUNDS_MS) + 1


@dataclass(frozen=True, slots=True)
class Waits:
    """Counts since a process began; two of them can be added."""

    counts: Annotated[tuple[Count, ...], Len(_BUCKETS, _BUCKETS)] = (0,) * _BUCKETS
    total_ms: Count = 0

    def plus(self, waited_ms: int) -> Waits:
        """Return the counts with one more wait."""
        place = bisect_left(BOUNDS_MS, waited_ms)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Waits(counts, self.total_ms + max(0, waited_ms))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def at_most_ms(self, part: float) -> int | None:
        """Return the bound within which this part of the tasks (0 to 1) waited; `None` when there are none,
        or when it is beyond the last bound."""
        found = 0
        for bound_ms, count in zip(BOUNDS_MS, self.counts[:-1], strict=True):
            found += count
            if self.count and found >= part * self.count:
                return bound_ms
        return None


NO_WAITS = Waits()


def together(waits: Iterable[Waits]) -> Waits:
    """Return the sum of all counts."""
    all_of = tuple(waits)
    if not all_of:
        return NO_WAITS
    counts = tuple(map(sum, zip(*(one.counts for one in all_of), strict=True)))
    return Waits(counts, sum(one.total_ms for one in all_of))

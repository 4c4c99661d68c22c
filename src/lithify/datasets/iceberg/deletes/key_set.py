"""Very many texts of which is only asked whether they are there, in eight bytes each.

1. A text counts as its hash of 64 bits, Python's own. That is another one in every process, so nothing is
   written down.
2. What came last is in a set. Once that has `MAX_RECENT`, it becomes a sorted array; two arrays of like size
   become one, up to `MAX_SORTED`, so that few of them are searched and none is ever copied as a whole.

Invariant: what was added is found, since equal texts have equal hashes. The other way round, a text may be
taken for another one that has the same hash: of ten million, by one in a million millions. So this is for
names that *keep* a file, where it would be one file too many that stays. It must never say what may go.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_RECENT = 1 << 16
MAX_SORTED = 1 << 22

Hashes = npt.NDArray[np.int64]


class KeySet:
    """Texts."""

    def __init__(self, max_recent: int = MAX_RECENT) -> None:
        self._max_recent = max_recent
        self._recent: set[int] = set()
        self._sorted: list[Hashes] = []

    def add(self, key: str) -> None:
        self._recent.add(hash(key))
        if len(self._recent) >= self._max_recent:
            self._sort_recent()

    def __contains__(self, key: str) -> bool:
        one = hash(key)
        return one in self._recent or any(_is_in(one, known) for known in self._sorted)

    def has(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Of each hash (`hash`), whether a text that has it is there."""
        found = np.fromiter((one in self._recent for one in hashes.tolist()), np.bool_, len(hashes))
        for known in self._sorted:
            places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            found |= known[places] == hashes
        return found

    def _sort_recent(self) -> None:
        merged = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
        self._recent.clear()
        while self._sorted and len(self._sorted[-1]) <= len(merged) and 2 * len(merged) <= MAX_SORTED:
            merged = np.sort(np.concatenate((self._sorted.pop(), merged)), kind="stable")
        self._sorted.append(merged)


def _is_in(one: int, known: Hashes) -> bool:
    place = int(np.searchsorted(known, one))
    return place < len(known) and int(known[place]) == one

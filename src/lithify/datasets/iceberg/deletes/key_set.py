"""A membership set for very many texts, in eight bytes each.

1. A text is stored as its 64-bit hash, Python's own. The hash differs between processes, so it is never
   written to storage.
2. Recent texts are in a set. At `MAX_RECENT`, the set is converted to a sorted array; two arrays of similar
   size are merged, up to `MAX_SORTED`, so that few arrays are searched and all are never copied at once.

Invariant: every added text is found, since equal texts have equal hashes. A text may be mistaken for another
one with the same hash: with ten million texts, at a probability of one in a million millions. So the set is
only for names that *keep* a file, where an error keeps one file too many. It must never select files to
delete.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_RECENT = 1 << 16
MAX_SORTED = 1 << 22

Hashes = npt.NDArray[np.int64]


class KeySet:
    """A set of texts."""

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
        """Return, for each hash (`hash`), whether a text with it is in the set."""
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

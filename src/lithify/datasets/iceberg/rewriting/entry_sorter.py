"""Sorting of packed entries in bounded memory.

1. Entries are held in memory as they arrive. When they exceed the buffer, they are sorted and written to the
   local disk, as a run.
2. At the end the runs and the entries in memory are merged.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from lithify.datasets.iceberg.format.manifest_writer import Packed

BUFFER_BYTES = 128 * 1024 * 1024
_OVERHEAD_BYTES = 1000
"""The approximate memory of a key and the objects around an entry."""

Keyed = tuple[tuple[Any, ...], Packed]


class EntrySorter:
    """A sorter of entries by their keys, with runs in `folder`, which must belong to this process alone."""

    def __init__(self, folder: Path, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._folder = folder
        self._buffer_bytes = buffer_bytes
        self._held: list[Keyed] = []
        self._held_bytes = 0
        self._runs: list[Path] = []

    def add(self, key: tuple[Any, ...], entry: Packed) -> None:
        self._held.append((key, entry))
        self._held_bytes += len(entry.data) + _OVERHEAD_BYTES
        if self._held_bytes > self._buffer_bytes:
            self._spill()

    def drain(self) -> Iterator[Packed]:
        """Yield all entries in order. Call it only once."""
        self._held.sort(key=itemgetter(0))
        sources: list[Iterable[Keyed]] = [self._held]
        sources += [_read(path) for path in self._runs]
        for _, entry in heapq.merge(*sources, key=itemgetter(0)):
            yield entry
        self._held = []
        for path in self._runs:
            path.unlink()

    def _spill(self) -> None:
        self._held.sort(key=itemgetter(0))
        path = self._folder / f"run-{len(self._runs)}"
        with path.open("wb") as out:
            for one in self._held:
                pickle.dump(one, out, pickle.HIGHEST_PROTOCOL)
        self._runs.append(path)
        self._held, self._held_bytes = [], 0


def _read(path: Path) -> Iterator[Keyed]:
    with path.open("rb") as run:
        while run.peek(1):
            yield pickle.load(run)  # written by this process, in its own folder

"""Positions of rows deleted by position delete files, for reading data files in sequence.

1. A delete file may apply to a thousand data files. It is read once for all remaining ones, and only their
   rows are kept, until the last of them has been requested.
2. Delete files that a data file needs and that are not cached yet are read together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from lithify.base.concurrency import all_of
from lithify.datasets.iceberg.compaction.task import SourceFile
from lithify.datasets.iceberg.deletes.position_deletes import MAX_READERS, positions_of
from lithify.datasets.iceberg.errors import translated

_NONE = np.empty(0, np.int64)
_Found = dict[str, npt.NDArray[np.int64]]
"""Positions, by the path of the data file."""


class DeletedRows:
    """The deleted positions of these sources; each source is requested once."""

    def __init__(self, io: FileIO, sources: Iterable[SourceFile]) -> None:
        self._io = io
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        """The data files that a delete file applies to and that were not requested yet, by delete file."""
        for source in sources:
            for delete in source.delete_files:
                self._waiting[delete.file_path].add(source.file.file_path)
        self._known: dict[str, _Found] = {}

    def of(self, source: SourceFile) -> npt.NDArray[np.int64]:
        """Return the source's distinct deleted positions, ascending."""
        missing = [delete for delete in source.delete_files if delete.file_path not in self._known]
        for delete, found in zip(missing, all_of(map(self._reading, missing), MAX_READERS), strict=True):
            self._known[delete.file_path] = found
        positions = [self._taken(delete.file_path, source.file.file_path) for delete in source.delete_files]
        return np.unique(np.concatenate([_NONE, *positions]))

    def _reading(self, delete: DataFile) -> Callable[[], _Found]:
        return partial(_read, self._io, delete, frozenset(self._waiting[delete.file_path]))

    def _taken(self, delete_path: str, path: str) -> npt.NDArray[np.int64]:
        found = self._known[delete_path].pop(path, _NONE)
        self._waiting[delete_path].discard(path)
        if not self._waiting[delete_path]:
            del self._known[delete_path]
        return found


def _read(io: FileIO, delete: DataFile, paths: frozenset[str]) -> _Found:
    with translated(f"reading {delete.file_path}"):
        return positions_of(io, delete, paths).by_path()

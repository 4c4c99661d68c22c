"""Positions of rows deleted by position delete files and deletion vectors, for reading data files in
sequence.

1. A delete file may apply to a thousand data files. It is read once for all remaining ones, and only their
   rows are kept, until the last of them has been requested.
2. Delete files that a data file needs and that are not cached yet are read together.
3. If a data file has a deletion vector, no position delete file applies to it (Iceberg format: deletion
   vectors). The footer of a Puffin file is read once for all its vectors, and a vector when it is requested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from lithify.base.concurrency import all_of
from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.compaction.task import SourceFile
from lithify.datasets.iceberg.deletes.position_deletes import MAX_READERS, positions_of
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, VectorReader
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.manifests import is_vector
from lithify.datasets.iceberg.io.prefetch import DataPath, PrefetchExtent

Positions = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)
_Found = dict[str, Positions]
"""Positions, by the path of the data file."""


class DeletedPositions(Protocol):
    """The deleted positions of a data file."""

    def between(self, start: int, end: int) -> Positions:
        """Return the positions from start to end (exclusive), ascending."""


@dataclass(frozen=True, slots=True)
class ListedPositions:
    """Distinct ascending positions in memory."""

    positions: Positions

    def between(self, start: int, end: int) -> Positions:
        """Return the positions from start to end (exclusive), ascending."""
        first, last = np.searchsorted(self.positions, [start, end])
        return self.positions[first:last]


class DeletedRows:
    """The deleted positions of these sources; each source is requested once."""

    def __init__(self, io: FileIO, sources: Iterable[SourceFile]) -> None:
        self._io = io
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        """The data files that a delete file applies to and that were not requested yet, by delete file."""
        for source in sources:
            for delete in _applied(source):
                self._waiting[delete.file_path].add(source.file.file_path)
        self._known: dict[str, _Found] = {}
        self._puffins: dict[str, VectorReader] = {}

    def of(self, source: SourceFile) -> DeletedPositions:
        """Return the source's deleted positions."""
        path, deletes = source.file.file_path, _applied(source)
        if deletes and is_vector(deletes[0]):
            return self._vector(deletes[0], source)
        missing = [delete for delete in deletes if delete.file_path not in self._known]
        for delete, found in zip(missing, all_of(map(self._reading, missing), MAX_READERS), strict=True):
            self._known[delete.file_path] = found
        positions = [self._taken(delete.file_path, path) for delete in deletes]
        return ListedPositions(np.unique(np.concatenate([_NONE, *positions])))

    def _vector(self, entry: DataFile, source: SourceFile) -> DeletionVector:
        path, data_path = entry.file_path, source.file.file_path
        with translated(f"reading {path}"):
            reader = self._puffins.get(path)
            if reader is None:
                stream = DataPath.of(entry, PrefetchExtent.FOOTER).open(self._io)
                reader = self._puffins[path] = VectorReader(stream, path)
            vector = reader.read(entry, data_path, source.file.record_count)
        self._waiting[path].discard(data_path)
        if not self._waiting[path]:
            del self._puffins[path]
        return vector

    def _reading(self, delete: DataFile) -> Callable[[], _Found]:
        return partial(_read, self._io, delete, frozenset(self._waiting[delete.file_path]))

    def _taken(self, delete_path: str, path: str) -> npt.NDArray[np.int64]:
        found = self._known[delete_path].pop(path, _NONE)
        self._waiting[delete_path].discard(path)
        if not self._waiting[delete_path]:
            del self._known[delete_path]
        return found


def _applied(source: SourceFile) -> Sequence[DataFile]:
    """Return the position delete files that apply to a source, or only its deletion vector."""
    vectors = [delete for delete in source.delete_files if is_vector(delete)]
    if len(vectors) > 1:
        says = f"has {len(vectors)} deletion vectors, of which readers choose different ones"
        raise CorruptObject(source.file.file_path, says)
    return vectors or source.delete_files


def _read(io: FileIO, delete: DataFile, paths: frozenset[str]) -> _Found:
    with translated(f"reading {delete.file_path}"):
        return positions_of(io, delete, paths).by_path()

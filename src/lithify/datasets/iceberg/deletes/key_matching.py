"""Finding the rows that deleted keys delete: any number of keys and rows, in bounded memory.

1. The deleted keys are read once. Their hashes go into a filter (`kernel.keys`), the keys themselves, with
   the sequence numbers of their deletes, to one of several *partitions*, chosen by hash.
2. The key columns of each data file are read once. Rows that the filter finds go to the same partitions.
3. The partitions are matched one after the other, by values: a row is deleted if the newest delete of its key
   is younger than the row's file.

Partitions are held in memory up to `HELD_BYTES`, and beyond it on the local disk. Memory: the filter, of at
most `MAX_FILTER_BYTES`; twice `HELD_BYTES`; the keys of a partition, about `KEYS_OF_PARTITION`; and the
result, at most one bit for each row of the files, and two bytes for each deleted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithify.datasets.iceberg.deletes.equality_keys import NewestDeletes
from lithify.datasets.iceberg.deletes.key_columns import Hashes, hashes_of
from lithify.datasets.iceberg.deletes.vectors import DeletionVector
from lithify.datasets.iceberg.kernel.keys import add_hashes, find_hashes

KEYS_OF_PARTITION = 1 << 20
MAX_PARTITIONS = 1 << 10
HELD_BYTES = 64 * 1024 * 1024
"""The size of the rows of partitions, of keys or of data files, up to which they are held in memory."""
MAX_FILTER_BYTES = 256 * 1024 * 1024
_BITS_PER_KEY = 16
_OTHER = np.uint64(0xD6E8FEB86659FD93)
"""An odd factor, after which the high bits of a hash choose its partition."""

Numbers = npt.NDArray[np.int64]


class KeyMatcher:
    """The deleted keys of the same columns, and the rows of data files that may have one."""

    def __init__(self, folder: Path, most_keys: int) -> None:
        """`folder` belongs to this matcher alone. More than `most_keys` keys make it slower."""
        words = 1 << max(0, (most_keys * _BITS_PER_KEY // 64).bit_length())
        self._filter = np.zeros(min(words, MAX_FILTER_BYTES // 8), np.uint64)
        parts = max(1, min(MAX_PARTITIONS, -(-most_keys // KEYS_OF_PARTITION)))
        self._keys = _Partitions(folder / "keys", parts)
        self._rows = _Partitions(folder / "rows", parts)

    def add_keys(self, keys: pa.RecordBatch, number: int) -> None:
        """Add deleted keys, with the sequence number of their delete."""
        hashes = hashes_of(keys)
        add_hashes(self._filter, hashes)
        self._keys.add(_with(keys, number=np.full(len(keys), number, np.int64)), hashes)

    def add_rows(self, keys: pa.RecordBatch, file: int, start: int, number: int) -> None:
        """Add consecutive rows of a data file: its number among the files, the position of the first row, and
        the file's sequence number."""
        hashes = hashes_of(keys)
        found = np.zeros(len(keys), np.bool_)
        find_hashes(self._filter, hashes, found)
        if not found.any():
            return
        positions = start + np.flatnonzero(found)
        chosen = keys.filter(pa.array(found))
        where = {"file": np.full(len(chosen), file, np.int64), "position": positions}
        self._rows.add(_with(chosen, number=np.full(len(chosen), number, np.int64), **where), hashes[found])

    def deleted(self) -> dict[int, DeletionVector]:
        """Return the deleted rows of each file that has some, by its number. Call it once, at the end."""
        vectors: dict[int, DeletionVector] = {}
        for keys, rows in zip(self._keys.drain(), self._rows.drain(), strict=True):
            if not keys or not rows:
                continue
            newest = NewestDeletes(
                [(batch.drop_columns(["number"]), batch["number"].to_numpy()) for batch in keys]
            )
            for batch in rows:
                is_deleted = newest.of(batch) > batch["number"].to_numpy()
                files, positions = (
                    batch["file"].to_numpy()[is_deleted],
                    batch["position"].to_numpy()[is_deleted],
                )
                _collect(vectors, files, positions)
        return vectors


def _collect(vectors: dict[int, DeletionVector], files: Numbers, positions: Numbers) -> None:
    if not len(files):
        return
    order = np.argsort(files, kind="stable")
    files, positions = files[order], positions[order]
    numbers, starts = np.unique(files, return_index=True)
    for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], len(files)], strict=True):
        found = DeletionVector.of(positions[start:end])
        vectors[number] = vectors[number] | found if number in vectors else found


def _with(keys: pa.RecordBatch, **columns: Numbers) -> pa.RecordBatch:
    arrays = [*keys.columns, *map(pa.array, columns.values())]
    return pa.RecordBatch.from_arrays(arrays, [*keys.schema.names, *columns])


class _Partitions:
    """Rows by partition, in a file once they are too many for memory."""

    def __init__(self, path: Path, parts: int) -> None:
        self._path = path
        self._parts = parts
        self._held: list[pa.RecordBatch] = []
        self._of_held: list[npt.NDArray[np.uint16]] = []
        self._held_bytes = 0
        self._writer: pa.RecordBatchFileWriter | None = None
        self._written: list[list[int]] = [[] for _ in range(parts)]
        """The numbers of each partition's batches in the file."""
        self._batches = 0

    def add(self, rows: pa.RecordBatch, hashes: Hashes) -> None:
        """Add rows with these hashes."""
        parts = ((hashes * _OTHER) >> np.uint64(48)) * np.uint64(self._parts) >> np.uint64(16)
        self._held.append(rows)
        self._of_held.append(parts.astype(np.uint16))
        self._held_bytes += rows.nbytes
        if self._held_bytes > HELD_BYTES:
            self._spill()

    def drain(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows of each partition."""
        held = self._divided()
        if self._writer is None:
            yield from held
            return
        self._writer.close()
        with pa.OSFile(str(self._path)) as stream, pa.ipc.open_file(stream) as reader:
            for written, rest in zip(self._written, held, strict=True):
                yield [*(reader.get_batch(number) for number in written), *rest]

    def _divided(self) -> list[list[pa.RecordBatch]]:
        """Return the held rows of each partition, and hold none."""
        if not self._held:
            return [[] for _ in range(self._parts)]
        table = pa.Table.from_batches(self._held).combine_chunks()
        parts = np.concatenate(self._of_held)
        self._held, self._of_held, self._held_bytes = [], [], 0
        if self._parts == 1:
            return [table.to_batches()]
        table = table.take(pa.array(np.argsort(parts, kind="stable"))).combine_chunks()
        edges = np.searchsorted(np.sort(parts), np.arange(self._parts + 1)).tolist()
        return [
            table.slice(start, end - start).to_batches() if end > start else []
            for start, end in pairwise(edges)
        ]

    def _spill(self) -> None:
        for part, batches in enumerate(self._divided()):
            for batch in batches:
                if self._writer is None:
                    self._writer = pa.ipc.new_file(str(self._path), batch.schema)
                self._writer.write_batch(batch)
                self._written[part].append(self._batches)
                self._batches += 1

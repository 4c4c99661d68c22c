"""Rows of a range, sorted into pieces by time, in bounded memory.

1. Batches are kept in memory as they arrive.
2. Whenever they exceed the buffer, all batches are written to the local disk: one file for each piece, in
   Arrow's stream format. A sample of the times is kept for each piece.
3. At the end each piece is returned, in order of time, as tables that fit the buffer: as one table if it
   fits; else cut by time at quantiles of its sample, so that tables follow each other in time. A table is
   larger only if very many rows have the same time.

Rows without a time belong to the first piece, and to its first table. Without a time column all rows are one
piece, and its tables follow each other in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from lithify.base.scratch import Scratch
from lithify.datasets.iceberg.format.time_column import Times, times_us

SAMPLE_TIMES_PER_BATCH = 128
MAX_DEPTH = 8
"""The maximum number of times that a piece is cut again because the sample was not representative."""


_NO_TIMES: Times = np.zeros(0, np.int64)


class SpilledRows:
    """Rows of one time range: tables in memory, and a file of the rows on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: ipc.RecordBatchStreamWriter | None = None
        self.held: list[pa.Table] = []
        self.rows = 0
        self.disk_bytes = 0
        self.sample: list[Times] = []
        self.sources: set[int] = set()
        """The sources of its rows."""

    def add(self, table: pa.Table, times: Times, source: int) -> None:
        """Append rows, in memory."""
        self.sources.add(source)
        self.held.append(table)
        self.rows += table.num_rows
        step = max(1, ceil(len(times) / SAMPLE_TIMES_PER_BATCH))
        self.sample.append(times[::step].copy())

    def spill(self) -> None:
        """Write the rows in memory to disk."""
        for table in self.held:
            if self._writer is None:
                self._writer = ipc.new_stream(pa.OSFile(str(self._path), "wb"), table.schema)
            self._writer.write_table(table)
            self.disk_bytes += table.nbytes
        self.held = []

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows in the order of arrival, one batch at a time."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            with pa.memory_map(str(self._path)) as source, ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        yield from self.held

    def drop(self) -> None:
        """Free memory and disk."""
        self.held = []
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)


class Pieces:
    """The rows of a range by piece. Use as a context manager: it owns a temporary folder."""

    def __init__(self, cuts: Sequence[int], time_name: str, buffer_bytes: int, depth: int = 0) -> None:
        """`time_name` is empty without a time column; then there are no cuts."""
        self._cuts = np.asarray(cuts, dtype=np.int64)
        self._time_name = time_name
        self._buffer_bytes = buffer_bytes
        self._depth = depth
        self._scratch = Scratch()
        self._pieces = [SpilledRows(self._scratch.path / str(n)) for n in range(len(cuts) + 1)]
        self._held_bytes = 0
        self.spilled_bytes = 0

    def __enter__(self) -> Pieces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for piece in self._pieces:
            piece.drop()
        self._scratch.close()

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self._pieces)

    def add(self, table: pa.Table, source: int = 0) -> None:
        """Sort rows of one source into their pieces."""
        if not table.num_rows:
            return
        times = times_us(table.column(self._time_name).combine_chunks()) if self._time_name else _NO_TIMES
        if not len(times):
            self._pieces[0].add(table, times, source)
            self._hold(table.nbytes)
            return
        first, last = np.searchsorted(self._cuts, [times.min(), times.max()], side="right")
        if first == last:
            self._pieces[first].add(table, times, source)
        else:
            index = np.searchsorted(self._cuts, times, side="right")
            for number in range(first, last + 1):
                chosen = index == number
                if chosen.any():
                    self._pieces[number].add(table.filter(pa.array(chosen)), times[chosen], source)
        self._hold(table.nbytes)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes > self._buffer_bytes:
            self._spill()

    def _spill(self) -> None:
        before = sum(piece.disk_bytes for piece in self._pieces)
        for piece in self._pieces:
            piece.spill()
        self.spilled_bytes += sum(piece.disk_bytes for piece in self._pieces) - before
        self._held_bytes = 0

    def drain(self) -> Iterator[tuple[SpilledRows, Iterator[pa.Table]]]:
        """Yield each piece that has rows, in order, with the rows as tables that fit the buffer. Consume a
        piece's tables before the next piece."""
        for piece in self._pieces:
            if piece.rows:
                yield piece, self._parts(piece)
                piece.drop()

    def _parts(self, piece: SpilledRows) -> Iterator[pa.Table]:
        size_bytes = piece.disk_bytes + sum(table.nbytes for table in piece.held)
        if not self._time_name:
            yield from _batched(piece.tables(), self._buffer_bytes // 2)
            return
        cuts = self._quantiles(piece, size_bytes) if size_bytes > self._buffer_bytes else ()
        if not len(cuts):
            yield pa.concat_tables(list(piece.tables()))
            return
        # Half the buffer: the other half is for the table that is being sorted and written.
        with Pieces(cuts, self._time_name, self._buffer_bytes // 2, self._depth + 1) as smaller:
            for table in piece.tables():
                smaller.add(table)
            piece.drop()
            smaller._spill()
            for _, tables in smaller.drain():
                yield from tables
            self.spilled_bytes += smaller.spilled_bytes

    def _quantiles(self, piece: SpilledRows, size_bytes: int) -> Sequence[int]:
        if self._depth >= MAX_DEPTH:
            return ()
        sample = np.sort(np.concatenate(piece.sample))
        parts = ceil(3 * size_bytes / self._buffer_bytes)
        chosen = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
        return [int(cut) for cut in chosen if cut > sample[0]]


def _batched(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows as tables of about this size."""
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        if waiting and waiting_bytes + table.nbytes > size_bytes:
            yield pa.concat_tables(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(table)
        waiting_bytes += table.nbytes
    if waiting:
        yield pa.concat_tables(waiting)

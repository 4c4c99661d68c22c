"""Row maps: the origin of each row of an output, by which later deletes of inputs become deletes of outputs.

1. While a task works, every row has its origin in the column `ORIGIN`: the number of its source among the
   compaction's inputs, and its position in that file. The column is removed before rows are written.
2. The origins of an output's rows, in their order, are its row map: a file next to the output. The ledger has
   the map's checksum with the output, so a damaged map, or one of another attempt, is never used.
3. A map is a Parquet file with row groups of `BLOCK_ROWS` rows: the source of each row, and beside it, in the
   order of sources, how many positions were skipped since the previous row of the same source. So rows in the
   order of their files take almost no space.

A map has the name of its output's compaction: it is garbage once the compaction has ended.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedPositions
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.manifests import bytes_of
from lithify.datasets.iceberg.model import NewFile

ORIGIN: Final = "origin #"
"""The name of the column of origins. Names of columns in files have no such characters."""
BLOCK_ROWS = 1 << 20
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_SCHEMA = pa.schema([pa.field("source", pa.int32(), False), pa.field("skipped", pa.int64(), False)])
_MAX_ROW_BYTES = 16
_MAX_FRAME_BYTES = 1024 * 1024
"""The maximum bytes of a map beside those of its rows."""
_ENDING, _MAP_ENDING = ".parquet", ".rowmap"

Numbers = npt.NDArray[np.int64]


def with_origins(batch: pa.RecordBatch, source: int, positions: Numbers) -> pa.RecordBatch:
    """Return the rows with their origins: these positions of a source."""
    return batch.append_column(ORIGIN, pa.array(positions + (source << _POSITION_BITS), pa.int64()))


def without_origins(table: pa.Table) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """Return the rows without their origins, and the origins, if they have any."""
    if ORIGIN not in table.column_names:
        return table, None
    return table.drop_columns([ORIGIN]), table.column(ORIGIN)


def path_of(output_path: str) -> str:
    """Return the path of an output's row map."""
    return output_path.removesuffix(_ENDING) + _MAP_ENDING


class RowMapWriter:
    """The row map of an output that is being written, in memory."""

    def __init__(self) -> None:
        self._buffer = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._buffer,
            _SCHEMA,
            store_schema=False,
            compression="zstd",
            use_dictionary=False,
            column_encoding=dict.fromkeys(_SCHEMA.names, "BYTE_STREAM_SPLIT"),
            write_statistics=False,
        )
        self._waiting: list[Numbers] = []
        self._waiting_rows = 0

    def add(self, origins: pa.ChunkedArray) -> None:
        """Append rows."""
        for chunk in origins.chunks:
            self._waiting.append(chunk.to_numpy())
            self._waiting_rows += len(chunk)
        if self._waiting_rows >= BLOCK_ROWS:
            self._write()

    def finish(self) -> bytes:
        """Return the content of the map."""
        self._write()
        self._writer.close()
        return bytes(memoryview(self._buffer.getvalue()))

    def _write(self) -> None:
        if not self._waiting_rows:
            return
        origins = np.concatenate(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        for start in range(0, len(origins), BLOCK_ROWS):
            block = origins[start : start + BLOCK_ROWS]
            source = block >> _POSITION_BITS
            columns = [pa.array(source, pa.int32()), pa.array(_skipped(source, block & _POSITION_MASK))]
            self._writer.write_table(pa.table(columns, schema=_SCHEMA), row_group_size=BLOCK_ROWS)


def checksum(content: bytes) -> int:
    """Return the checksum of a map's content, for the ledger."""
    return zlib.crc32(content)


def read_row_map(io: FileIO, output: NewFile) -> bytes:
    """Return the content of an output's row map. Raise `StoreError` when it is lost, and `CorruptObject` when
    it is not the one that was written with the output."""
    path = path_of(output.path)
    with translated(f"reading {path}"):
        size_bytes, most_bytes = len(io.new_input(path)), output.rows * _MAX_ROW_BYTES + _MAX_FRAME_BYTES
        if size_bytes > most_bytes:
            raise CorruptObject(path, f"has {size_bytes} bytes for {output.rows} rows")
        content = bytes_of(io, path)
    if checksum(content) != output.row_map:
        raise CorruptObject(path, "has another checksum than the ledger states")
    return content


def rows_of(content: bytes, deleted: Mapping[int, DeletedPositions]) -> Numbers:
    """Return the ascending positions of an output's rows that came from these positions of its sources.
    `content` is its row map."""
    found = [np.empty(0, np.int64)]
    file, start = pq.ParquetFile(pa.BufferReader(content)), 0
    for group in range(file.num_row_groups):
        block = file.read_row_group(group, use_threads=False)
        source, skipped = (column.to_numpy() for column in block.columns)
        found.append(start + _chosen(source, skipped, deleted))
        start += block.num_rows
    return np.concatenate(found)


def _chosen(source: Numbers, skipped: Numbers, deleted: Mapping[int, DeletedPositions]) -> Numbers:
    found = [np.empty(0, np.int64)]
    rows, starts, numbers = _by_source(source)
    for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        if number not in deleted:
            continue
        steps = skipped[start:end]
        positions = np.cumsum(((steps >> 1) ^ -(steps & 1)) + 1) - 1
        wanted = deleted[number].between(int(positions.min()), int(positions.max()) + 1)
        found.append(rows[start:end][np.isin(positions, wanted)])
    return np.sort(np.concatenate(found))


def _skipped(source: Numbers, positions: Numbers) -> Numbers:
    rows, starts, _ = _by_source(source)
    ordered = positions[rows]
    steps = np.diff(ordered, prepend=-1)
    steps[starts] = ordered[starts] + 1
    steps -= 1
    return (steps << 1) ^ (steps >> 63)  # negative numbers become odd ones, and all are small


def _by_source(source: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return all rows in the order of their sources, where each source begins there, and the sources."""
    counts = np.bincount(source)
    numbers = np.flatnonzero(counts)
    starts = np.cumsum(counts[numbers]) - counts[numbers]
    if len(numbers) == 1:
        return np.arange(len(source)), starts, numbers
    codes = np.zeros(len(counts), np.uint16 if len(numbers) <= np.iinfo(np.uint16).max else np.int64)
    codes[numbers] = np.arange(len(numbers))
    # Numbers of 16 bits are sorted by their digits, several times as fast as others.
    return np.argsort(codes[source], kind="stable"), starts, numbers

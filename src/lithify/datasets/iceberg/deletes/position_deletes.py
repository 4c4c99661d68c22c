"""Position delete files: reading, merging and writing their rows (Iceberg format: position delete files).

1. Rows of several files are read, with paths as numbers; rows of data files that are not requested, or to
   which they do not apply, are dropped.
2. They are sorted by path and position, without duplicates.
3. Merged rows are written to one file. The bounds of the paths are exact, and if there is only one path, the
   entry names the data file.

A file with more columns than path and position, which may contain the deleted rows themselves, is
`Unmergeable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from lithify.base.errors import LithifyError
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION
from lithify.datasets.iceberg.format.sizing import MIN_GROUP_ROWS
from lithify.datasets.iceberg.format.statistics import column_sizes, split_offsets
from lithify.datasets.iceberg.format.write_options import WriteOptions
from lithify.datasets.iceberg.io.prefetch import DataPath, PrefetchExtent

READABLE = (FileFormat.PARQUET, FileFormat.ORC)
"""The formats of delete files that can be read."""
MAX_READERS = 8
"""The number of delete files that are read concurrently."""
POSITION_FIELD_ID = 2147483545
_FIELD_ID = b"PARQUET:field_id"
_PATHS = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        pa.field("file_path", _PATHS, False, {_FIELD_ID: str(PATH_FIELD_ID)}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: str(POSITION_FIELD_ID)}),
    ]
)
_NOTES = {
    "delete-type": "position",
    "iceberg.schema": Schema(
        NestedField(PATH_FIELD_ID, "file_path", StringType(), required=True),
        NestedField(POSITION_FIELD_ID, "pos", LongType(), required=True),
    ).model_dump_json(),
}
"""The metadata in a footer, as Java's writer writes them."""
_ROW_GROUP_ROWS = 1_000_000
_MOST_ROW_BYTES = 12
"""The bytes of a row without compression: a position and the number of a path."""


class Unmergeable(LithifyError):
    """A delete file that must be kept as it is."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Distinct deleted rows, in order."""

    paths: Sequence[str]
    """The paths of the data files, in order."""
    path: npt.NDArray[np.int32]
    """The index of each row's path."""
    position: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)

    def by_path(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the positions of each data file, ascending."""
        starts = np.searchsorted(self.path, np.arange(len(self.paths) + 1, dtype=np.int32)).tolist()
        return {path: self.position[starts[n] : starts[n + 1]] for n, path in enumerate(self.paths)}


class _Rows:
    """Rows collected from batches with a path, as a dictionary, and a position."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._codes = [np.empty(0, dtype=np.int32)]
        self._positions = [np.empty(0, dtype=np.int64)]

    def add(self, batch: pa.RecordBatch, is_wanted: Callable[[str], bool]) -> None:
        """Add the rows of the wanted data files."""
        names = [as_path(name) for name in batch.column(0).dictionary.to_pylist()]
        indices = batch.column(0).indices.to_numpy()
        used = set(np.unique(indices).tolist())
        number = [self._number(name) if n in used and is_wanted(name) else -1 for n, name in enumerate(names)]
        code = np.array(number, dtype=np.int32)[indices]
        self._codes.append(code[code >= 0])
        self._positions.append(batch.column(1).to_numpy()[code >= 0])

    def sorted(self) -> Positions:
        paths = sorted(self._numbers)
        rank = np.empty(len(paths), dtype=np.int32)
        for n, path in enumerate(paths):
            rank[self._numbers[path]] = n
        code, position = rank[np.concatenate(self._codes)], np.concatenate(self._positions)
        order = np.lexsort((position, code))
        code, position = code[order], position[order]
        is_new = np.ones(len(code), dtype=bool)
        is_new[1:] = (code[1:] != code[:-1]) | (position[1:] != position[:-1])
        return Positions(paths, code[is_new], position[is_new])

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def merged(io: FileIO, files: Sequence[DataFile], applies: Callable[[str, str], bool]) -> Positions:
    """Return the rows of these delete files. `applies` returns whether a delete file applies to a data file,
    given both paths."""
    rows = _Rows()
    for file in files:
        for batch in _whole(io, file).to_batches():
            rows.add(batch, partial(applies, file.file_path))
    return rows.sorted()


def positions_of(io: FileIO, file: DataFile, paths: Collection[str]) -> Positions:
    """Return a delete file's rows for these data files; at least one file. Only those rows are kept; row
    groups of other files are skipped if their statistics show it."""
    name = pc.field("file_path")
    rows = _Rows()
    with DataPath.of(file, PrefetchExtent.SOME).open(io) as stream:
        scanner = ds.Scanner.from_fragment(
            format_of(file).make_fragment(stream),
            columns=_SCHEMA.names,
            filter=(name >= min(paths)) & (name <= max(paths)),
            use_threads=False,
        )
        for batch in scanner.to_batches():
            rows.add(_with_dictionary(batch), paths.__contains__)
    return rows.sorted()


def write(
    io: FileIO, path: str, rows: Positions, spec_id: int, partition: Record, options: WriteOptions
) -> DataFile:
    """Write a new delete file with these rows, at least one, and return its description for a manifest."""
    paths = pa.DictionaryArray.from_arrays(pa.array(rows.path), pa.array(rows.paths, pa.string()))
    table = pa.table([paths, pa.array(rows.position)], schema=_SCHEMA)
    output = io.new_output(path)
    with (
        output.create() as stream,
        pq.ParquetWriter(
            stream, _SCHEMA, store_schema=False, write_page_index=True, **options.parquet
        ) as writer,
    ):
        rows_of_bytes = max(options.row_group_bytes // _MOST_ROW_BYTES, MIN_GROUP_ROWS)
        writer.write_table(table, row_group_size=min(_ROW_GROUP_ROWS, rows_of_bytes, options.row_group_rows))
        writer.add_key_value_metadata(_NOTES)
    footer = writer.writer.metadata
    first, last = rows.paths[rows.path[0]], rows.paths[rows.path[-1]]
    least, most = int(rows.position.min()), int(rows.position.max())
    file = DataFile.from_args(
        ENTRY_VERSION,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(rows),
        file_size_in_bytes=len(output),
        column_sizes=column_sizes(footer, {"file_path": PATH_FIELD_ID, "pos": POSITION_FIELD_ID}),
        value_counts={PATH_FIELD_ID: len(rows), POSITION_FIELD_ID: len(rows)},
        null_value_counts={PATH_FIELD_ID: 0, POSITION_FIELD_ID: 0},
        nan_value_counts=None,
        lower_bounds={PATH_FIELD_ID: first.encode(), POSITION_FIELD_ID: to_bytes(LongType(), least)},
        upper_bounds={PATH_FIELD_ID: last.encode(), POSITION_FIELD_ID: to_bytes(LongType(), most)},
        key_metadata=None,
        split_offsets=list(split_offsets(footer)),
        equality_ids=None,
        sort_order_id=None,
        referenced_data_file=first if first == last else None,
    )
    file.spec_id = spec_id
    return file


def _whole(io: FileIO, file: DataFile) -> pa.Table:
    with DataPath.of(file, PrefetchExtent.ALL).open(io) as stream:
        source = pq.ParquetFile(stream, read_dictionary=["file_path"])
        names = source.schema_arrow.names
        if sorted(names) != ["file_path", "pos"]:
            raise Unmergeable(f"have columns other than a path and a position ({', '.join(names)})")
        table = source.read(use_threads=False)
    if table.num_rows != file.record_count:
        raise Unmergeable("have a different number of rows than their manifest states")
    if any(column.null_count for column in table.columns):
        raise Unmergeable("have nulls")
    return table.select(["file_path", "pos"]).cast(_SCHEMA)


def as_path(name: str | bytes) -> str:
    """Return the path of a data file as in manifests: some writers do not mark it as text."""
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def format_of(file: DataFile) -> ds.FileFormat:
    """Return the format with which Arrow reads a delete file: paths as a dictionary, if possible."""
    if file.file_format == FileFormat.ORC:
        return ds.OrcFileFormat()
    return ds.ParquetFileFormat(dictionary_columns={"file_path"}, pre_buffer=True)


def _with_dictionary(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with its paths as a dictionary, which ORC does not read them as."""
    paths = batch.column(0)
    if not pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    return pa.record_batch([paths, batch.column(1)], names=_SCHEMA.names)

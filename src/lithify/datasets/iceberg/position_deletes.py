"""Position delete files: their rows read, merged and written (Iceberg format: position delete files).

1. Rows of several files are read whole, paths as numbers; those that do not apply to a live data file are
   left out.
2. They are sorted by path and position, each once.
3. They are written to one file. The bounds of the paths are exact, and where there is one path only, the
   entry names the data file.

A file with more than a path and a position, which may have the deleted rows themselves, is `Unmergeable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from lithify.datasets.iceberg.manifests import ENTRY_VERSION
from lithify.errors import LithifyError

POSITION_FIELD_ID = 2147483545
_FIELD_ID = b"PARQUET:field_id"
_PATHS = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        pa.field("file_path", _PATHS, False, {_FIELD_ID: str(PATH_FIELD_ID)}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: str(POSITION_FIELD_ID)}),
    ]
)
_ROW_GROUP_ROWS = 1_000_000


class Unmergeable(LithifyError):
    """A delete file that has to stay as it is."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Deleted rows in order, each once."""

    paths: Sequence[str]
    """Of the data files, in order."""
    path: npt.NDArray[np.int32]
    """Which of them each row is of."""
    position: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)


def merged(io: FileIO, files: Sequence[DataFile], applies: Callable[[str, str], bool]) -> Positions:
    """The rows of these delete files. `applies` says of a delete file and a data file, by their paths,
    whether the one applies to the other."""
    numbers: dict[str, int] = {}
    codes, positions = [], []
    for file in files:
        table = _read(io, file)
        for batch in table.to_batches():
            names = batch.column(0).dictionary.to_pylist()
            indices = batch.column(0).indices.to_numpy()
            used = set(np.unique(indices).tolist())
            number = [
                numbers.setdefault(name, len(numbers)) if n in used and applies(file.file_path, name) else -1
                for n, name in enumerate(names)
            ]
            code = np.array(number, dtype=np.int32)[indices]
            codes.append(code[code >= 0])
            positions.append(batch.column(1).to_numpy()[code >= 0])
    paths = sorted(numbers)
    rank = np.empty(len(paths), dtype=np.int32)
    for n, path in enumerate(paths):
        rank[numbers[path]] = n
    code = rank[np.concatenate([*codes, np.empty(0, dtype=np.int32)])]
    position = np.concatenate([*positions, np.empty(0, dtype=np.int64)])
    order = np.lexsort((position, code))
    code, position = code[order], position[order]
    is_new = np.ones(len(code), dtype=bool)
    is_new[1:] = (code[1:] != code[:-1]) | (position[1:] != position[:-1])
    return Positions(paths, code[is_new], position[is_new])


def write(
    io: FileIO, path: str, rows: Positions, spec_id: int, partition: Record, parquet: Mapping[str, Any]
) -> DataFile:
    """A new delete file with these rows, of which there is at least one, as a manifest names it."""
    paths = pa.DictionaryArray.from_arrays(pa.array(rows.path), pa.array(rows.paths, pa.string()))
    table = pa.table([paths, pa.array(rows.position)], schema=_SCHEMA)
    output = io.new_output(path)
    with output.create() as stream:
        pq.write_table(table, stream, row_group_size=_ROW_GROUP_ROWS, store_schema=False, **parquet)
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
        column_sizes=None,
        value_counts={PATH_FIELD_ID: len(rows), POSITION_FIELD_ID: len(rows)},
        null_value_counts={PATH_FIELD_ID: 0, POSITION_FIELD_ID: 0},
        nan_value_counts=None,
        lower_bounds={PATH_FIELD_ID: first.encode(), POSITION_FIELD_ID: to_bytes(LongType(), least)},
        upper_bounds={PATH_FIELD_ID: last.encode(), POSITION_FIELD_ID: to_bytes(LongType(), most)},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        referenced_data_file=first if first == last else None,
    )
    file.spec_id = spec_id
    return file


def _read(io: FileIO, file: DataFile) -> pa.Table:
    with io.new_input(file.file_path).open() as stream:
        source = pq.ParquetFile(stream, read_dictionary=["file_path"])
        names = source.schema_arrow.names
        if sorted(names) != ["file_path", "pos"]:
            raise Unmergeable(f"have columns beside a path and a position ({', '.join(names)})")
        table = source.read(use_threads=False)
    if table.num_rows != file.record_count:
        raise Unmergeable("have another number of rows than their manifest says")
    if any(column.null_count for column in table.columns):
        raise Unmergeable("have nulls")
    return table.select(["file_path", "pos"]).cast(_SCHEMA)

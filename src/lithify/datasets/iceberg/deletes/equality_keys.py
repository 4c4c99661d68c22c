"""Keys of equality delete files in memory, and the rows of data files that they delete.

1. Delete files by the same columns are read together, each column in the table's current type (`projection`).
   Every key is kept once, with the highest sequence number of its deletes.
2. A key is converted to one number, column by column: the index of the column's value among the keys' values,
   and combined with the number of the previous columns, the index of that pair among the keys' pairs. A row
   with a value or a pair that no key has is not deleted.
3. A row is deleted if the sequence number of its key's newest delete is higher than its file's. Nulls equal
   nulls.

Memory is bounded by `equality_deletes.MAX_ROWS` keys, of `MAX_HELD_BYTES` in all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.name_mapping import NameMapping

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.iceberg.compaction.parquet_source import BATCH_ROWS
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.columns import check_row_count, columns_of, open_file, why_unfit
from lithify.datasets.iceberg.format.projection import Projection
from lithify.datasets.iceberg.io.prefetch import DataPath, OpenedAhead, PrefetchExtent

MAX_HELD_BYTES = 512 * 1024 * 1024
"""The maximum size of keys in memory; `equality_deletes.MAX_BYTES` can exceed it only if the keys hardly
differ."""

Numbers = npt.NDArray[np.int64]
Key = tuple[int, ...]
"""The ids of a key's columns."""


def key_schema(schema: Schema, field_ids: Key) -> pa.Schema:
    """Return the schema of these columns as in data files, but nullable."""
    fields = [field for field in sanitize_column_names(schema).fields if field.field_id in field_ids]
    if len(fields) < len(field_ids):
        raise Unsupported(f"equality deletes use a column that was dropped (one of the ids {field_ids})")
    chosen = Schema(*fields)
    plain: pa.Schema = schema_to_pyarrow(chosen, include_field_ids=True)
    return pa.schema([field.with_nullable(True) for field in plain])


def read_keys(
    opened: Callable[[], Any], delete: EqualityDelete, schema: Schema, names: NameMapping | None
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a delete file, which `opened` opens, of a table with this schema and name mapping."""
    with translated(f"reading {delete.path}"), opened() as stream:
        file = open_file(stream)
        reason = why_unfit(file, schema, names)
        if reason is not None:
            raise Unsupported(f"the deletes in {delete.path} cannot be applied; such files {reason}")
        columns = columns_of(file.schema_arrow, names)
        missing = set(delete.field_ids) - {column.field_id for column in columns}
        if missing:
            raise CorruptObject(delete.path, f"has no column with the id {min(missing)}, by which it deletes")
        check_row_count(file, delete.file)
        projection = Projection(columns, key_schema(schema, delete.field_ids), {}, delete.path)
        for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
            yield projection.apply(batch)


class DeletedKeys:
    """The deleted keys of several equality delete files."""

    def __init__(
        self, io: FileIO, deletes: Iterable[EqualityDelete], schema: Schema, names: NameMapping | None
    ) -> None:
        """Read the delete files. Raise `Unsupported` if they cannot be applied, or have too many keys."""
        read: dict[Key, list[tuple[pa.RecordBatch, Numbers]]] = defaultdict(list)
        held_bytes = 0
        chosen = tuple(deletes)
        files = OpenedAhead(io, [DataPath.of(delete.file, PrefetchExtent.ALL) for delete in chosen])
        for delete in chosen:
            for batch in read_keys(files.take, delete, schema, names):
                read[delete.field_ids].append((batch, np.full(len(batch), delete.number, np.int64)))
                held_bytes += batch.nbytes
                if held_bytes > MAX_HELD_BYTES:
                    raise Unsupported(
                        f"the equality deletes up to {delete.path} take more than "
                        f"{MAX_HELD_BYTES // 2**20} MiB in memory; run `lithify "
                        "rewrite-equality-deletes`"
                    )
        self._sets = [
            NewestDeletes(batches) for batches in read.values() if any(len(batch) for batch, _ in batches)
        ]

    def left(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Return the rows, from a data file of this sequence number, that are not deleted."""
        for keys in self._sets:
            deleted = keys.of(batch) > number
            if deleted.any():
                batch = batch.filter(pa.array(~deleted))
        return batch


@dataclass(frozen=True, slots=True)
class _Step:
    """One column of a key."""

    name: str
    type: pa.DataType
    values: pa.Array
    """The distinct values."""
    pairs: Numbers
    """The keys' combinations up to this column, ascending: the index of the previous columns times the number
    of values, plus the index of the value."""

    def pair(self, places: Numbers, column: pa.Array) -> Numbers:
        """Return the pairs of rows whose previous columns have these indices; -1 if no key starts like the
        row."""
        found = pc.index_in(_plain(column, self.type), value_set=self.values)
        value = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        pairs: Numbers = np.where((places >= 0) & (value >= 0), places * len(self.values) + value, -1)
        return pairs

    def places(self, pairs: Numbers) -> Numbers:
        """Return the index of each pair among those of the keys; -1 if there is none."""
        found = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        places: Numbers = np.where(self.pairs[found] == pairs, found, -1)
        return places


class NewestDeletes:
    """The newest delete of each key; keys of the same columns, at least one."""

    def __init__(self, batches: Sequence[tuple[pa.RecordBatch, Numbers]]) -> None:
        """Each batch of keys has the sequence numbers of their deletes."""
        table = pa.Table.from_batches([batch for batch, _ in batches])
        self._steps: list[_Step] = []
        places: Numbers = np.zeros(len(table), np.int64)
        for field in table.schema:
            kind = _plain_type(field.type)
            column = _plain(table.column(field.name).combine_chunks(), kind)
            step = _Step(field.name, kind, column.unique(), np.empty(0, np.int64))
            pairs = step.pair(places, column)
            step = _Step(field.name, kind, step.values, np.unique(pairs))
            places = step.places(pairs)
            self._steps.append(step)
        self._newest: Numbers = np.zeros(len(self._steps[-1].pairs), np.int64)
        np.maximum.at(self._newest, places, np.concatenate([numbers for _, numbers in batches]))

    def of(self, rows: pa.RecordBatch) -> Numbers:
        """Return the sequence number of the newest delete of each row's key; -1 if there is none."""
        places: Numbers = np.zeros(len(rows), np.int64)
        for step in self._steps:
            places = step.places(step.pair(places, rows.column(step.name)))
        return np.where(places >= 0, self._newest[places], -1)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array if array.type == kind else array.cast(kind)

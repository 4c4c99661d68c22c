"""The columns of a key, as files of any age store them, in a form in which equal keys have equal values.

1. A column of a key is found by its id, also inside structs: in the table's current schema, or in the newest
   earlier one that has it. Deletes by a column that was dropped meanwhile still apply (Iceberg format:
   equality delete files).
2. A file's values are projected to that column's type (`projection`). A data file without the column has its
   initial default, or null.
3. The projected values become 64-bit numbers or bytes. Nulls equal nulls, and a struct that is null equals no
   struct with a null inside. All NaN are equal. The two zeros differ, as in Java; since other readers take
   them for equal, deletes by a zero are not applied (`why_unclear`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, PrimitiveType, StructType, UnknownType

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.iceberg.compaction.parquet_source import BATCH_ROWS
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.columns import (
    check_row_count,
    columns_of,
    open_file,
    why_opaque,
    why_unfit,
)
from lithify.datasets.iceberg.format.projection import Projection
from lithify.datasets.iceberg.kernel.keys import mix_texts, mix_words

Hashes = npt.NDArray[np.uint64]
_NULL = -0x6C6F737465727573
"""The hashed value of a null. Another value with the same hash is only compared in vain."""


@dataclass(frozen=True)
class _KeyColumn:
    """One column of a key."""

    field_id: int
    schema: Schema
    """A schema of the table with only this column, and the structs around it; all optional."""

    @classmethod
    def of(cls, metadata: TableMetadata, field_id: int) -> _KeyColumn | None:
        """Return the column; `None` if no schema of the table has it."""
        older = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
        for schema in (metadata.schema(), *older):
            if field_id in schema.field_ids:
                pruned = prune_columns(sanitize_column_names(schema), {field_id}, select_full_types=False)
                return cls(
                    field_id,
                    Schema(*(field.model_copy(update={"required": False}) for field in pruned.fields)),
                )
        return None

    @cached_property
    def leaf(self) -> IcebergType:
        """Return the type of the column; not primitive if it is inside a list or a map."""
        kind: IcebergType = self.schema.fields[0].field_type
        while isinstance(kind, StructType):
            kind = kind.fields[0].field_type
        return kind

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema(
            [_optional(field) for field in schema_to_pyarrow(self.schema, include_field_ids=True)]
        )


def _optional(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(child) for child in kind])
    return field.with_type(kind).with_nullable(True)


class KeyColumns:
    """The columns of a key, in ascending order of their ids."""

    def __init__(self, metadata: TableMetadata, field_ids: Sequence[int]) -> None:
        self._metadata = metadata
        self._names = metadata.name_mapping()
        found = {field_id: _KeyColumn.of(metadata, field_id) for field_id in sorted(field_ids)}
        self._columns = [column for column in found.values() if column is not None]
        self.why_unfit: str | None = None
        """Why deletes by these columns cannot be applied ("they …"); `None` if they can."""
        if not found:
            self.why_unfit = "list no columns"
        for field_id, column in found.items():
            if column is None:
                self.why_unfit = f"use a column that no schema of the table has (id {field_id})"
            elif not isinstance(column.leaf, PrimitiveType) or isinstance(column.leaf, UnknownType):
                self.why_unfit = f"use a column that is no single value (id {field_id})"
            else:
                self.why_unfit = self.why_unfit or why_opaque(column.schema)

    @cached_property
    def types(self) -> dict[int, IcebergType]:
        """Return the type of each column, by its id."""
        return {column.field_id: column.leaf for column in self._columns}

    def of_deletes(self, stream: Any, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the keys of an open delete file. Raise `Unsupported` if they cannot be applied."""
        for _, batch in self._read(stream, file, is_delete=True):
            for column in batch.columns:
                if pa.types.is_floating(column.type) and pc.any(pc.equal(column, 0)).as_py():
                    raise Unsupported(
                        f"{file.file_path} deletes by a zero among floating-point numbers, which not all "
                        "readers compare in the same way"
                    )
            yield _comparable(batch)

    def of_rows(self, stream: Any, file: DataFile) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the keys of all rows of an open data file, each batch after the position of its first row.
        Raise `Unsupported` if not all readers read them in the same way."""
        for start, batch in self._read(stream, file, is_delete=False):
            yield start, _comparable(batch)

    def _read(self, stream: Any, file: DataFile, *, is_delete: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        path = file.file_path
        with translated(f"reading {path}"):
            source = open_file(stream)
            for column in self._columns:
                reason = why_unfit(source, column.schema, self._names)
                if reason is not None:
                    raise Unsupported(f"the keys in {path} cannot be compared; such files {reason}")
            columns = columns_of(source.schema_arrow, self._names)
            stored = {part.field_id for column in columns for part in column.parts()}
            missing = [column.field_id for column in self._columns if column.field_id not in stored]
            if is_delete and missing:
                raise CorruptObject(path, f"has no column with the id {missing[0]}, by which it deletes")
            check_row_count(source, file)
            wanted = {column.schema.fields[0].field_id for column in self._columns}
            # At least one column, so that batches have rows.
            read = [column for column in columns if column.field_id in wanted] or list(columns[:1])
            projections = [
                Projection(read, column.arrow, {} if is_delete else self._constant(column, file), path)
                for column in self._columns
            ]
            start = 0
            names = [column.name for column in read]
            for batch in source.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                yield start, _flat(projection.apply(batch) for projection in projections)
                start += batch.num_rows

    def _constant(self, column: _KeyColumn, file: DataFile) -> dict[int, Any]:
        """Return the column's value in a data file that lacks it, unless it is null (Iceberg format: column
        projection). It may be dropped, so `projection.constants_of`, by the current schema, does not know
        it."""
        spec, field_id = self._metadata.specs()[file.spec_id], column.field_id
        for number, part in enumerate(spec.fields):
            if part.source_id == field_id and isinstance(part.transform, IdentityTransform):
                value = file.partition[number]
                return {} if value is None else {field_id: value}
        default = column.schema.find_field(field_id).initial_default
        return {} if default is None else {field_id: default}


def hashes_of(keys: pa.RecordBatch) -> Hashes:
    """Return the hash of each key."""
    hashes = np.zeros(len(keys), np.uint64)
    if not len(keys):
        return hashes
    for column in keys.columns:
        if pa.types.is_int64(column.type):
            words = column.fill_null(_NULL).to_numpy()
            mix_words(words.ctypes.data, hashes)
        else:
            column = column.fill_null(b"null")
            offsets = np.frombuffer(column.buffers()[1], np.int32)[
                column.offset : column.offset + len(column) + 1
            ]
            data, wide = column.buffers()[2], offsets.astype(np.int64)
            mix_texts(wide.ctypes.data, 0 if data is None else data.address, hashes)
    return hashes


def _flat(projected: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the columns of keys side by side: of each struct whether it is there, and then its part."""
    columns: list[pa.Array] = []
    for batch in projected:
        column = batch.column(0)
        while pa.types.is_struct(column.type):
            columns.append(column.is_valid())
            column = pc.struct_field(column, 0)
        columns.append(column.storage if isinstance(column.type, pa.BaseExtensionType) else column)
    return pa.RecordBatch.from_arrays(columns, [str(n) for n in range(len(columns))])


def _comparable(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns of 64-bit numbers and of bytes that are equal for equal values only."""
    return pa.RecordBatch.from_arrays([_plain(column) for column in keys.columns], keys.schema.names)


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_floating(kind):
        return _bits_of(column)
    if pa.types.is_decimal(kind):
        # The same number has the same bytes: all columns have the scale of the key's column.
        size = pa.binary(kind.byte_width)
        same = pa.Array.from_buffers(size, len(column), column.buffers(), offset=column.offset)
        return same.cast(pa.binary())
    for narrow, is_narrow in _AS_INTEGERS:
        if is_narrow(kind):
            return column.cast(narrow).cast(pa.int64())
    return column.cast(pa.binary())


_AS_INTEGERS: tuple[tuple[pa.DataType, Callable[[pa.DataType], bool]], ...] = (
    (pa.int64(), pa.types.is_integer),
    (pa.int8(), pa.types.is_boolean),
    (pa.int32(), pa.types.is_date32),
    (pa.int64(), pa.types.is_temporal),
)


def _bits_of(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values.view(np.int64), mask=nulls)

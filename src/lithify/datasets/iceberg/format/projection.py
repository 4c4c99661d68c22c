"""Projects a file's values onto the table's current columns.

1. Each field of the wanted schema is found in the file by id, at every depth. A missing one is a constant:
   the value of the file's partition, or else the field's initial default, or else null.
2. Structs, lists and maps are rebuilt around their projected parts, and nulls stay null. PyIceberg's
   projection would turn a null list or map of structs into an empty one.
3. Values are cast to the wanted type: a promotion, or a lossless change of unit or width
   (`columns.why_unfit`). Arrow refuses others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import _get_column_projection_values
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.columns import FileColumn

_FIELD_ID = b"PARQUET:field_id"


def constants_of(
    file: DataFile, columns: Sequence[FileColumn], schema: Schema, spec: PartitionSpec
) -> dict[int, Any]:
    """Return the values of fields that a data file of this partition spec and with these columns may lack, by
    field id (Iceberg format: column projection). They are not null."""
    found = {column.field_id for column in columns if column.field_id is not None}
    in_partition = {f.source_id for f in spec.fields if isinstance(f.transform, IdentityTransform)}
    fields = (schema.find_field(field_id) for field_id in schema.field_ids - in_partition - found)
    defaults = {f.field_id: f.initial_default for f in fields if f.initial_default is not None}
    return defaults | _get_column_projection_values(file, schema, schema, spec, found)


class Projection:
    """A projection from the columns of one file to a schema whose fields have ids."""

    def __init__(
        self, columns: Sequence[FileColumn], schema: pa.Schema, constants: Mapping[int, Any], path: str
    ) -> None:
        """`constants` are by field id; `path` is named in errors."""
        self._columns = columns
        self._schema = schema
        self._constants = constants
        self._path = path

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = {c.field_id: n for n, c in enumerate(self._columns) if c.field_id is not None}
        arrays = []
        for field in self._schema:
            number = found.get(_id_of(field))
            if number is None:
                arrays.append(self._missing(field, batch.num_rows))
            else:
                arrays.append(self._project(batch.column(number), self._columns[number], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _missing(self, field: pa.Field, rows: int) -> pa.Array:
        constant = self._constants.get(_id_of(field))
        if constant is not None:
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            return pa.repeat(pa.scalar(constant, kind), rows).cast(field.type)
        if not field.nullable:
            raise CorruptObject(self._path, f"has no column {field.name}, which the table requires")
        return pa.nulls(rows, field.type)

    def _project(self, values: pa.Array, column: FileColumn, wanted: pa.DataType) -> pa.Array:
        if pa.types.is_struct(wanted):
            return self._struct(values, column, wanted)
        if pa.types.is_list(wanted) or pa.types.is_large_list(wanted):
            return self._list(values, column, wanted)
        if pa.types.is_map(wanted):
            return self._map(values, column, wanted)
        if isinstance(values.type, pa.BaseExtensionType) and values.type != wanted:
            values = values.storage
        return values if values.type == wanted else values.cast(wanted)

    def _struct(self, values: pa.StructArray, column: FileColumn, wanted: pa.StructType) -> pa.Array:
        found = {child.field_id: n for n, child in enumerate(column.children) if child.field_id is not None}
        parts = []
        for field in wanted:
            number = found.get(_id_of(field))
            if number is None:
                parts.append(self._missing(field, len(values)))
            else:
                parts.append(self._project(values.field(number), column.children[number], field.type))
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())

    def _list(self, values: pa.Array, column: FileColumn, wanted: pa.DataType) -> pa.Array:
        if pa.types.is_fixed_size_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        elements = self._project(values.values, column.children[0], wanted.value_type)
        kind, width = (
            (pa.LargeListArray, pa.int64()) if pa.types.is_large_list(wanted) else (pa.ListArray, pa.int32())
        )
        return kind.from_arrays(_offsets(values, width), elements, type=wanted, mask=values.is_null())

    def _map(self, values: pa.MapArray, column: FileColumn, wanted: pa.MapType) -> pa.Array:
        key, value = column.children
        return pa.MapArray.from_arrays(
            _offsets(values, pa.int32()),
            self._project(values.keys, key, wanted.key_type),
            self._project(values.items, value, wanted.item_type),
            type=wanted,
            mask=values.is_null(),
        )


def _offsets(values: pa.Array, width: pa.DataType) -> pa.Array:
    """Return the offsets of each value's elements; the array is not a slice."""
    return pa.array(values.offsets.to_numpy(), width)


def _id_of(field: pa.Field) -> int:
    return int(field.metadata[_FIELD_ID])

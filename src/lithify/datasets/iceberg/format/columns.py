"""Matches columns of a Parquet file to the table's, and checks that all readers read the same values.

1. Columns are matched by the field ids in the file; if it has none, by the table's name mapping. Columns
   without an id are ignored.
2. Each leaf must have an encoding of Iceberg's specification, for the column's type or an earlier one
   (`_is_standard`). Readers disagree about other encodings, so no rewrite could preserve what every reader
   returns: milliseconds and nanoseconds, which some take for microseconds; unsigned numbers; decimals of
   another scale; unmarked texts.
3. INT96 timestamps (a day and its nanoseconds) are read as microseconds, rounded down as in Java
   (`open_file`): Arrow's default, 64 bits of nanoseconds, covers only 600 years. Old versions of Arrow wrote
   negative nanoseconds, which Arrow and Java read differently; so INT96 is accepted only from writers that
   never did so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from lithify.base.errors import CorruptObject

_FIELD_ID = b"PARQUET:field_id"
_INT96 = "INT96"
_INT96_WRITERS = ("parquet-mr ", "impala ")


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file, or a part of one."""

    name: str
    type: pa.DataType
    field_id: int | None
    children: tuple[FileColumn, ...] = ()
    """Fields of a struct; the element of a list; key and value of a map."""

    def parts(self) -> Iterator[FileColumn]:
        """Yield the column and its parts; leaves are in the file's order."""
        yield self
        for child in self.children:
            yield from child.parts()


def open_file(stream: Any, dictionaries: Sequence[str] = (), metadata: Any = None) -> pq.ParquetFile:
    """Open a Parquet file with INT96 as microseconds, and the columns of these paths as dictionaries, if the
    file has them. Dictionaries need its `metadata`."""
    if dictionaries:
        leaves = metadata.schema
        paths = {leaves.column(n).path for n in range(len(leaves))}
        dictionaries = [path for path in dictionaries if path in paths]
    return pq.ParquetFile(
        stream,
        metadata=metadata,
        read_dictionary=dictionaries,
        coerce_int96_timestamp_unit="us",
        pre_buffer=True,
    )


def check_row_count(file: pq.ParquetFile, listed: DataFile) -> None:
    """Raise `CorruptObject` if a file has other than the number of rows in its manifest."""
    if file.metadata.num_rows != listed.record_count:
        raise CorruptObject(
            listed.file_path,
            f"has {file.metadata.num_rows} rows, but its manifest states {listed.record_count}",
        )


def columns_of(schema: pa.Schema, names: NameMapping | None) -> tuple[FileColumn, ...]:
    if any(_has_id(field) for field in schema):
        return tuple(_column(field, None) for field in schema)
    mapped = _by_name(names.root if names is not None else ())
    return tuple(_column(field, mapped.get(field.name), by_name=True) for field in schema)


def why_opaque(schema: Schema) -> str | None:
    """Return why rows of a table with this schema must not be rewritten ("they …"); `None` if they may."""
    for field_id in sorted(schema.field_ids):
        field = schema.find_field(field_id)
        kind = field.field_type
        if isinstance(kind, GeometryType | GeographyType):
            return f"have values of the type {kind} ({field.name}), which are not rewritten"
        parts = _parts(kind)
        is_hollow = any if isinstance(kind, ListType | MapType) else all
        if parts and is_hollow(isinstance(part, UnknownType) for part in parts):
            return f"have a column ({field.name}) of parts of the type unknown, which files cannot store"
    return None


def _parts(kind: IcebergType) -> list[IcebergType]:
    match kind:
        case StructType():
            return [field.field_type for field in kind.fields]
        case ListType():
            return [kind.element_type]
        case MapType():
            return [kind.key_type, kind.value_type]
        case _:
            return []


def stored_schema(schema: Schema) -> Schema:
    """Return the schema without fields of the type unknown, which files never store (Iceberg format:
    Parquet)."""
    if not any(isinstance(schema.find_type(field_id), UnknownType) for field_id in schema.field_ids):
        return schema
    identifiers = schema.identifier_field_ids
    fields = _stored_fields(schema.fields)
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=identifiers)


def _stored_fields(fields: Sequence[NestedField]) -> list[NestedField]:
    return [
        field.model_copy(update={"field_type": _stored_type(field.field_type)})
        for field in fields
        if not isinstance(field.field_type, UnknownType)
    ]


def _stored_type(kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*_stored_fields(kind.fields))
        case ListType():
            return ListType(kind.element_id, _stored_type(kind.element_type), kind.element_required)
        case MapType():
            key, value = _stored_type(kind.key_type), _stored_type(kind.value_type)
            return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
        case _:
            return kind


def why_unfit(file: pq.ParquetFile, schema: Schema, names: NameMapping | None) -> str | None:
    """Return why files like this one must not be rewritten ("they …"); `None` if they may."""
    fields: pa.Schema = file.schema_arrow
    has_ids = any(_has_id(field) for field in fields)
    if not has_ids and names is None:
        return "have no field ids, and the table has no name mapping (schema.name-mapping.default)"
    if has_ids and not all(_all_have_ids(field) for field in fields):
        return "have field ids on some columns only"
    if len(set(fields.names)) < len(fields.names):
        return "have two columns of one name"
    columns = columns_of(fields, names)
    leaves = [part for column in columns for part in column.parts() if not part.children]
    if len(leaves) != len(file.schema):
        return "have columns that cannot be distinguished"
    wanted = {field_id: schema.find_type(field_id) for field_id in schema.field_ids}
    for part in (part for column in columns for part in column.parts()):
        if part.field_id in wanted and not _has_shape(part, wanted[part.field_id]):
            return f"store {_told(part.field_id, schema)} as {part.type}"
    created_by = file.metadata.created_by or "an unnamed writer"
    for number, leaf in enumerate(leaves):
        if leaf.field_id not in wanted:
            continue
        stored = _Stored.of(file.schema.column(number))
        if not _is_standard(stored, wanted[leaf.field_id]):
            return (
                f"store {_told(leaf.field_id, schema)} as {stored}, which not all readers read in the same "
                "way"
            )
        if stored.physical == _INT96 and not created_by.startswith(_INT96_WRITERS):
            return f"store {_told(leaf.field_id, schema)} as INT96, as {created_by} writes it"
    return None


def _told(field_id: int, schema: Schema) -> str:
    return f"{schema.find_column_name(field_id)} ({schema.find_type(field_id)})"


def _has_shape(column: FileColumn, wanted: IcebergType) -> bool:
    stored = column.type
    match wanted:
        case StructType():
            return bool(pa.types.is_struct(stored))
        case ListType():
            return bool(column.children) and not pa.types.is_struct(stored) and not pa.types.is_map(stored)
        case MapType():
            return bool(pa.types.is_map(stored))
        case _:
            return not column.children


def _has_id(field: pa.Field) -> bool:
    return _FIELD_ID in (field.metadata or {}) or any(_has_id(child) for child in _children(field.type))


def _all_have_ids(field: pa.Field) -> bool:
    return _FIELD_ID in (field.metadata or {}) and all(_all_have_ids(c) for c in _children(field.type))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def _column(field: pa.Field, mapped: MappedField | None, *, by_name: bool = False) -> FileColumn:
    if by_name:
        field_id = mapped.field_id if mapped is not None else None
    else:
        own = (field.metadata or {}).get(_FIELD_ID)
        field_id = int(own) if own is not None else None
    inner = _by_name(mapped.fields if mapped is not None else ())
    names = [child.name for child in _children(field.type)]
    if pa.types.is_map(field.type):
        names = ["key", "value"]
    elif not pa.types.is_struct(field.type):
        names = ["element"] * len(names)
    children = zip(names, _children(field.type), strict=True)
    parts = tuple(_column(child, inner.get(name), by_name=by_name) for name, child in children)
    return FileColumn(field.name, field.type, field_id, parts)


def _by_name(fields: Sequence[MappedField]) -> Mapping[str, MappedField]:
    return {name: field for field in fields for name in field.names}


@dataclass(frozen=True, slots=True)
class _Stored:
    physical: str
    length: int
    logical: Mapping[str, Any]

    @classmethod
    def of(cls, column: pq.ColumnSchema) -> _Stored:
        return cls(column.physical_type, column.length, json.loads(column.logical_type.to_json()))

    @property
    def kind(self) -> str:
        return str(self.logical["Type"])

    def __str__(self) -> str:
        details = [str(value) for key, value in self.logical.items() if key in _TOLD]
        return self.physical if self.kind == "None" else f"{self.physical} {self.kind}({', '.join(details)})"


_TOLD = ("timeUnit", "bitWidth", "isSigned", "precision", "scale")


def _is_standard(stored: _Stored, wanted: IcebergType) -> bool:
    return any(_is_stored(stored, kind) for kind in (wanted, *_earlier(wanted)))


def _earlier(wanted: IcebergType) -> tuple[IcebergType, ...]:
    """Return types from which a column of this type may have been promoted."""
    if isinstance(wanted, LongType):
        return (IntegerType(),)
    if isinstance(wanted, DoubleType):
        return (FloatType(),)
    return ()


def _is_stored(stored: _Stored, wanted: IcebergType) -> bool:
    """Return whether the specification stores the type so (Appendix A, Parquet), or all readers accept it."""
    physical, kind, logical = stored.physical, stored.kind, stored.logical
    match wanted:
        case BooleanType():
            return (physical, kind) == ("BOOLEAN", "None")
        case IntegerType():
            return physical == "INT32" and (kind == "None" or (kind == "Int" and logical["isSigned"]))
        case LongType():
            return physical == "INT64" and (kind == "None" or (kind == "Int" and logical["isSigned"]))
        case FloatType():
            return (physical, kind) == ("FLOAT", "None")
        case DoubleType():
            return (physical, kind) == ("DOUBLE", "None")
        case DecimalType():
            return (
                kind == "Decimal"
                and int(logical["scale"]) == wanted.scale
                and int(logical["precision"]) <= wanted.precision
            )
        case DateType():
            return (physical, kind) == ("INT32", "Date")
        case TimeType():
            return (physical, kind) == ("INT64", "Time") and logical["timeUnit"] == "microseconds"
        case TimestampType() | TimestamptzType():
            is_micros = kind == "Timestamp" and logical["timeUnit"] == "microseconds"
            return physical == _INT96 or (physical == "INT64" and is_micros)
        case TimestampNanoType() | TimestamptzNanoType():
            return (physical, kind) == ("INT64", "Timestamp") and logical["timeUnit"] == "nanoseconds"
        case StringType():
            return physical == "BYTE_ARRAY" and kind in ("String", "Enum", "JSON")
        case UUIDType():
            return (physical, stored.length) == ("FIXED_LEN_BYTE_ARRAY", 16) and kind in ("None", "UUID")
        case FixedType():
            is_long_enough = (physical, stored.length) == ("FIXED_LEN_BYTE_ARRAY", len(wanted))
            return is_long_enough and kind == "None"
        case BinaryType():
            return (physical, kind) == ("BYTE_ARRAY", "None")
        case _:
            return False

"""Sorting rows by a table's sort order, or by time if it has none. Rows of a table with neither keep their
order.

Iceberg orders NaN after all other numbers, and each sort field decides where its nulls are. Arrow puts NaN
next to the nulls, so a column with NaN gets an additional key. UUIDs are sorted by their bytes, as the
specification requires, because Arrow cannot sort its UUID type.

A transform that keeps the order of its column (truncate, hour and so on) is met by sorting by the column, if
no other field follows. An order with other transforms, or of nested columns, is not followed (`unsortable`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)

_NAN_KEY = "is nan #"


@dataclass(frozen=True, slots=True)
class SortKey:
    name: str
    is_descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class RowOrder:
    keys: tuple[SortKey, ...]
    """Empty: rows keep their order."""
    order_id: int
    """The sort order id of outputs; 0 if the order is not one of the table's."""
    is_by_time: bool
    """Whether rows ascend by time first, those without a time before all others; or keep their order. So
    files may continue from one part of a piece to the next."""

    def within_parts(self) -> RowOrder:
        """Return the order of rows that are sorted only within parts of a file."""
        return replace(self, order_id=0, is_by_time=True)


_MONOTONIC = (TruncateTransform, YearTransform, MonthTransform, DayTransform, HourTransform)
"""Transforms of which a greater value never has a lesser result."""


def sort_fields(metadata: TableMetadata, order_id: int) -> tuple[SortField, ...]:
    """Return the fields of the table's sort order with this id, as columns to sort by; none if it does not
    exist or cannot be followed."""
    order = metadata.sort_order_by_id(order_id)
    return () if order is None or unsortable(metadata, order) is not None else tuple(order.fields)


def unsortable(metadata: TableMetadata, order: SortOrder) -> str | None:
    """Return which part of a sort order cannot be followed; `None` if all can."""
    columns = {column.field_id for column in metadata.schema().fields}
    for number, field in enumerate(order.fields, start=1):
        name = metadata.schema().find_column_name(field.source_id)
        if name is None:
            return "a column that was dropped"
        if field.source_id not in columns:
            return f"the nested column {name}"
        is_last = number == len(order.fields)
        if isinstance(field.transform, IdentityTransform) or (
            is_last and isinstance(field.transform, _MONOTONIC)
        ):
            continue
        return f"{field.transform} of {name}"
    return None


def row_order(metadata: TableMetadata, file_schema: Schema, order_id: int, time_name: str) -> RowOrder:
    """Return the table's sort order with this id, with the file schema's names; by time if there is none, and
    no order if `time_name` is empty too."""
    fields = sort_fields(metadata, order_id)
    if not fields:
        return RowOrder((SortKey(time_name),) if time_name else (), 0, True)
    names = {field.field_id: field.name for field in file_schema.fields}
    keys = tuple(
        SortKey(
            names[field.source_id],
            field.direction == SortDirection.DESC,
            field.null_order == NullOrder.NULLS_LAST,
        )
        for field in fields
    )
    return RowOrder(keys, order_id, keys[0] == SortKey(time_name))


def sort_rows(table: pa.Table, order: RowOrder) -> pa.Table:
    if table.num_rows < 2 or not order.keys:
        return table
    columns = {key.name: table.column(key.name) for key in order.keys}
    sort_keys: list[tuple[str, str, str]] = []
    for number, key in enumerate(order.keys):
        direction = "descending" if key.is_descending else "ascending"
        nulls = "at_end" if key.nulls_last else "at_start"
        column = columns[key.name]
        if isinstance(column.type, pa.BaseExtensionType):
            column = columns[key.name] = column.cast(column.type.storage_type)
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            columns[f"{_NAN_KEY}{number}"] = pc.is_nan(column)
            sort_keys.append((f"{_NAN_KEY}{number}", direction, nulls))
        sort_keys.append((key.name, direction, nulls))
    return table.take(pc.sort_indices(pa.table(columns), sort_keys=sort_keys))

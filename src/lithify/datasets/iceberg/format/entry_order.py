"""The order of entries in a table's manifests, so that a query opens few manifests.

1. Order by partition: first the field made from the time column, then those from any date or timestamp, then
   the others in the spec's order. So a query for one day opens that day's manifests, of all devices.
2. Within a partition, order by time (the files' lower bounds), then by path, so that the order is total.
3. Null is before all values, NaN after them.

Partition field types come from the newest schema that has their source columns. A spec without such a schema
has no order.
"""

from __future__ import annotations

import struct
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    DateType,
    IcebergType,
    NestedField,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from lithify.datasets.iceberg.format.manifest_plan import Bound
from lithify.datasets.iceberg.format.time_column import bound_us

_TIMES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_NULL: Bound = (0,)
_NOT_A_NUMBER: Bound = (2,)
_LEAST: Bound = (-1,)
_MOST: Bound = (3,)


class EntryOrder:
    """The order of entries of one partition spec."""

    def __init__(self, spec: PartitionSpec, schema: Schema, time_column: NestedField | None) -> None:
        """`schema` has the source columns of the spec."""
        self._time_column = time_column
        time_id = None if time_column is None else time_column.field_id

        def rank(position: int) -> int:
            field = spec.fields[position]
            if isinstance(field.transform, VoidTransform):
                return 3
            if field.source_id == time_id:
                return 0
            return 1 if isinstance(schema.find_type(field.source_id), _TIMES) else 2

        self._positions = sorted(range(len(spec.fields)), key=rank)
        self._leading: tuple[int, IcebergType] | None = None
        if self._positions and rank(self._positions[0]) < 3:
            first = self._positions[0]
            self._leading = first, spec.partition_type(schema).fields[first].field_type

    def key(self, entry: ManifestEntry) -> tuple[Any, ...]:
        file = entry.data_file
        column, time_us = self._time_column, None
        if column is not None:
            time_us = bound_us(column.field_type, (file.lower_bounds or {}).get(column.field_id))
        places = (_place(file.partition[n]) for n in self._positions)
        return (*places, _place(time_us), file.file_path)

    def bounds(self, manifest: ManifestFile) -> tuple[Bound, Bound]:
        """Return a manifest's bounds of the leading field: all the same without such a field, and everything
        if the manifest list lacks them or they do not decode."""
        if self._leading is None:
            return (), ()
        position, kind = self._leading
        if manifest.partitions is None or len(manifest.partitions) <= position:
            return _LEAST, _MOST
        summary = manifest.partitions[position]
        places = []
        for bound in (summary.lower_bound, summary.upper_bound):
            if bound is not None:
                try:
                    places.append(_place(from_bytes(_primitive(kind), bound)))
                except (struct.error, ValueError):
                    return _LEAST, _MOST
        if summary.contains_null:
            places.append(_NULL)
        if summary.contains_nan:
            places.append(_NOT_A_NUMBER)
        return (min(places), max(places)) if places else (_LEAST, _MOST)


def schema_for(metadata: TableMetadata, spec: PartitionSpec) -> Schema | None:
    """Return the newest schema that has all source columns of a spec; the current schema is preferred."""
    newest = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
    for schema in (metadata.schema(), *newest):
        if all(_has(schema, field.source_id) for field in spec.fields):
            return schema
    return None


def _has(schema: Schema, field_id: int) -> bool:
    return schema.find_column_name(field_id) is not None


def _primitive(kind: IcebergType) -> PrimitiveType:
    assert isinstance(kind, PrimitiveType)
    return kind


def _place(value: Any) -> Bound:
    if value is None:
        return _NULL
    if isinstance(value, float) and value != value:
        return _NOT_A_NUMBER
    return 1, value

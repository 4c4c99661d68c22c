"""Partitions of Iceberg tables: their equality, and their names in paths and summaries.

A value outside Python's calendar, such as a day of year 10000, is named by its number. Partitions of one spec
have different names: a text equal to null's name is named by its code points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

_NO_VALUE = "null"
"""The name that transforms give to null."""
Place = tuple[int, tuple[Any, ...]]
"""A partition spec's id and the values of a partition, as a key."""


def place_of(file: DataFile) -> Place:
    return place(file.spec_id, [file.partition[n] for n in range(len(file.partition))])


def place(spec_id: int, values: Sequence[Any]) -> Place:
    """Return the partition with these values. Floats are compared by name, so that all NaN are one value and
    the two zeros differ."""
    return spec_id, tuple(repr(value) if isinstance(value, float) else value for value in values)


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Return whether a spec has no partitions, also because all its fields were dropped in format version 1.
    PyIceberg takes such a spec for partitioned, and would not apply its equality deletes to all files."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


def partition_path(spec: PartitionSpec, partition: Record, schema: Schema) -> str:
    """Return a name such as `day=2025-01-01/device=a`; empty for an unpartitioned spec."""
    return partition_paths(spec, schema)(partition)


def partition_paths(spec: PartitionSpec, schema: Schema) -> Callable[[Record], str]:
    """Return a function that names the partitions of a spec as `partition_path` does."""
    if any(schema.find_column_name(field.source_id) is None for field in spec.fields):
        return repr  # a source column was dropped, so its type is unknown
    types = spec.partition_type(schema).fields
    fields = [
        (n, quote_plus(field.name, safe=""), field, of.field_type)
        for n, (field, of) in enumerate(zip(spec.fields, types, strict=True))
    ]
    return lambda partition: "/".join(
        f"{name}={_quoted(field, kind, partition[n])}" for n, name, field, kind in fields
    )


def _quoted(field: PartitionField, kind: IcebergType, value: Any) -> str:
    text = _text(field, kind, value)
    if value is not None and text == _NO_VALUE:
        return "".join(f"%{ord(letter):02X}" for letter in text)
    return quote_plus(text, safe="")


def _text(field: PartitionField, kind: IcebergType, value: Any) -> str:
    try:
        return field.transform.to_human_string(kind, value=value)
    except (OverflowError, ValueError):
        return str(value)

"""Floating-point columns of outputs, and their NaN values, which bounds exclude.

1. Without a count of NaN in the manifest, Java and PyIceberg assume that all rows match a filter that
   contains the file's bounds: a delete then drops the whole file. So NaN are counted.
2. Arrow and DuckDB skip a row group whose footer bounds are outside a filter. They ignore NaN as a bound,
   which Java writes, but Arrow writes the bounds of the other numbers. So a footer has no statistics of a
   column with NaN.

Those columns are chosen before the first row is written, so `NanColumns` reads all rows of a task first.
Columns without NaN take their bounds from the footer; for the others `FloatMetrics` collects them from the
rows. Elements of lists and maps never have bounds.

A zero bound is -0.0 below and 0.0 above, as Parquet's specification requires: SQL treats them as equal, Java
orders them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

from lithify.datasets.iceberg.model import NewFile


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """A floating-point column, or such a field of a struct."""

    field_id: int
    steps: tuple[str, ...]
    """Names of the column and of the fields inside it."""

    @property
    def path(self) -> str:
        """The path in a footer."""
        return ".".join(self.steps)

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the values; null if an enclosing struct is null."""
        column = table.column(self.steps[0])
        return pc.struct_field(column, list(self.steps[1:])) if len(self.steps) > 1 else column


def float_columns(schema: Schema) -> tuple[FloatColumn, ...]:
    """Return all floating-point columns outside lists and maps."""
    return tuple(column for field in schema.fields for column in _columns(field, ()))


def _columns(field: NestedField, steps: tuple[str, ...]) -> Iterator[FloatColumn]:
    steps = (*steps, field.name)
    if isinstance(field.field_type, FloatType | DoubleType):
        yield FloatColumn(field.field_id, steps)
    elif isinstance(field.field_type, StructType):
        for part in field.field_type.fields:
            yield from _columns(part, steps)


class NanColumns:
    """The columns of a schema in which NaN was found."""

    def __init__(self, schema: Schema) -> None:
        self._clean = set(float_columns(schema))
        self._leaves = parquet_path_to_id_mapping(schema)
        self._bounded = {column.field_id for column in self._clean}
        self._floats = {
            field_id
            for field_id in self._leaves.values()
            if isinstance(schema.find_type(field_id), FloatType | DoubleType)
        }
        self.found: set[FloatColumn] = set()

    def look_at(self, table: pa.Table) -> None:
        found = {column for column in self._clean if pc.any(pc.is_nan(column.values(table))).as_py()}
        self._clean -= found
        self.found |= found

    def with_statistics(self) -> list[str]:
        """Return the paths of all leaves whose footer statistics hide no row."""
        without = (self._floats - self._bounded) | {column.field_id for column in self.found}
        return [path for path, field_id in self._leaves.items() if field_id not in without]


@dataclass(slots=True)
class FloatMetrics:
    nulls: int = 0
    nans: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        nans = pc.sum(pc.is_nan(values)).as_py() or 0
        self.nans += nans
        if nans + values.null_count < len(values):
            bounds = pc.min_max(values).as_py()
            self.low, self.high = min(self.low, bounds["min"]), max(self.high, bounds["max"])

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and highest number; `None` if there are none."""
        if self.low > self.high:
            return None
        return self.low if self.low else -0.0, self.high if self.high else 0.0


def without_uncounted(file: NewFile, columns: Iterable[FloatColumn]) -> NewFile:
    """Return the file without bounds of columns whose NaN were not counted: an earlier version of Lithify may
    have run the compaction."""
    uncounted = {column.field_id for column in columns} - file.nan_value_counts.keys()
    return replace(
        file,
        lower_bounds={n: bound for n, bound in file.lower_bounds.items() if n not in uncounted},
        upper_bounds={n: bound for n, bound in file.upper_bounds.items() if n not in uncounted},
    )

"""Floating-point columns of outputs, and NaN in them.

A reader that decides by bounds needs to know of NaN, which lies in no bounds:

1. If a manifest counts no NaN, Java and PyIceberg take a file whose bounds lie inside a filter for one that
   matches it whole: a delete drops the file with all its rows. So NaN is counted for the manifest.
2. Arrow and DuckDB leave out a row group whose bounds in the footer lie outside a filter. Java's footers have
   NaN as a bound, which both read as no bound; Arrow's footers have the bounds of the numbers. So the footer
   of a file has no statistics of a column in which there is any NaN.

The columns with statistics are chosen before a file's first row is written, so `NanColumns` sees all rows of
a task before that. A column without NaN has its bounds from the footer; for the others `FloatMetrics`
collects them from the rows. Elements of lists and maps have no bounds anywhere.

A zero is bounded by both zeros, as Parquet's specification asks: they are equal in SQL, and ordered in Java.
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
    """A floating-point column, or a field of one that is a struct."""

    field_id: int
    steps: tuple[str, ...]
    """Names of the column and of the fields inside it."""

    @property
    def path(self) -> str:
        """Its name in a footer."""
        return ".".join(self.steps)

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """Its values; null where a struct around it is."""
        column = table.column(self.steps[0])
        return pc.struct_field(column, list(self.steps[1:])) if len(self.steps) > 1 else column


def float_columns(schema: Schema) -> tuple[FloatColumn, ...]:
    """All that can have bounds: those outside of lists and maps."""
    return tuple(column for field in schema.fields for column in _columns(field, ()))


def _columns(field: NestedField, steps: tuple[str, ...]) -> Iterator[FloatColumn]:
    steps = (*steps, field.name)
    if isinstance(field.field_type, FloatType | DoubleType):
        yield FloatColumn(field.field_id, steps)
    elif isinstance(field.field_type, StructType):
        for part in field.field_type.fields:
            yield from _columns(part, steps)


class NanColumns:
    """The columns of a schema in which any NaN was seen."""

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
        """Note the columns of these rows that have NaN."""
        found = {column for column in self._clean if pc.any(pc.is_nan(column.values(table))).as_py()}
        self._clean -= found
        self.found |= found

    def with_statistics(self) -> list[str]:
        """Paths of all leaves whose statistics in a footer hide no row."""
        without = (self._floats - self._bounded) | {column.field_id for column in self.found}
        return [path for path, field_id in self._leaves.items() if field_id not in without]


@dataclass(slots=True)
class FloatMetrics:
    """What is known of a column of one file."""

    nulls: int = 0
    nans: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: pa.ChunkedArray) -> None:
        """Take more rows in."""
        self.nulls += values.null_count
        nans = pc.sum(pc.is_nan(values)).as_py() or 0
        self.nans += nans
        if nans + values.null_count < len(values):
            bounds = pc.min_max(values).as_py()
            self.low, self.high = min(self.low, bounds["min"]), max(self.high, bounds["max"])

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the greatest number; `None` where there is none."""
        if self.low > self.high:
            return None
        return self.low if self.low else -0.0, self.high if self.high else 0.0


def without_uncounted(file: NewFile, columns: Iterable[FloatColumn]) -> NewFile:
    """The file without bounds of those columns whose NaN were not counted: a compaction that an earlier
    version of Lithify began may be committed by this one."""
    uncounted = {column.field_id for column in columns} - file.nan_value_counts.keys()
    return replace(
        file,
        lower_bounds={n: bound for n, bound in file.lower_bounds.items() if n not in uncounted},
        upper_bounds={n: bound for n, bound in file.upper_bounds.items() if n not in uncounted},
    )

"""Reading the rows of a range, as batches of the schema in which they will be written.

1. A file that has no deletes, and whose columns are the outputs' in every respect (`stored`), is read as it
   is: for a small file the way through PyIceberg takes longer than decoding it.
2. Of every other file PyIceberg applies the position deletes, projects old schemas and partition values
   onto the current schema, and filters. Its public scan holds all batches of a file at once; the
   generator below it, which is used here, does not.

Field ids go with the columns, so that outputs have them. Texts that repeat stay the dictionaries that
they are in the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    Or,
)
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _read_all_delete_files,
    _to_requested_schema,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import FileScanTask

from lithify.datasets.iceberg.foreign import translated
from lithify.datasets.iceberg.model import TimeRange
from lithify.datasets.iceberg.stored import batches_in_range, has_columns, with_small_offsets
from lithify.datasets.iceberg.task import RewriteTask, SourceFile
from lithify.datasets.iceberg.timecolumn import to_literal

# Typed by hand: PyIceberg's models hide their own constructors from type checkers.
_AT_LEAST: Callable[[str, int], BooleanExpression] = cast(Any, GreaterThanOrEqual)
_BEFORE: Callable[[str, int], BooleanExpression] = cast(Any, LessThan)
_IS_NULL: Callable[[str], BooleanExpression] = cast(Any, IsNull)

_FIELD_ID = b"PARQUET:field_id"
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


class RangeReader:
    """The rows of a task's range."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._schema = task.metadata.schema()
        self.file_schema: Schema = sanitize_column_names(self._schema)
        """The schema of the outputs: the table's, with names as files have them."""
        plain: pa.Schema = schema_to_pyarrow(self.file_schema, include_field_ids=True)
        self._stored = (plain, with_small_offsets(plain))
        """How Arrow may read the columns of a file that needs no projection."""
        repeating = frozenset(task.repeating)
        self.arrow_schema = pa.schema([_with_dictionaries(field, repeating) for field in plain])
        paths = parquet_path_to_id_mapping(self.file_schema)
        self._dictionaries = tuple(path for path, field_id in paths.items() if field_id in task.repeating)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)

    def column_name(self, field_id: int) -> str:
        """The name of a top-level column in the outputs."""
        return next(f.name for f in self.file_schema.fields if f.field_id == field_id)

    def batches(self, source: SourceFile) -> Iterator[pa.RecordBatch]:
        """The rows of one source that belong to the range, deletes applied."""
        path = source.file.file_path
        with translated(f"reading {path}"):
            if source.delete_files:
                yield from self._projected(source)
                return
            with self._task.io.new_input(path).open() as stream:
                footer = pq.ParquetFile(stream)
                if has_columns(footer, self._stored):
                    file = pq.ParquetFile(
                        stream, metadata=footer.metadata, read_dictionary=self._dictionaries, pre_buffer=True
                    )
                    wanted = None if source.is_inside else self._task.range
                    time_name = self.column_name(self._task.time_field_id)
                    yield from batches_in_range(file, self.arrow_schema, time_name, wanted)
                    return
            yield from self._projected(source)

    def _projected(self, source: SourceFile) -> Iterator[pa.RecordBatch]:
        """The same, by PyIceberg."""
        task = self._task
        row_filter = AlwaysTrue() if source.is_inside else self._filter(task.range)
        scan = ArrowScan(
            task.metadata, task.io, self._schema, row_filter, dictionary_columns=self._dictionaries
        )
        scan_task = FileScanTask(source.file, delete_files=set(source.delete_files))
        deletes = _read_all_delete_files(task.io, [scan_task])
        for batch in scan._record_batches_from_scan_tasks_and_deletes([scan_task], deletes):
            yield self._to_output(batch)

    def _to_output(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        projected = _to_requested_schema(
            self.file_schema, self._schema, batch, include_field_ids=True, format_model=self._model
        )
        if projected.schema.equals(self.arrow_schema, check_metadata=True):
            return projected
        table = pa.Table.from_batches([projected]).cast(self.arrow_schema).combine_chunks()
        return table.to_batches()[0]

    def _filter(self, wanted: TimeRange) -> BooleanExpression:
        column = self._schema.find_field(self._task.time_field_id)
        time = column.name
        terms: list[BooleanExpression] = []
        if wanted.start_us is not None:
            literal = to_literal(column.field_type, wanted.start_us)
            terms.append(_AT_LEAST(time, literal))
        if wanted.end_us is not None:
            terms.append(_BEFORE(time, to_literal(column.field_type, wanted.end_us)))
        if not terms:
            return AlwaysTrue()
        inside = And(*terms) if len(terms) > 1 else terms[0]
        return Or(inside, _IS_NULL(time)) if wanted.with_nulls else inside


def _with_dictionaries(field: pa.Field, field_ids: Set[int]) -> pa.Field:
    """The field with a dictionary where it, or the element of its list, is one of these texts."""
    if int(field.metadata[_FIELD_ID]) in field_ids:
        return field.with_type(_DICTIONARY)
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        element = field.type.value_field
        if int(element.metadata[_FIELD_ID]) in field_ids:
            return field.with_type(pa.list_(element.with_type(_DICTIONARY)))
    return field


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Dictionaries are meant here; PyIceberg would say for every file that it has no such type."""
    return "does not have a dictionary type" not in record.getMessage()


logging.getLogger("pyiceberg.io.pyarrow").addFilter(_is_of_interest)

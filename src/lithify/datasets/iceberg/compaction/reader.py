"""Reading the rows of a range, as batches of the schema in which they will be written.

1. A file without deletes, whose columns are the outputs' in every respect (`stored`), is read directly: for a
   small file, any other step takes longer than decoding it.
2. Any other file that must not be rewritten (`columns.why_unfit`) is refused. The planner skips the ones it
   can detect.
3. For every other file, rows deleted by position are dropped, and the rest is projected onto the current
   schema, with the values of its partition for columns that the file lacks (`projection`). Then rows are
   dropped whose key was deleted after the file was added (`equality_keys`).

Row groups without a row of the range are skipped if their statistics show it. Columns keep their field ids,
so that outputs have them. Repeating texts stay dictionaries, as in the files. In format version 3, rows keep
their identity (`row_ids`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, sanitize_column_names

from lithify.base.errors import Unsupported
from lithify.datasets.iceberg.compaction.parquet_source import (
    batches_near_range,
    has_columns,
    rows_in_range,
    with_small_offsets,
)
from lithify.datasets.iceberg.compaction.task import RewriteTask, SourceFile
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedPositions, DeletedRows
from lithify.datasets.iceberg.deletes.equality_keys import DeletedKeys
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.columns import FileColumn, columns_of, open_file, why_unfit
from lithify.datasets.iceberg.format.projection import Projection, constants_of
from lithify.datasets.iceberg.format.row_ids import ROW_ID_COLUMNS, RowIds
from lithify.datasets.iceberg.io.prefetch import DataPath, OpenedAhead, PrefetchExtent
from lithify.datasets.iceberg.model import TimeRange

_FIELD_ID = b"PARQUET:field_id"
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


class RangeReader:
    """A reader of the rows of a task's range."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._schema = task.schema
        self.file_schema: Schema = sanitize_column_names(self._schema)
        """The schema of the outputs: the table's, with the identity of rows if they have one, and with column
        names as in files."""
        plain: pa.Schema = schema_to_pyarrow(self.file_schema, include_field_ids=True)
        self._has_row_ids = task.has_row_ids
        shorter = [pa.schema(list(plain)[:-ROW_ID_COLUMNS])] if self._has_row_ids else []
        self._stored = [one for schema in (plain, *shorter) for one in (schema, with_small_offsets(schema))]
        """The schemas in which Arrow may read a file that needs no projection."""
        repeating = frozenset(task.repeating)
        self.arrow_schema = pa.schema([_with_dictionaries(field, repeating) for field in plain])
        paths = parquet_path_to_id_mapping(self.file_schema)
        self._dictionaries = tuple(path for path, field_id in paths.items() if field_id in task.repeating)
        self._names = task.metadata.name_mapping()
        self._deleted_rows = DeletedRows(task.io, task.sources)
        self._newest_delete = max((delete.number for delete in task.equality_deletes), default=-1)

    def column_name(self, field_id: int) -> str:
        """Return the name of a top-level column in the outputs; empty for `NO_COLUMN`."""
        return next((f.name for f in self.file_schema.fields if f.field_id == field_id), "")

    def opened_ahead(self) -> OpenedAhead:
        """Open the sources' files ahead, in order."""
        files = [
            DataPath.of(source.file, PrefetchExtent.ALL if source.is_inside else PrefetchExtent.SOME)
            for source in self._task.sources
        ]
        return OpenedAhead(self._task.io, files)

    def batches(self, source: SourceFile, files: OpenedAhead) -> Iterator[pa.RecordBatch]:
        """Yield one source's rows that belong to the range, with deletes applied; its file is the next of
        `files`."""
        path = source.file.file_path
        with translated(f"reading {path}"), files.take() as stream:
            footer = pq.ParquetFile(stream)
            file = open_file(stream, self._dictionaries, footer.metadata)
            wanted = None if source.is_inside else self._task.range
            if (
                not source.delete_files
                and not self._may_have_deleted(source)
                and has_columns(footer, self._stored)
            ):
                time_name = self.column_name(self._task.time_field_id)
                for start, batch in batches_near_range(file, time_name, wanted):
                    rows = self._identified(self._complete(batch), source, start)
                    yield from rows_in_range(rows, time_name, wanted)
                return
            reason = why_unfit(footer, self._schema, self._names)
            if reason is not None:
                raise Unsupported(f"{path} cannot be rewritten; such files {reason}")
            yield from self._projected(file, source, wanted)

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that have the columns of the outputs, except perhaps those of their identity."""
        missing = [pa.nulls(batch.num_rows, f.type) for f in list(self.arrow_schema)[batch.num_columns :]]
        names = self.arrow_schema.names
        return pa.RecordBatch.from_arrays([*batch.columns, *missing], names).cast(self.arrow_schema)

    def _projected(
        self, file: pq.ParquetFile, source: SourceFile, wanted: TimeRange | None
    ) -> Iterator[pa.RecordBatch]:
        columns = columns_of(file.schema_arrow, self._names)
        projection = self._projection(columns, source)
        time_id, deleted = self._task.time_field_id, self._deleted_rows.of(source)
        time_in_file = next((column.name for column in columns if column.field_id == time_id), None)
        time_name = self.column_name(time_id)
        for start, batch in batches_near_range(file, time_in_file, wanted):
            keep = _kept(batch, deleted, start)
            kept = batch if keep is None else batch.filter(pa.array(keep))
            projected = self._identified(projection.apply(kept), source, start, keep)
            for rows in rows_in_range(projected, time_name, wanted):
                if self._may_have_deleted(source):
                    rows = self._deleted_keys.left(rows, source.number)
                if rows.num_rows:
                    yield rows

    def _identified(
        self,
        rows: pa.RecordBatch,
        source: SourceFile,
        start: int,
        keep: npt.NDArray[np.bool_] | None = None,
    ) -> pa.RecordBatch:
        """Return rows with their identity. They are at `start` in their file, and only those of `keep`."""
        if not self._has_row_ids:
            return rows
        count = rows.num_rows if keep is None else len(keep)
        positions = np.arange(start, start + count)
        row_ids = RowIds(source.first_row_id, source.number)
        return row_ids.fill(rows, positions if keep is None else positions[keep])

    def _may_have_deleted(self, source: SourceFile) -> bool:
        """Return whether an equality delete file applies to a source."""
        return self._newest_delete > source.number

    @cached_property
    def _deleted_keys(self) -> DeletedKeys:
        schema = self._task.metadata.schema()
        return DeletedKeys(self._task.io, self._task.equality_deletes, schema, self._names)

    def _projection(self, columns: tuple[FileColumn, ...], source: SourceFile) -> Projection:
        spec = self._task.metadata.specs()[self._task.spec_id]
        constants = constants_of(source.file, columns, self._task.metadata.schema(), spec)
        return Projection(columns, self.arrow_schema, constants, source.file.file_path)


def _kept(batch: pa.RecordBatch, deleted: DeletedPositions, start: int) -> npt.NDArray[np.bool_] | None:
    """Return which rows of a batch are not at deleted positions; `None` for all. `start` is the batch's
    position in its file."""
    positions = deleted.between(start, start + batch.num_rows)
    if not len(positions):
        return None
    keep = np.ones(batch.num_rows, np.bool_)
    keep[positions - start] = False
    return keep


def _with_dictionaries(field: pa.Field, field_ids: Set[int]) -> pa.Field:
    """Return the field with a dictionary if it, or the element of its list, is one of these texts."""
    if int(field.metadata[_FIELD_ID]) in field_ids:
        return field.with_type(_DICTIONARY)
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        element = field.type.value_field
        if int(element.metadata[_FIELD_ID]) in field_ids:
            return field.with_type(pa.list_(element.with_type(_DICTIONARY)))
    return field

"""Writing sorted rows to Parquet data files of about even size, with the statistics for the manifest.

Names of files are new for each attempt, so a retry or a twin never collides, and nothing counts until it
is committed. Files in a store are sent while the next one is written. The statistics are those that the
table's properties ask for; those of the time column are always full, because the next plan needs them.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from lithify.base import concurrency
from lithify.datasets.iceberg.compaction.encoding import without_dictionary
from lithify.datasets.iceberg.compaction.task import RewriteTask
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.floats import FloatColumn, FloatMetrics, NanColumns
from lithify.datasets.iceberg.format.metrics_modes import FULL, metrics_modes
from lithify.datasets.iceberg.format.partitions import partition_path
from lithify.datasets.iceberg.format.sizing import RowGroups, batch_values
from lithify.datasets.iceberg.format.statistics import column_statistics, split_offsets
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.write_options import write_options
from lithify.datasets.iceberg.io.store_file_io import MIB, StoredFile
from lithify.datasets.iceberg.model import NewFile

MAX_UPLOADS = 8
"""Finished files that are being sent at once."""
MAX_UPLOAD_BYTES = 128 * MIB
"""The same in bytes, but for a single file that is larger: what is not sent yet is in memory."""
SAMPLES = 8
SAMPLE_ROWS = 8192


@dataclass(frozen=True)
class KnownPartition(PartitionKey):
    """A partition whose values need not be computed from rows."""

    record: Record

    @property
    def partition(self) -> Record:
        return self.record

    def to_path(self) -> str:
        return partition_path(self.partition_spec, self.record, self.schema)


class OpenFile:
    """A Parquet file that is being written."""

    def __init__(
        self,
        output: OutputFile,
        schema: pa.Schema,
        options: Mapping[str, Any],
        with_nan: Iterable[FloatColumn],
        notes: Mapping[str, str],
    ) -> None:
        """`notes`: the metadata of the file's footer."""
        self.output = output
        self._nans = {column: FloatMetrics() for column in with_nan}
        self._stream = output.create(overwrite=True)
        # Arrow's own note of the schema would name the dictionaries of this process as types of columns.
        self._writer = pq.ParquetWriter(
            cast(IO[Any], self._stream),
            schema,
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            **options,
        )
        self._writer.add_key_value_metadata(notes)

    def write(self, table: pa.Table) -> int:
        """Append rows as a row group. Return how many bytes it takes."""
        for column, metrics in self._nans.items():
            metrics.add(column.values(table))
        before = self._stream.tell()
        self._writer.write(table, row_group_size=table.num_rows)
        return self._stream.tell() - before

    @property
    def nans(self) -> dict[int, FloatMetrics]:
        """What is known of the columns that have NaN, by field id."""
        return {column.field_id: metrics for column, metrics in self._nans.items()}

    def end(self) -> tuple[pq.FileMetaData, int]:
        """All is written: the footer, and the bytes of the file. `close` has to follow."""
        self._writer.close()
        return self._writer.writer.metadata, self._stream.tell()

    def close(self) -> None:
        """The file is there when this returns, which takes as long as the rest of an upload."""
        with translated(f"writing {self.output.location}"):
            self._stream.close()

    def abandon(self, error: BaseException) -> None:
        """It is not wanted any more, because of an error."""
        self._writer.is_open = False  # so that it writes no footer when it is forgotten
        with translated(f"giving up {self.output.location}"):
            self._stream.__exit__(type(error), error, error.__traceback__)


class DataWriter:
    """Writes the outputs of one task."""

    def __init__(self, task: RewriteTask, file_schema: Schema, attempt: str, nans: NanColumns) -> None:
        """`nans` knows all rows before the first is written."""
        metadata = task.metadata
        self._io = task.io
        self._schema = file_schema
        self._modes = {**metrics_modes(metadata), task.time_field_id: FULL}
        self._locations = locations_of(metadata, task.io.properties)
        spec = metadata.specs()[task.spec_id]
        self._partition = (
            None
            if spec.is_unpartitioned()
            else KnownPartition([], spec, metadata.schema(), task.sources[0].file.partition)
        )
        self._name = f"{task.name_prefix}-{attempt}"
        self.options = write_options(properties_of(metadata))
        self._nans = nans
        self._notes = {"iceberg.schema": metadata.schema().model_dump_json()}
        self._leaves = tuple(parquet_path_to_id_mapping(file_schema))
        self._dictionaries: list[str] | None = None
        """Columns that may get a dictionary, known since the first rows."""
        self.sources: tuple[int, ...] = ()
        """Of the rows that are being written: what files that are finished now are marked with."""
        self.finished: list[NewFile] = []
        self._started: list[str] = []
        self._uploads: deque[tuple[int, Callable[[], None]]] = deque()
        """Each with the bytes of its file, and what waits for its end."""
        self._beside: set[OpenFile] = set()
        """All that were sent so."""
        self._uploading_bytes = 0
        self._open: set[OpenFile] = set()
        """Files that are not known to be there."""
        self.written_bytes = 0
        """Of the files that are there."""

    def open(self, first: pa.Table) -> OpenFile:
        """A new file that begins with these rows."""
        path = self._locations.new_data_location(
            f"{self._name}-{len(self._started):05d}.parquet", self._partition
        )
        self._started.append(path)
        with translated(f"writing {path}"):
            options = {
                **self._options(first),
                "use_dictionary": self._choose_dictionaries(first),
                "write_statistics": self._nans.with_statistics(),
            }
            file = OpenFile(self._io.new_output(path), first.schema, options, self._nans.found, self._notes)
        self._open.add(file)
        return file

    def _choose_dictionaries(self, table: pa.Table) -> list[str]:
        if self._dictionaries is None:
            plain = without_dictionary(table, self._plain_bytes)
            self._dictionaries = [path for path in self._leaves if path not in plain]
        return self._dictionaries

    def finish(self, file: OpenFile, order_id: int) -> None:
        """End a file and take its statistics. One in a store is there after `finish_uploads` only."""
        output = file.output
        with translated(f"writing {output.location}"):
            footer, size_bytes = file.end()
        if isinstance(output, StoredFile):
            self._upload_beside(file, size_bytes)
        else:
            self._close(file)
            self.written_bytes += size_bytes
        columns = column_statistics(footer, self._schema, self._modes, file.nans)
        self.finished.append(
            NewFile(
                path=output.location,
                size_bytes=size_bytes,
                rows=footer.num_rows,
                sort_order_id=order_id or None,
                column_sizes=columns.sizes,
                value_counts=columns.value_counts,
                null_value_counts=columns.null_counts,
                nan_value_counts=columns.nan_counts,
                lower_bounds=columns.lower_bounds,
                upper_bounds=columns.upper_bounds,
                split_offsets=split_offsets(footer),
                sources=self.sources,
            )
        )

    def _close(self, file: OpenFile) -> None:
        file.close()
        self._open.discard(file)

    def _upload_beside(self, file: OpenFile, size_bytes: int) -> None:
        while self._uploads and (
            len(self._uploads) == MAX_UPLOADS or self._uploading_bytes + size_bytes > MAX_UPLOAD_BYTES
        ):
            self._finish_upload()
        self._beside.add(file)
        finish = concurrency.beside.start(partial(self._close, file))
        self._uploads.append((size_bytes, finish))
        self._uploading_bytes += size_bytes

    def _finish_upload(self) -> None:
        size_bytes, finish = self._uploads.popleft()
        finish()
        self._uploading_bytes -= size_bytes
        self.written_bytes += size_bytes

    def finish_uploads(self, moved: Callable[[], None]) -> None:
        """All finished files are there when this returns; `moved` is called whenever one is."""
        while self._uploads:
            self._finish_upload()
            moved()

    def abandon(self, error: BaseException) -> None:
        """Delete what was written before an error; nothing names it. An interrupt waits for no upload: what
        comes to be there after it is garbage."""
        if isinstance(error, Exception):
            # What is on its way has to be there before it can be deleted.
            for _, finish in self._uploads:
                with suppress(Exception):
                    finish()
        else:
            self._open -= self._beside
        for file in self._open:
            file.abandon(error)
        for path in self._started:
            with translated(f"deleting {path}"):
                try:
                    self._io.delete(path)
                except FileNotFoundError:
                    continue

    def stored_bytes_per_row(self, table: pa.Table) -> float:
        """How much a row of this table takes in a file, from samples of consecutive rows."""
        step = max(table.num_rows // SAMPLES, 1)
        slices = [table.slice(start, min(SAMPLE_ROWS, step)) for start in range(0, table.num_rows, step)]
        sample = pa.concat_tables(slices)
        rows: int = sample.num_rows
        return self._stored_bytes(sample, self._choose_dictionaries(table)) / rows

    def _plain_bytes(self, table: pa.Table) -> int:
        return self._stored_bytes(table, [])

    def _stored_bytes(self, table: pa.Table, dictionaries: list[str]) -> int:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, use_dictionary=dictionaries, **self._options(table))
        return buffer.tell()

    def _options(self, table: pa.Table) -> dict[str, Any]:
        return {**self.options.parquet, "write_batch_size": batch_values(table, self.options.page_bytes)}


class RollingWriter:
    """Writes rows in the order they come to files of `rows_per_file` rows."""

    def __init__(
        self, files: DataWriter, rows_per_file: int, stored_bytes_per_row: float, order_id: int
    ) -> None:
        self._files = files
        self._rows_per_file = rows_per_file
        self._order_id = order_id
        self._open: OpenFile | None = None
        self._rows = 0
        options = files.options
        self._groups = RowGroups(options.row_group_bytes, options.row_group_rows, stored_bytes_per_row)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        while table.num_rows:
            rows = self._groups.rows(table, self._rows_per_file - self._rows)
            part, table = table.slice(0, rows), table.slice(rows)
            if self._open is None:
                self._open = self._files.open(part)
            with translated(f"writing {self._open.output.location}"):
                self._groups.add(part, self._open.write(part))
            self._rows += rows
            if self._rows == self._rows_per_file:
                self.close()

    def close(self) -> None:
        """End the file in progress, if any."""
        if self._open is not None:
            self._files.finish(self._open, self._order_id)
            self._open, self._rows = None, 0

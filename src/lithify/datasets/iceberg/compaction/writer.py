"""Writing sorted rows to Parquet data files of roughly equal size, with the statistics for the manifest.

Names of files are new for each attempt, so retries and concurrent attempts never collide, and no file counts
until it is committed. Files in a store are uploaded while the next one is written. The table's properties
select the statistics; those of the time column are always complete, because the next plan needs them.
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
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lithify.base import concurrency
from lithify.datasets.iceberg.compaction.encoding import without_dictionary
from lithify.datasets.iceberg.compaction.row_map import RowMapWriter, checksum, path_of, without_origins
from lithify.datasets.iceberg.compaction.task import RewriteTask
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.bloom_filters import bloom_filters
from lithify.datasets.iceberg.format.entry_order import schema_for
from lithify.datasets.iceberg.format.floats import FloatColumn, FloatMetrics, NanColumns, float_columns
from lithify.datasets.iceberg.format.metrics_modes import FULL, ROW_ID_MODES, metrics_modes
from lithify.datasets.iceberg.format.partitions import partition_path
from lithify.datasets.iceberg.format.sizing import RowGroups, batch_values
from lithify.datasets.iceberg.format.statistics import column_statistics, split_offsets
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.write_options import without_statistics, write_options
from lithify.datasets.iceberg.io.store_file_io import MIB, StoredFile
from lithify.datasets.iceberg.model import NewFile

MAX_UPLOADS = 8
"""The maximum number of concurrent uploads."""
MAX_UPLOAD_BYTES = 128 * MIB
"""The maximum bytes of concurrent uploads, except for a single larger file: data that is not uploaded yet is
in memory."""
SAMPLES = 8
SAMPLE_ROWS = 8192


@dataclass(frozen=True)
class KnownPartition(PartitionKey):
    """A partition with known values that are not computed from rows."""

    record: Record

    @property
    def partition(self) -> Record:
        return self.record

    def to_path(self) -> str:
        return partition_path(self.partition_spec, self.record, self.schema)


def path_in_partition(table: Table, name: str, spec_id: int, partition: Record) -> str:
    """Return the path of a new file with this name, of data or deletes, in a partition of the table."""
    metadata = table.metadata
    spec = metadata.specs()[spec_id]
    schema = schema_for(metadata, spec) or metadata.schema()
    key = None if spec.is_unpartitioned() else KnownPartition([], spec, schema, partition)
    return locations_of(metadata, table.io.properties).new_data_location(name, key)


class OpenFile:
    """A Parquet file that is being written."""

    def __init__(
        self,
        output: OutputFile,
        schema: pa.Schema,
        options: Mapping[str, Any],
        measured: Iterable[FloatColumn],
        notes: Mapping[str, str],
    ) -> None:
        """The metrics of `measured` columns are taken from rows. `notes` are the metadata of the footer."""
        self.output = output
        self._measured = {column: FloatMetrics() for column in measured}
        self._stream = output.create(overwrite=True)
        # Arrow's own schema metadata would record this process's dictionaries as column types.
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
        """Append rows as a row group. Return its stored size in bytes."""
        for column, metrics in self._measured.items():
            metrics.add(column.values(table))
        before = self._stream.tell()
        self._writer.write(table, row_group_size=table.num_rows)
        return self._stream.tell() - before

    @property
    def measured(self) -> dict[int, FloatMetrics]:
        """Return the metrics that the footer lacks, by field id."""
        return {column.field_id: metrics for column, metrics in self._measured.items()}

    def end(self) -> tuple[pq.FileMetaData, int]:
        """Finish writing, and return the footer and the size of the file. Call `close` afterwards."""
        self._writer.close()
        return self._writer.writer.metadata, self._stream.tell()

    def close(self) -> None:
        """Wait for the rest of the upload. The file exists when this returns."""
        with translated(f"writing {self.output.location}"):
            self._stream.close()

    def abandon(self, error: BaseException) -> None:
        """Discard the file because of an error."""
        self._writer.is_open = False  # so that it writes no footer when it is garbage-collected
        with translated(f"giving up {self.output.location}"):
            self._stream.__exit__(type(error), error, error.__traceback__)


class DataWriter:
    """A writer of one task's outputs."""

    def __init__(self, task: RewriteTask, file_schema: Schema, attempt: str, nans: NanColumns) -> None:
        """`nans` must contain all rows before the first is written."""
        metadata = task.metadata
        self._io = task.io
        self._schema = file_schema
        self._modes = {**metrics_modes(metadata), **ROW_ID_MODES, task.time_field_id: FULL}
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
        self._notes = {"iceberg.schema": task.schema.model_dump_json()}
        leaves = parquet_path_to_id_mapping(file_schema)
        self._leaves = tuple(leaves)
        properties = properties_of(metadata)
        without = without_statistics(properties, metadata.schema()) - {task.time_field_id}
        self._without_statistics = {path for path, n in leaves.items() if n in without}
        self._always_measured = {c for c in float_columns(file_schema) if c.field_id in without}
        filters = bloom_filters(properties, metadata.schema())
        self._bloom_filters = {path: filters[n] for path, n in leaves.items() if n in filters}
        self._dictionaries: list[str] | None = None
        """Columns that may get a dictionary, known after the first rows."""
        self.sources: tuple[int, ...] = ()
        """The sources of the rows that are being written, recorded in files that are finished now."""
        self.finished: list[NewFile] = []
        self._started: list[str] = []
        self._maps: list[str] = []
        self._uploads: deque[tuple[int, Callable[[], None]]] = deque()
        """Uploads in progress: the size of each file, and a function that waits for its end."""
        self._beside: set[OpenFile] = set()
        """The files uploaded in this way."""
        self._uploading_bytes = 0
        self._open: set[OpenFile] = set()
        """Files that are not known to exist."""
        self.written_bytes = 0
        """The bytes of files that exist."""

    def open(self, first: pa.Table) -> OpenFile:
        """Open a new file for these first rows."""
        path = self._locations.new_data_location(
            f"{self._name}-{len(self._started):05d}.parquet", self._partition
        )
        self._started.append(path)
        with translated(f"writing {path}"):
            options = {
                **self._options(first),
                "use_dictionary": self._choose_dictionaries(first),
                "write_statistics": [
                    path for path in self._nans.with_statistics() if path not in self._without_statistics
                ],
                "bloom_filter_options": self._bloom_filters,
            }
            measured = self._nans.found | self._always_measured
            file = OpenFile(self._io.new_output(path), first.schema, options, measured, self._notes)
        self._open.add(file)
        return file

    def _choose_dictionaries(self, table: pa.Table) -> list[str]:
        if not self.options.parquet["use_dictionary"]:
            return []
        if self._dictionaries is None:
            plain = without_dictionary(table, self._plain_bytes)
            self._dictionaries = [path for path in self._leaves if path not in plain]
        return self._dictionaries

    def finish(self, file: OpenFile, order_id: int, row_map: bytes | None = None) -> None:
        """End a file and collect its statistics. A file in a store exists only after `finish_uploads`."""
        output = file.output
        with translated(f"writing {output.location}"):
            footer, size_bytes = file.end()
        if row_map is not None:
            self._maps.append(path_of(output.location))
        close = partial(self._close, file, row_map)
        if isinstance(output, StoredFile):
            self._upload_beside(file, size_bytes + len(row_map or b""), close)
        else:
            close()
            self.written_bytes += size_bytes
        columns = column_statistics(footer, self._schema, self._modes, file.measured)
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
                row_map=None if row_map is None else checksum(row_map),
            )
        )

    def _close(self, file: OpenFile, row_map: bytes | None) -> None:
        if row_map is not None:
            path = path_of(file.output.location)
            with translated(f"writing {path}"), self._io.new_output(path).create(overwrite=True) as stream:
                stream.write(row_map)
        file.close()
        self._open.discard(file)

    def _upload_beside(self, file: OpenFile, size_bytes: int, close: Callable[[], None]) -> None:
        while self._uploads and (
            len(self._uploads) == MAX_UPLOADS or self._uploading_bytes + size_bytes > MAX_UPLOAD_BYTES
        ):
            self._finish_upload()
        self._beside.add(file)
        finish = concurrency.background.start(close)
        self._uploads.append((size_bytes, finish))
        self._uploading_bytes += size_bytes

    def _finish_upload(self) -> None:
        size_bytes, finish = self._uploads.popleft()
        finish()
        self._uploading_bytes -= size_bytes
        self.written_bytes += size_bytes

    def finish_uploads(self, moved: Callable[[], None]) -> None:
        """Wait until all finished files exist; `moved` is called whenever an upload ends."""
        while self._uploads:
            self._finish_upload()
            moved()

    def abandon(self, error: BaseException) -> None:
        """Delete the files written before an error; nothing refers to them. An interrupt does not wait for
        uploads: files that they create afterwards are garbage."""
        if isinstance(error, Exception):
            # Uploads in progress must end before their files can be deleted.
            for _, finish in self._uploads:
                with suppress(Exception):
                    finish()
        else:
            self._open -= self._beside
        for file in self._open:
            file.abandon(error)
        for path in (*self._started, *self._maps):
            with translated(f"deleting {path}"):
                try:
                    self._io.delete(path)
                except FileNotFoundError:
                    continue

    def stored_bytes_per_row(self, table: pa.Table) -> float:
        """Return the stored bytes per row of this table, from samples of consecutive rows."""
        step = max(table.num_rows // SAMPLES, 1)
        slices = [table.slice(start, min(SAMPLE_ROWS, step)) for start in range(0, table.num_rows, step)]
        sample = pa.concat_tables(slices)
        rows: int = sample.num_rows
        return self._stored_bytes(sample, self._choose_dictionaries(table)) / rows

    def _plain_bytes(self, table: pa.Table) -> int:
        return self._stored_bytes(table, [])

    def _stored_bytes(self, table: pa.Table, dictionaries: list[str]) -> int:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, **{**self._options(table), "use_dictionary": dictionaries})
        return buffer.tell()

    def _options(self, table: pa.Table) -> dict[str, Any]:
        return {**self.options.parquet, "write_batch_size": batch_values(table, self.options.page_bytes)}


class RollingWriter:
    """A writer of rows, in order of arrival, to files of `rows_per_file` rows."""

    def __init__(
        self, files: DataWriter, rows_per_file: int, stored_bytes_per_row: float, order_id: int
    ) -> None:
        self._files = files
        self._rows_per_file = rows_per_file
        self._order_id = order_id
        self._open: OpenFile | None = None
        self._map: RowMapWriter | None = None
        self._rows = 0
        options = files.options
        self._groups = RowGroups(options.row_group_bytes, options.row_group_rows, stored_bytes_per_row)

    def write(self, table: pa.Table) -> None:
        """Append rows, perhaps with their origins."""
        table, origins = without_origins(table)
        while table.num_rows:
            rows = self._groups.rows(table, self._rows_per_file - self._rows)
            part, table = table.slice(0, rows), table.slice(rows)
            if self._open is None:
                self._open = self._files.open(part)
                self._map = None if origins is None else RowMapWriter()
            with translated(f"writing {self._open.output.location}"):
                self._groups.add(part, self._open.write(part))
            if origins is not None and self._map is not None:
                self._map.add(origins.slice(0, rows))
                origins = origins.slice(rows)
            self._rows += rows
            if self._rows == self._rows_per_file:
                self.close()

    def close(self) -> None:
        """End the file in progress, if any."""
        if self._open is not None:
            row_map = None if self._map is None else self._map.finish()
            self._files.finish(self._open, self._order_id, row_map)
            self._open, self._map, self._rows = None, None, 0

"""Tables with a long history or very many manifests, written as their metadata say and not by commits:
`python -m benchmarks.history_data history|manifests|large FOLDER SIZES…`. 5,000 commits would write each
metadata file anew.

- *history*: so many snapshots. Each appends files in a manifest of its own; the last of each cycle is a
  compaction, which replaces the files of its cycle by those of one manifest. A tag names an early snapshot.
  Data files are there: one row each, its `user_id` the number of the file. Beside them lie orphans.
- *manifests*: so many manifests, each with files of days all over the table; partitioned by day.
- *large*: the same, each manifest with files of two days, as they come from appends.

Of the last two data files are in the metadata only, and an older snapshot has some more of them.

Every file has all metrics of all columns. Files are a week old, as the peers insist on some days.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, StringType, TimestamptzType

from benchmarks.iceberg_data import NAME, SCHEMA, START_US, US_PER_DAY, events, open_catalog
from lithify.datasets.iceberg.format.manifest_writer import EntryPacker, Packed, SpecManifestWriter
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION

ROWS, FILE_BYTES = 10_000, 1_000_000
TAG = "kept"
CYCLES = 50
DAYS = 365
REMOVED = 10
AGE_S = 7 * 24 * 3600
ENTRIES_PER_BLOCK = 200
FIRST_DAY = START_US // US_PER_DAY
_MARK = 0x5A5A_1234_5678_5A5A


class Maker:
    """Writes one table in a folder."""

    def __init__(self, folder: Path, spec: PartitionSpec, properties: dict[str, str]) -> None:
        self._folder = folder
        self.location = (folder / "warehouse" / NAME[0] / NAME[1]).as_uri()
        self._spec = spec
        self._io = PyArrowFileIO()
        self._packer = EntryPacker(spec, SCHEMA, 2)
        self._properties = {"format-version": "2", "lithify.time-column": "event_time", **properties}
        self._listed: dict[str, bytes] = {}
        self._snapshots: list[Snapshot] = []
        self._total = 0
        self._began_ms = int(time.time() * 1000) - AGE_S * 1000

    def entry(self, path: str, time_us: int, sequence_number: int) -> Packed:
        """A file of an hour, with metrics of all columns."""
        low = _bounds(time_us, "a", 0)
        high = _bounds(time_us + US_PER_DAY // 24 - 1, "z", 1000)
        columns = list(low)
        partition = Record(time_us // US_PER_DAY) if self._spec.fields else Record()
        file = DataFile.from_args(
            _table_format_version=ENTRY_VERSION,
            content=DataFileContent.DATA,
            file_path=f"{self.location}/data/{path}",
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=ROWS,
            file_size_in_bytes=FILE_BYTES,
            column_sizes={column: FILE_BYTES // 8 + column for column in columns},
            value_counts=dict.fromkeys(columns, ROWS),
            null_value_counts=dict.fromkeys(columns, 0),
            lower_bounds=low,
            upper_bounds=high,
            split_offsets=[4],
        )
        return self._packer.pack(
            ManifestEntry.from_args(
                _table_format_version=ENTRY_VERSION,
                status=ManifestEntryStatus.EXISTING,
                snapshot_id=sequence_number,
                sequence_number=sequence_number,
                file_sequence_number=sequence_number,
                data_file=file,
            )
        )

    def manifest(self, number: int, entries: Sequence[Packed], sequence_number: int) -> ManifestFile:
        """A manifest of these entries."""
        output = self._io.new_output(f"{self.location}/metadata/{number:08d}-m0.avro")
        writer = SpecManifestWriter(ManifestContent.DATA, self._spec, SCHEMA, output, sequence_number)
        with writer:
            for start in range(0, len(entries), ENTRIES_PER_BLOCK):
                writer.add_packed(entries[start : start + ENTRIES_PER_BLOCK])
        manifest = writer.to_manifest_file()
        manifest.sequence_number = sequence_number
        return manifest

    def snapshot(
        self, manifests: Iterable[ManifestFile], operation: Operation, files: int, gone: int
    ) -> None:
        """The next snapshot; `files` are added, `gone` are removed."""
        number = len(self._snapshots) + 1
        path = f"{self.location}/metadata/snap-{number}.avro"
        with write_manifest_list(
            2, self._io.new_output(path), number, number - 1 or None, number, "deflate"
        ) as written:
            avro, records = written._writer, []
            for manifest in manifests:
                if manifest.manifest_path not in self._listed:
                    record = BytesIO()
                    avro.writer.write(BinaryEncoder(record), manifest)
                    self._listed[manifest.manifest_path] = record.getvalue()
                records.append(self._listed[manifest.manifest_path])
            content, length = DeflateCodec.compress(b"".join(records))
            avro.encoder.write_int(len(records))
            avro.encoder.write_int(length)
            avro.encoder.write(content + avro.sync_bytes)
        counts = {"added-data-files": str(files), "deleted-data-files": str(gone)}
        counts["removed-files-size"] = str(gone * FILE_BYTES)
        self._total += files - gone
        counts["total-data-files"] = str(self._total)
        self._snapshots.append(
            Snapshot.model_validate(
                {
                    "snapshot-id": number,
                    "parent-snapshot-id": number - 1 or None,
                    "sequence-number": number,
                    "timestamp-ms": self._began_ms + number,
                    "manifest-list": path,
                    "summary": Summary(operation, **counts),
                    "schema-id": 0,
                }
            )
        )

    def register(self, tag: int | None = None) -> None:
        """Let the catalog have the table; `tag` is the snapshot that the tag names."""
        newest = self._snapshots[-1]
        metadata = new_table_metadata(
            SCHEMA, self._spec, UNSORTED_SORT_ORDER, self.location, dict(self._properties)
        )
        refs = {"main": _ref(newest.snapshot_id, SnapshotRefType.BRANCH)}
        if tag is not None:
            refs[TAG] = _ref(tag, SnapshotRefType.TAG)
        log = [
            SnapshotLogEntry.model_validate({"snapshot-id": s.snapshot_id, "timestamp-ms": s.timestamp_ms})
            for s in self._snapshots
        ]
        whole = metadata.model_copy(
            update={
                "snapshots": self._snapshots,
                "current_snapshot_id": newest.snapshot_id,
                "last_sequence_number": newest.sequence_number,
                "last_updated_ms": newest.timestamp_ms,
                "snapshot_log": log,
                "refs": refs,
            }
        )
        path = f"{self.location}/metadata/00000-made.metadata.json"
        ToOutputFile.table_metadata(whole, self._io.new_output(path))
        catalog = open_catalog(self._folder)
        assert isinstance(catalog, SqlCatalog)
        catalog.create_namespace(NAME[:-1])
        catalog.register_table(NAME, path)


def make_history(folder: Path, snapshots: int, files: int, orphans: int) -> None:
    """See the module."""
    made = Maker(folder, UNPARTITIONED_PARTITION_SPEC, {})
    row = OneRow()
    data = folder / "warehouse" / NAME[0] / NAME[1] / "data"
    (data.parent / "metadata").mkdir(parents=True)
    each, cycle = max(1, files // snapshots), max(3, snapshots // CYCLES)
    merged: list[ManifestFile] = []
    recent: list[ManifestFile] = []
    for number in range(1, snapshots + 1):
        names = [f"{number:06d}/{(number - 1) * each + n:08d}.parquet" for n in range(each)]
        (data / f"{number:06d}").mkdir(parents=True)
        for n, name in enumerate(names):
            (data / name).write_bytes(row.of((number - 1) * each + n))
        entries = [made.entry(name, START_US + number * 1_000_000, number) for name in names]
        manifest = made.manifest(number, entries, number)
        if number % cycle:
            recent.insert(0, manifest)
            made.snapshot([*recent, *merged], Operation.APPEND, each, 0)
        else:
            gone, recent = each * len(recent), []
            merged.insert(0, manifest)
            made.snapshot(merged, Operation.REPLACE, each, gone)
    for number in range(orphans):
        (data / f"orphan-{number:06d}.parquet").write_bytes(row.of(number))
    made.register(tag=snapshots // 3)
    _age(folder)


def make_manifests(folder: Path, manifests: int, files: int, target_bytes: int, *, scattered: bool) -> None:
    """See the module. `scattered`: each manifest has files of days all over the table."""
    by_day = PartitionSpec(PartitionField(1, 1000, DayTransform(), "event_time_day"))
    made = Maker(folder, by_day, {"commit.manifest.target-size-bytes": str(target_bytes)})
    rng, each = random.Random(1), files // manifests
    (folder / "warehouse" / NAME[0] / NAME[1] / "metadata").mkdir(parents=True)
    found = []
    for number in range(manifests):
        entries = []
        for n in range(each):
            at = number * each + n
            day = rng.randrange(DAYS) if scattered else at * DAYS // files
            entries.append(
                made.entry(name_of(at, day), START_US + day * US_PER_DAY + at % 23 * 3_600_000_000, 1)
            )
        found.append(made.manifest(number, entries, 1))
    more = [made.entry(f"removed-{n}.parquet", START_US, 1) for n in range(REMOVED)]
    made.snapshot(
        [*found, made.manifest(manifests, more, 1)], Operation.APPEND, each * manifests + REMOVED, 0
    )
    made.snapshot(found, Operation.DELETE, 0, REMOVED)
    made.register()


def name_of(number: int, day: int) -> str:
    """The path of a data file below the folder of all."""
    return f"event_time_day={FIRST_DAY + day}/{number:08d}-0-5b0cbe52-6c1e-4c5a-9d54-7b2d9c9f6f11.parquet"


class OneRow:
    """Parquet files of one row each, which differ in its `user_id` only."""

    def __init__(self) -> None:
        rows = events(0, 1, 1)
        column = rows.schema.get_field_index("user_id")
        marked = rows.set_column(column, rows.schema.field(column), pa.array([_MARK]))
        plain = BytesIO()
        pq.write_table(marked, plain, compression="none", use_dictionary=False, write_statistics=False)
        self._parts = plain.getvalue().split(_MARK.to_bytes(8, "little"))
        assert len(self._parts) == 2

    def of(self, number: int) -> bytes:
        return number.to_bytes(8, "little").join(self._parts)


def _bounds(time_us: int, text: str, number: int) -> dict[int, bytes]:
    """Of every column that has bounds, by its id."""
    found = {}
    for column in SCHEMA.fields:
        kind = column.field_type
        if isinstance(kind, PrimitiveType):
            is_text, is_time = isinstance(kind, StringType), isinstance(kind, TimestamptzType)
            found[column.field_id] = to_bytes(kind, text if is_text else time_us if is_time else number)
    return found


def _ref(snapshot_id: int, kind: SnapshotRefType) -> SnapshotRef:
    return SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": kind})


def _age(folder: Path) -> None:
    old_s = time.time() - AGE_S
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (old_s, old_s))


if __name__ == "__main__":
    kind, place, *sizes = sys.argv[1:]
    numbers = [int(size) for size in sizes]
    if kind == "history":
        make_history(Path(place), *numbers)
    else:
        make_manifests(Path(place), *numbers, scattered=kind == "manifests")

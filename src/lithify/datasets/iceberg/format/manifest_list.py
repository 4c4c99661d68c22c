"""Writing manifest lists, and with them the row ids of a table of format version 3.

PyIceberg writes lists of the versions 1 and 2. A list of version 3 also gives each data manifest without a
first row id the next one, from the table's next row id upwards. The following manifest's is higher by all
live rows of this one: some of its files may have no id of their own, as those of an upgraded table. So the
same rows never get two ids, and no id is given twice (Iceberg format: row lineage).

The ids are those of the metadata that the commit replaces, so each try writes its own list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestFile,
    ManifestListWriterV2,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.manifest_writer import COMPRESSION
from lithify.datasets.iceberg.format.manifests import LIST_VERSION, first_row_id_of

MAX_ROW_ID = 1 << 62
"""More rows than any table has."""


@dataclass(frozen=True, slots=True)
class AssignedIds:
    """The row ids that a snapshot assigns."""

    first: int
    count: int
    """An upper bound of the rows that have no id yet."""


@dataclass(frozen=True, slots=True)
class WrittenList:
    """A manifest list that was written for a commit."""

    path: str
    row_ids: AssignedIds | None
    """`None` before format version 3."""


def write_list(
    metadata: TableMetadata,
    output: OutputFile,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    manifests: Sequence[ManifestFile],
) -> WrittenList:
    """Write the list of a snapshot that is committed on top of these metadata."""
    number, version = metadata.next_sequence_number(), metadata.format_version
    # PyIceberg sets sequence numbers in its argument, which may be written again.
    copies = [ManifestFile(*manifest._data) for manifest in manifests]
    if not isinstance(metadata, TableMetadataV3):
        with write_manifest_list(
            version, output, snapshot_id, parent_snapshot_id, number, COMPRESSION
        ) as writer:
            writer.add_manifests(copies)
        return WrittenList(output.location, None)
    first = next_row_id(metadata)
    with _ListWriter(output, snapshot_id, parent_snapshot_id, number, first) as of_version_3:
        of_version_3.add_manifests(copies)
    return WrittenList(output.location, AssignedIds(first, of_version_3.next_row_id - first))


def next_row_id(metadata: TableMetadataV3) -> int:
    """Return the first row id that no row of the table has. Raise `CorruptObject` if that is unknown."""
    found = metadata.next_row_id
    if found is None or not 0 <= found < MAX_ROW_ID:
        raise CorruptObject(f"the metadata of {metadata.location}", f"have the next row id {found}")
    return found


class _ListWriter(ManifestListWriterV2):
    """Writes a list of format version 3."""

    def __init__(
        self,
        output: OutputFile,
        snapshot_id: int,
        parent_snapshot_id: int | None,
        sequence_number: int,
        first_row_id: int,
    ) -> None:
        super().__init__(output, snapshot_id, parent_snapshot_id, sequence_number, COMPRESSION)
        self._meta = {**self._meta, "first-row-id": str(first_row_id), "format-version": str(LIST_VERSION)}
        self.next_row_id = first_row_id

    def __enter__(self) -> _ListWriter:
        schema = MANIFEST_LIST_FILE_SCHEMAS[LIST_VERSION]
        self._writer = AvroOutputFile[ManifestFile](
            output_file=self._output_file,
            record_schema=schema,
            file_schema=schema,
            schema_name="manifest_file",
            metadata=self._meta,
        )
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        fields = super().prepare_manifest(manifest_file)._data[:_FIRST_ROW_ID]
        found = first_row_id_of(manifest_file)
        if manifest_file.content == ManifestContent.DATA and found is None:
            found = self.next_row_id
            self.next_row_id += _live_rows(manifest_file)
        return ManifestFile(*fields, found)


def _live_rows(manifest: ManifestFile) -> int:
    existing, added = manifest.existing_rows_count, manifest.added_rows_count
    if existing is None or added is None:
        raise ValueError(f"the rows of {manifest.manifest_path} are not counted")
    return existing + added


_FIRST_ROW_ID = len(MANIFEST_LIST_FILE_SCHEMAS[LIST_VERSION].fields) - 1

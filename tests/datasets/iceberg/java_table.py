"""A table of format version 3 that Java writes in a folder, and its files as inputs of a rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record

from lithify.datasets.iceberg.compaction.task import SourceFile, without_statistics
from lithify.datasets.iceberg.format.manifests import referenced_data_file
from tests.judge.iceberg_java import IcebergJava

Identity = tuple[int | None, int | None]
"""A row's id, and the number of its last change."""
MERGE_ON_READ = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))


class JavaTable:
    """The table `events`."""

    def __init__(self, java: IcebergJava, folder: Path) -> None:
        """The catalog in `folder`, which has no table yet."""
        self._java = java
        self._folder = folder
        catalog = f"folder_{folder.name.replace('-', '_')}"
        self._name = f"{catalog}.db.events"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": folder.as_uri(),
            ".cache-enabled": "false",
        }.items():
            java.sql(f"SET `spark.sql.catalog.{catalog}{key}`=`{value}`")

    def create(self, columns: str, *, version: int = 3) -> None:
        """Create the table."""
        self.sql(
            f"CREATE TABLE events ({columns}) USING iceberg "
            f"TBLPROPERTIES ('format-version'='{version}', {MERGE_ON_READ})"
        )

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement in which `events` is the table."""
        return self._java.sql(statement.replace("events", self._name)).dicts()

    @property
    def metadata_file(self) -> Path:
        """The newest metadata file."""
        files = (self._folder / "db" / "events" / "metadata").glob("v*.metadata.json")
        return max(files, key=lambda path: int(path.name.partition(".")[0][1:]))

    @property
    def table(self) -> StaticTable:
        """The table as PyIceberg reads it."""
        return StaticTable.from_metadata(str(self.metadata_file))

    def identities(self) -> dict[int, Identity]:
        """The identity of each row by its column `id`, as Java reads it."""
        rows = self.sql("SELECT id, _row_id, _last_updated_sequence_number FROM events")
        return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}

    def sources(self) -> list[SourceFile]:
        """All data files, with their vectors, and the first row ids that Java assigns."""
        entries = self.sql("SELECT sequence_number, data_file FROM events.entries WHERE status < 2")
        first = {row["file_path"]: row["first_row_id"] for row in self.sql("SELECT * FROM events.files")}
        files = [(row["sequence_number"], row["data_file"]) for row in entries]
        deletes = [java_file(file) for _, file in files if file["content"] == 1]
        data = [(number, java_file(file)) for number, file in files if file["content"] == 0]
        return [
            source(
                n,
                file,
                first[file.file_path],
                number,
                [one for one in deletes if referenced_data_file(one) == file.file_path],
            )
            for n, (number, file) in enumerate(data)
        ]

    def vectors(self) -> list[DataFile]:
        """The deletion vectors."""
        return [delete for one in self.sources() for delete in one.delete_files]


def java_file(file: Mapping[str, Any]) -> DataFile:
    """A data or delete file as Java lists it."""
    names = ("file_path", "record_count", "file_size_in_bytes", "referenced_data_file")
    found = DataFile.from_args(
        3,
        **{name: file[name] for name in names},
        content=DataFileContent(file["content"]),
        file_format=FileFormat(file["file_format"]),
        partition=Record(),
        content_offset=file["content_offset"],
        content_size_in_bytes=file["content_size_in_bytes"],
    )
    found.spec_id = 0
    return found


def source(
    position: int, file: DataFile, first: int | None, number: int = 1, deletes: Iterable[DataFile] = ()
) -> SourceFile:
    """An input of a rewrite, all of whose rows are wanted."""
    slim_deletes = tuple(without_statistics(delete) for delete in deletes)
    return SourceFile(position, without_statistics(file), slim_deletes, True, number, first)


def data_file(path: str, rows: int, size_bytes: int) -> DataFile:
    """A Parquet file of an unpartitioned table."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size_bytes,
    )
    file.spec_id = 0
    return file

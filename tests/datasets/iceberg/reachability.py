"""What the snapshots of a table need, found without any of the code that is judged, and without PyIceberg.

Metadata files are read as JSON, manifest lists and manifests as Avro by DuckDB. Paths are compared as the
bytes of the files are found: by opening them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.datasets.iceberg.tables import duckdb_with_iceberg

Read = Callable[[str], bytes]
"""The bytes of a file by its path in metadata; an error when there is none."""

EQUALITY = 2
"""Content of a file of equality deletes."""


@dataclass
class Needed:
    """Paths, as the metadata has them."""

    manifests: set[str] = field(default_factory=set)
    """Manifest lists too."""
    files: set[str] = field(default_factory=set)
    """Data, deletes and statistics."""
    contents: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each snapshot its live files, and whether they are data (0), or deletes by position (1) or by
    equality (2)."""

    @property
    def all(self) -> set[str]:
        return self.manifests | self.files


def needed_by(metadata_location: str, read: Read) -> Needed:
    """Everything that any snapshot of the table names. Manifests are read, so one that is gone is an
    error."""
    needed, metadata = Needed(), json.loads(read(metadata_location))
    known: dict[str, dict[str, int]] = {}
    for snapshot in metadata.get("snapshots", []):
        manifest_list = snapshot["manifest-list"]
        needed.manifests.add(manifest_list)
        contents: dict[str, int] = {}
        for row in _avro(read(manifest_list), "manifest_path"):
            if row[0] not in known:
                entries = _avro(read(row[0]), "status, data_file.file_path, data_file.content")
                known[row[0]] = {path: content for status, path, content in entries if status != 2}
            contents |= known[row[0]]
        needed.contents[snapshot["snapshot-id"]] = contents
        needed.files |= contents.keys()
    needed.manifests |= known.keys()
    for kind in ("statistics", "partition-statistics"):
        needed.files |= {file["statistics-path"] for file in metadata.get(kind, [])}
    return needed


def _avro(data: bytes, columns: str) -> Iterable[tuple[Any, ...]]:
    with tempfile.NamedTemporaryFile(suffix=".avro") as file:
        Path(file.name).write_bytes(data)
        found = duckdb_with_iceberg().execute(f"SELECT {columns} FROM read_avro('{file.name}')")
        return found.fetchall()

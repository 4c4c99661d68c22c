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


@dataclass
class Needed:
    """Paths, as the metadata has them."""

    manifests: set[str] = field(default_factory=set)
    """Manifest lists too."""
    files: set[str] = field(default_factory=set)


def needed_by(metadata_location: str, read: Read) -> Needed:
    """Everything that any snapshot of the table names. Manifests are read, so one that is gone is an
    error."""
    needed = Needed()
    for snapshot in json.loads(read(metadata_location)).get("snapshots", []):
        manifest_list = snapshot["manifest-list"]
        needed.manifests.add(manifest_list)
        for row in _avro(read(manifest_list), "manifest_path"):
            if row[0] not in needed.manifests:
                needed.manifests.add(row[0])
                entries = _avro(read(row[0]), "status, data_file.file_path")
                needed.files |= {path for status, path in entries if status != 2}
    return needed


def _avro(data: bytes, columns: str) -> Iterable[tuple[Any, ...]]:
    with tempfile.NamedTemporaryFile(suffix=".avro") as file:
        Path(file.name).write_bytes(data)
        found = duckdb_with_iceberg().execute(f"SELECT {columns} FROM read_avro('{file.name}')")
        return found.fetchall()

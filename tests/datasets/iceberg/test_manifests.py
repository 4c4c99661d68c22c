"""Entries of manifests are those that PyIceberg reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.types import DoubleType

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.manifests import live_entries
from tests.datasets.iceberg.tables import (
    append,
    append_with_deletes,
    files_of,
    fresh,
    make_rows,
    new_table,
    rewrite_without,
)


def values_of(entry: ManifestEntry) -> tuple[object, ...]:
    """Everything an entry says that PyIceberg reads."""
    file = entry.data_file
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
    return (entry.status, *numbers, file.spec_id, *file._data[: len(DATA_FILE_TYPE[DEFAULT_READ_VERSION])])


def test_entries_are_those_of_pyiceberg(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(5))
    append_with_deletes(table, make_rows(5), [1, 3])
    with fresh(table).update_schema() as update:
        update.add_column("more", DoubleType())
    fresh(table).append(fresh(table).scan().to_arrow())
    rewrite_without(table, rows[0][1])
    now = fresh(table)
    manifests = {m.manifest_path: m for s in now.snapshots() for m in s.manifests(now.io)}.values()
    statuses = set()
    for manifest in manifests:
        expected = manifest.fetch_manifest_entry(now.io, discard_deleted=False)
        statuses |= {entry.status for entry in expected}
        live = [values_of(e) for e in expected if e.status != ManifestEntryStatus.DELETED]
        assert [values_of(entry) for entry in live_entries(now.io, manifest)] == live
    assert ManifestEntryStatus.DELETED in statuses
    assert len(files_of(table)) > 1


def test_a_manifest_without_a_schema(catalog: Catalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(5))
    (manifest,) = fresh(table).current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    path = Path(manifest.manifest_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes().replace(b"avro.schema", b"avro.stigma"))
    with pytest.raises(CorruptObject, match=r"no Avro schema"):
        live_entries(table.io, manifest)

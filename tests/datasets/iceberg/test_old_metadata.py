"""Old metadata files go after a commit where the table asks for that, and only its own do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from pyiceberg.table import Table

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.old_metadata import uuid_in
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.maintenance import HoldRequest
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.iceberg.test_foreign_properties import claim

ASKS = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = new_table(new_catalog(tmp_path))
    for _ in range(3):
        append(table, make_rows(5))
    return table.refresh()


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def fill_log(table: Table, *paths: str) -> None:
    """Have the log begin with these files."""
    file = local(table.metadata_location)
    document = json.loads(file.read_text())
    added = [{"metadata-file": path, "timestamp-ms": 1} for path in paths]
    document["metadata-log"] = [*added, *document["metadata-log"]]
    file.write_text(json.dumps(document))


def test_what_falls_out_of_the_log_is_deleted(table: Table) -> None:
    old = [entry.metadata_file for entry in table.metadata.metadata_log]
    before = table.metadata_location
    claim(table, ASKS)
    compact(dataset_of(table))
    assert local(before).exists(), "the one before"
    assert old
    assert not [path for path in old if local(path).exists()]


def test_nothing_is_deleted_unasked(table: Table) -> None:
    claim(table, {"write.metadata.previous-versions-max": "1"})
    old = [entry.metadata_file for entry in table.metadata.metadata_log]
    compact(dataset_of(table))
    assert all(local(path).exists() for path in old)


def test_a_log_that_names_other_peoples_files_deletes_none(table: Table, tmp_path: Path) -> None:
    claim(table, ASKS)
    other = new_table(table.catalog, name=("db", "other"))
    folder = local(table.location()) / "metadata"
    strangers = {
        local(other.metadata_location): None,
        tmp_path / "precious.txt": b"precious",
        folder / "precious.metadata.json": b'{"table-uuid": "another"}',
        folder / "nothing.metadata.json": b"",
        folder / "cut.metadata.json": b"\x1f\x8b\x08",
        folder / "data.parquet": f'{{"table-uuid": "{table.metadata.table_uuid}"}}'.encode(),
    }
    for path, data in strangers.items():
        if data is not None:
            path.write_bytes(data)
    lost = (folder / "lost.metadata.json").as_uri()
    own = (folder / "0.metadata.json.gz").as_uri()
    local(own).write_bytes(gzip.compress(local(table.metadata_location).read_bytes()))
    names = [*(path.as_uri() for path in strangers), "relative.metadata.json", lost, own]
    fill_log(table, *names)
    compact(dataset_of(table))
    assert all(path.exists() for path in strangers)
    assert not local(own).exists(), "its own went although others could not"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_files_own_beginning_says_whose_it_is(pack: type[bytes]) -> None:
    text = b'{"format-version": 2, "table-uuid" : "some-uuid", "location": "' + b"x" * 20_000
    assert uuid_in(pack(text)[:8000]) == "some-uuid"
    assert uuid_in(pack(b"{}")) is None
    assert uuid_in(b"") is None


def test_a_property_that_is_neither_true_nor_false_asks_for_nothing(table: Table) -> None:
    """It is read when the commit has succeeded, so it must not fail there."""
    claim(table, {**ASKS, "write.metadata.delete-after-commit.enabled": "maybe"})
    old = [entry.metadata_file for entry in table.metadata.metadata_log]
    maintenance = TableMaintenance(dataset_of(table), a_clock(), RandomIds())
    maintenance.hold(HoldRequest(), 3_600_000, "mine", "me")
    assert maintenance.left_out() == frozenset()
    assert [placed.name for placed in maintenance.holds()] == ["mine"]
    assert all(local(path).exists() for path in old)

"""Metadata files of format version 3: a commit changes what it is about, and nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from lithify.datasets.iceberg.format.metadata_writer import changed
from lithify.datasets.iceberg.io.closed_catalogs import closed_catalog
from tests.datasets.iceberg.tables import NAME, append, fresh, make_rows, new_catalog, new_table, set_version

Document = dict[str, Any]


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of version 3 in a catalog as Lithify opens it, with parts that PyIceberg does not know."""
    made = new_table(new_catalog(tmp_path))
    for _ in range(3):
        append(made, make_rows(3))
    set_version(made, 3)
    catalog = closed_catalog("test", {**made.catalog.properties, "type": "sql"})
    path = local(fresh(made).metadata_location)
    stored = json.loads(path.read_text())
    stored["schemas"][0]["fields"][1] |= {"initial-default": 7, "write-default": 8}
    stored["snapshots"][0]["key-of-the-future"] = {"a": None}
    stored["statistics-of-the-future"] = ["\u00fc", 1 << 62, 0.1]
    stored["partition-specs"][0]["name"] = "x"
    stored["current-snapshot-id-of-the-past"] = -1
    path.write_text(json.dumps(stored))
    return catalog.load_table(NAME)


def stored_in(table: Table) -> Document:
    data = local(fresh(table).metadata_location).read_bytes()
    found: Document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return found


def differences(before: Document, after: Document) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_properties(table: Table) -> None:
    before = stored_in(table)
    with table.transaction() as change:
        change.set_properties({"a": "1", "b": "2"})
    with fresh(table).transaction() as change:
        change.remove_properties("a")
    after = stored_in(table)
    assert differences(before, after) == {"properties", "metadata-log", "last-updated-ms"}
    assert after["properties"] == {**before["properties"], "b": "2"}
    assert [*before["metadata-log"]] == after["metadata-log"][:-2]


def test_refs(table: Table) -> None:
    before = stored_in(table)
    oldest = before["snapshots"][0]["snapshot-id"]
    with table.manage_snapshots() as change:
        change.create_tag(oldest, "kept", max_ref_age_ms=1 << 40)
    after = stored_in(table)
    assert differences(before, after) == {"refs", "metadata-log", "last-updated-ms"}
    kept = {"snapshot-id": oldest, "type": "tag", "max-ref-age-ms": 1 << 40}
    assert after["refs"] == {**before["refs"], "kept": kept}
    with fresh(table).manage_snapshots() as change:
        change.remove_tag("kept")
    assert stored_in(table)["refs"] == before["refs"]


def test_an_expired_snapshot_hides_the_log_before_it(table: Table) -> None:
    before = stored_in(table)
    first, second, third = before["snapshots"]
    with table.manage_snapshots() as change:
        change.create_tag(first["snapshot-id"], "kept")
    fresh(table).maintenance.expire_snapshots().by_id(second["snapshot-id"]).commit()
    after = stored_in(table)
    assert after["snapshots"] == [first, third], "with the id of a parent that is gone"
    assert after["snapshot-log"] == before["snapshot-log"][2:]


def test_compressed_files(table: Table) -> None:
    before = stored_in(table)
    place = local(table.metadata_location)
    path = place.with_name("00009-0.gz.metadata.json")
    path.write_bytes(gzip.compress(place.read_bytes()))
    catalog = table.catalog
    assert isinstance(catalog, SqlCatalog)
    catalog.drop_table(NAME)
    now = catalog.register_table(NAME, path.as_uri())
    with now.transaction() as change:
        change.set_properties({"a": "1"})
    after = stored_in(table)
    assert differences(before, after) == {"properties", "metadata-log", "last-updated-ms"}


def test_what_is_stored_differently_stays_as_it_is(table: Table) -> None:
    """Spellings that PyIceberg reads and would write in another way."""
    stored = stored_in(table)
    stored["properties"]["number"] = 1
    stored["refs"]["main"]["max-ref-age-ms"] = None
    del stored["sort-orders"][0]["fields"]
    stored["sort-orders"][0]["fields"] = []
    before = TableMetadataUtil.parse_raw(json.dumps(stored))
    assert changed(stored, before, before) == stored
    after = before.model_copy(update={"last_updated_ms": 1})
    assert changed(stored, before, after) == {**stored, "last-updated-ms": 1}

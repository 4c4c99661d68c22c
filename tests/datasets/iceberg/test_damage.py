"""Damaged tables end in a clear error, or in what can still be right; each of these ended in a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestamptzType

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.format.time_column import bound_us
from lithify.datasets.iceberg.model import IcebergLedger, files_written
from tests.datasets.iceberg.avro import read_avro, write_avro
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import append, delete_positions, files_of, fresh, make_rows, new_table

Change = Callable[[dict[str, Any]], object]
METADATA: dict[str, Change] = {
    "no sort orders": lambda metadata: metadata.update({"sort-orders": []}),
    "another current snapshot than the head of main": lambda metadata: metadata.update(
        {"current-snapshot-id": None}
    ),
    "a last sequence number that is not the last": lambda metadata: metadata.update(
        {"last-sequence-number": 0}
    ),
    "a partition field without a name": lambda metadata: metadata["partition-specs"].append(
        {"spec-id": 1, "fields": [{"source-id": 3, "field-id": 1000, "transform": "identity", "name": ""}]}
    ),
    "no sequence number left": lambda metadata: metadata.update({"last-sequence-number": (1 << 63) - 1}),
    "a snapshot of a sequence number below zero": lambda metadata: metadata["snapshots"][0].update(
        {"sequence-number": -(1 << 63) - 3}
    ),
    "a column that no reader finds": lambda metadata: metadata["schemas"][0]["fields"][2].update(id=-3),
    "properties that are none": lambda metadata: metadata.update({"properties": 1.5}),
    "snapshots that are none": lambda metadata: metadata.update({"snapshots": [{}]}),
    "half a character": lambda metadata: metadata.update({"location": "\udcff"}),
}


@pytest.fixture
def table(catalog: Catalog) -> Table:
    table = new_table(catalog)
    append(table, make_rows(3))
    return table


@pytest.mark.parametrize("change", METADATA.values(), ids=METADATA)
def test_metadata(table: Table, change: Change) -> None:
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(json.dumps(metadata, ensure_ascii=False).encode("utf-8", "surrogateescape"))
    with pytest.raises(CorruptObject, match=r"metadata|TableMetadata"):
        dataset_of(table).snapshot()


def compacted(table: Table) -> IcebergLedger:
    """The ledger after the table was compacted, of 18 rows in all."""
    for _ in range(5):
        append(table, make_rows(3))
    dataset = dataset_of(table)
    compact(dataset)
    ledger = dataset.ledger()
    assert ledger is not None
    return ledger


@pytest.mark.parametrize("number", ["1e999", "-1", "9223372036854775808", '"\\ud800"', "[]", "{}"])
def test_numbers_in_the_ledger(table: Table, number: str) -> None:
    ledger = compacted(table)
    text = json.dumps(json.loads(LEDGERS.encode(ledger))).replace('"rows": 18', f'"rows": {number}')
    assert number in text
    with pytest.raises(CorruptObject, match=r"ledger\.json: does not decode"):
        LEDGERS.decode(text.encode(), "ledger.json")


def manifest_list_of(table: Table) -> Path:
    """The manifest list of the head."""
    head = fresh(table).current_snapshot()
    assert head is not None
    return Path(head.manifest_list.removeprefix("file://"))


def rewrite(path: Path, change: Callable[[list[Any]], object]) -> None:
    """Change the records of an Avro file."""
    content = read_avro(path)
    change(content.records)
    write_avro(path, content)


def test_partition_specs_that_the_table_does_not_have(table: Table) -> None:
    path = manifest_list_of(table)
    rewrite(path, lambda records: records[0].update(partition_spec_id=7))
    with pytest.raises(CorruptObject, match="partition spec 7"):
        dataset_of(table).snapshot()


LISTED: dict[str, Change] = {
    "no path": lambda manifest: manifest.update(manifest_path=""),
    "partition spec": lambda manifest: manifest.update(partition_spec_id=-1),
    "sequence number": lambda manifest: manifest.update(sequence_number=-2),
    "newer than its snapshot": lambda manifest: manifest.update(sequence_number=9),
    "count": lambda manifest: manifest.update(added_files_count=-1),
}


@pytest.mark.parametrize("change", LISTED.values(), ids=LISTED)
def test_manifest_lists(table: Table, change: Change) -> None:
    path, dataset = manifest_list_of(table), dataset_of(table)
    whole = path.read_bytes()
    rewrite(path, lambda records: change(records[0]))
    with pytest.raises(CorruptObject, match=path.name):
        dataset.snapshot()
    path.write_bytes(whole)
    assert len(dataset.snapshot().files) == 1, "one that was repaired is read again"


def test_a_manifest_list_without_paths(table: Table) -> None:
    """Nothing keeps a damaged schema from saying that they are another field's."""
    path = manifest_list_of(table)
    content = read_avro(path)
    schema = json.loads(json.dumps(content.schema))
    (field,) = [field for field in schema["fields"] if field["name"] == "manifest_path"]
    field["field-id"] = 999
    write_avro(path, replace(content, schema=schema))
    with pytest.raises(CorruptObject, match=path.name):
        dataset_of(table).snapshot()


def test_a_snapshot_of_a_lower_sequence_number_than_its_files(table: Table) -> None:
    """Outputs get the number of the snapshot they are planned at: with this one, deletes that came before
    it would apply to them."""
    append(table, make_rows(3))
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    metadata["snapshots"][-1]["sequence-number"] = 1
    path.write_bytes(json.dumps(metadata).encode())
    with pytest.raises(CorruptObject, match="sequence number 2, but its snapshot has 1"):
        dataset_of(table).snapshot()


ENTRIES: dict[str, Change] = {
    "no path": lambda file: file.update(file_path=""),
    "rows": lambda file: file.update(record_count=-1),
    "bytes": lambda file: file.update(file_size_in_bytes=-(1 << 63)),
}


@pytest.mark.parametrize("change", ENTRIES.values(), ids=ENTRIES)
def test_entries(table: Table, change: Change) -> None:
    head = fresh(table).current_snapshot()
    assert head is not None
    (manifest,) = head.manifests(table.io)
    path = Path(manifest.manifest_path.removeprefix("file://"))
    rewrite(path, lambda records: change(records[0]["data_file"]))
    with pytest.raises(CorruptObject, match=path.name):
        dataset_of(table).snapshot()


def test_paths_in_bounds_of_deletes_that_are_no_text(table: Table) -> None:
    (file,) = files_of(table)
    delete_positions(table, {file.file_path: [0]})
    head = fresh(table).current_snapshot()
    assert head is not None
    (manifest,) = [m for m in head.manifests(table.io) if m.content == ManifestContent.DELETES]
    path = Path(manifest.manifest_path.removeprefix("file://"))

    def spoil(records: list[Any]) -> None:
        (bound,) = records[0]["data_file"]["lower_bounds"]
        bound["value"] = b"\xff"

    rewrite(path, spoil)
    with pytest.raises(CorruptObject, match=path.name):
        dataset_of(table).snapshot()


def test_half_a_character_in_the_ledger(table: Table) -> None:
    ledger = compacted(table)
    path = json.dumps(files_written(ledger.compactions[0])[0].path).encode()
    with pytest.raises(CorruptObject, match=r"ledger\.json: does not decode"):
        LEDGERS.decode(LEDGERS.encode(ledger).replace(path, b'"\\ud800"'), "ledger.json")


def test_bounds_of_another_length_tell_nothing() -> None:
    assert bound_us(TimestamptzType(), bytes(8)) == 0
    assert bound_us(TimestamptzType(), bytes(3)) is None
    assert bound_us(DateType(), bytes(8)) is None

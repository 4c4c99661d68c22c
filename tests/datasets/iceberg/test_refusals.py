"""What is refused, in one sentence, before anything is written; and which files are left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyiceberg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, StructType, TimestamptzType

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.catalogs import open_catalog, parse_url
from lithify.planning.timeline.model import DeletesStatus
from lithify.protocol.model import Ledger
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    SCHEMA,
    append,
    as_arrow,
    check,
    delete_keys,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)


def refuse(table: Table, pattern: str) -> None:
    """Nothing is planned and nothing is written, and the message says why."""
    before = fresh(table).metadata_location
    with pytest.raises(Refused, match=pattern):
        compact(dataset_of(table))
    assert fresh(table).metadata_location == before
    assert not list(Path(table.location().removeprefix("file://")).rglob("_lithify/*"))


@pytest.mark.parametrize(
    ("properties", "pattern"),
    [
        ({"encryption.key-id": "k"}, "encrypted"),
        ({"write.format.default": "orc"}, "only Parquet"),
        ({"lithify.granularity": "fortnight"}, "must be one of hour, day"),
        ({"lithify.time-zone": "Mars/Olympus"}, "not a time zone"),
        ({"lithify.target-file-size-bytes": "0"}, "whole number from 1"),
        ({"lithify.skip-from-now-seconds": "-1"}, "whole number from 0"),
        ({"lithify.granularty": "day"}, "is unknown"),
        ({"lithify.time-column": "when"}, "does not exist"),
        ({"lithify.time-column": "id"}, "must be timestamp"),
        ({"lithify.branch": "audit"}, "no branch 'audit'"),
    ],
)
def test_properties(catalog: Catalog, properties: dict[str, str], pattern: str) -> None:
    refuse(new_table(catalog, properties=properties), pattern)


TIMES = NestedField(1, "created", TimestamptzType(), required=False)


@pytest.mark.parametrize(
    ("fields", "properties", "pattern"),
    [
        (
            [NestedField(1, "id", LongType())],
            {"lithify.axis": "time"},
            "no timestamp and no date column",
        ),
        (
            [TIMES, NestedField(2, "day", DateType())],
            {"lithify.axis": "time"},
            "ambiguous .*created, day",
        ),
        (
            [NestedField(1, "at", StructType(NestedField(2, "time", TimestamptzType())))],
            {"lithify.time-column": "at.time"},
            "nested",
        ),
    ],
)
def test_time_columns(
    catalog: Catalog, fields: list[NestedField], properties: dict[str, str], pattern: str
) -> None:
    refuse(new_table(catalog, schema=Schema(*fields), properties=properties), pattern)


def test_a_time_column_is_found_by_the_sort_order(catalog: Catalog) -> None:
    schema = Schema(TIMES, NestedField(2, "seen", TimestamptzType(), required=False))
    order = SortOrder(SortField(source_id=2, transform=IdentityTransform()))
    table = new_table(catalog, schema=schema, order=order)
    assert dataset_of(table).snapshot().files == ()


INNER = NestedField(5, "when", TimestamptzType(), required=False)
WIDE = Schema(
    *SCHEMA.fields,
    NestedField(4, "more", StructType(INNER), required=False),
    NestedField(6, "x", LongType(), required=False),
)


def test_a_sort_order_of_a_dropped_column(catalog: Catalog) -> None:
    order = SortOrder(SortField(source_id=6, transform=IdentityTransform()))
    table = new_table(catalog, schema=WIDE, order=order)
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    (current,) = metadata["schemas"]
    current["fields"] = [field for field in current["fields"] if field["name"] != "x"]
    path.write_text(json.dumps(metadata))
    refuse(table, "sort order uses a column that was dropped")


def test_a_sort_order_of_a_nested_column_is_not_followed(catalog: Catalog) -> None:
    order = SortOrder(SortField(source_id=5, transform=IdentityTransform()))
    table = new_table(catalog, schema=WIDE, order=order)
    rows = [row for _ in range(3) for row in append(table, make_rows(5))]
    state = dataset_of(table).snapshot()
    assert state.refused == {}
    assert any(
        "sort order is not followed, because it uses the nested column more.when" in n for n in state.notes
    )
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert file.sort_order_id is None
    assert fresh(table).scan().to_arrow().num_rows == len(rows)


def test_several_branches(catalog: Catalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(5))
    append(table, make_rows(5))
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    fresh(table).manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    refuse(table, "several branches .*audit, main")
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"lithify.branch": "main"})
    assert compact(dataset_of(table)).committed
    assert fresh(table).metadata.refs["audit"].snapshot_id == snapshot.snapshot_id


@pytest.mark.parametrize(
    "url",
    ["iceberg://c/table", "iceberg:///a.b", "s3://b/k", "iceberg://c/a..b", "iceberg://c/a.b?x"],
)
def test_urls(url: str) -> None:
    with pytest.raises(Refused, match=re.escape(url)):
        parse_url(url)


def test_a_url_names_catalog_and_table() -> None:
    url = parse_url("iceberg://prod/db.web.events")
    assert (url.catalog, url.identifier) == ("prod", ("db", "web", "events"))
    assert str(url) == "iceberg://prod/db.web.events"


def test_a_table_that_does_not_exist(catalog: Catalog) -> None:
    table = new_table(catalog)
    catalog.drop_table(table.name())
    with pytest.raises(Refused, match="does not exist"):
        dataset_of(table)


def test_a_catalog_that_is_not_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(Refused, match="PYICEBERG_CATALOG__NOWHERE__URI"):
        open_catalog("nowhere")


def test_another_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyiceberg, "__version__", "0.13.0")
    with pytest.raises(Refused, match=r"PyIceberg 0\.13\.0"):
        open_catalog("any")


# Files that are left alone


def _equality_deletes(table: Table) -> None:
    delete_keys(table, pa.table({"id": [-1]}), file_format=FileFormat.ORC)


def _position_deletes(table: Table) -> None:
    delete_positions(table, {files_of(table)[0].file_path: [1]}, file_format=FileFormat.AVRO)


def _avro(table: Table) -> None:
    _orc(table, "AVRO")


def _orc(table: Table, kind: str = "ORC") -> None:
    """A file in another format, as its manifest says."""
    from pyiceberg.manifest import DataFile

    rows = fresh(table).scan().to_arrow()
    path = f"{table.location()}/data/rows.orc"
    orc.write_table(rows, path.removeprefix("file://"))
    size = Path(path.removeprefix("file://")).stat().st_size
    file = DataFile.from_args(
        file_path=path, file_format=FileFormat[kind], record_count=rows.num_rows, file_size_in_bytes=size
    )
    _add(table, file)


def _encrypted(table: Table) -> None:
    """A file with key metadata."""
    file = files_of(table)[0]
    copy = type(file).from_args(
        file_path=f"{file.file_path}.encrypted",
        file_format=file.file_format,
        record_count=3,
        file_size_in_bytes=100,
        key_metadata=b"key",
    )
    _add(table, copy)


def _add(table: Table, file: Any) -> None:
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.typedef import Record

    file[0], file[3] = DataFileContent.DATA, Record()
    file.spec_id = 0
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        producer.append_data_file(file)


@pytest.mark.parametrize(
    ("spoil", "pattern", "left_alone"),
    [
        (_equality_deletes, "equality deletes that apply and are in the format ORC", 3),
        (_position_deletes, "position deletes in the format AVRO", 1),
        (_orc, "format ORC", 1),
        (_avro, "format AVRO", 1),
        (_encrypted, "encrypted", 1),
    ],
)
def test_files(catalog: Catalog, spoil: Callable[[Table], None], pattern: str, left_alone: int) -> None:
    table = new_table(catalog)
    for _ in range(3):
        append(table, make_rows(10))
    spoil(table)
    state = dataset_of(table).snapshot()
    assert len(state.files) == len(files_of(table))
    note = next(note for note in state.notes if re.search(pattern, note))
    assert note.startswith(f"{left_alone} file(s) are left alone")
    totals = dataset_of(table).timeline(state, Ledger()).totals
    assert totals[DeletesStatus.SKIPPED].files == left_alone
    assert totals[DeletesStatus.AWAITING].files == len(state.files) - left_alone
    assert sum(amount.size_bytes for amount in totals.values()) == sum(f.size_bytes for f in state.files)
    assert sum(amount.rows for amount in totals.values()) == sum(f.rows for f in state.files)
    result = compact(dataset_of(table))
    assert result.started == (left_alone == 1)
    assert len(files_of(table)) == (2 if left_alone == 1 else 3)


@pytest.mark.parametrize("metrics", ["none", "counts"])
def test_files_without_bounds_are_read_from_their_footers(catalog: Catalog, metrics: str) -> None:
    table = new_table(catalog, properties={"write.metadata.metrics.default": metrics})
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    assert not files_of(table)[0].lower_bounds
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert set(file.lower_bounds) == {1}  # of the time, for the next plan; nothing else was asked for
    check(table, rows)


def test_files_without_bounds_anywhere_are_left_alone(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"write.metadata.metrics.default": "none"})
    rows = append(table, make_rows(10))
    folder = Path(table.location().removeprefix("file://")) / "data"
    for n in range(2):
        more = make_rows(10)
        pq.write_table(as_arrow(more), folder / f"{n}.parquet", write_statistics=False)
        with fresh(table).transaction() as transaction:
            transaction.add_files([f"{table.location()}/data/{n}.parquet"])
        rows += more
    state = dataset_of(table).snapshot()
    assert any("no bounds" in note for note in state.notes)
    assert not compact(dataset_of(table)).started
    check(table, rows)


def test_a_partition_column_that_is_gone(catalog: Catalog) -> None:
    table = new_table(catalog, schema=Schema(*SCHEMA.fields, NestedField(9, "zone", StringType())))
    with fresh(table).update_spec() as update:
        update.add_field("zone", IdentityTransform(), "zone")
    data = as_arrow(make_rows(4)).append_column("zone", pa.array(["x", "x", "y", "y"]))
    for _ in range(2):
        fresh(table).append(data)
    with fresh(table).update_spec() as update:
        update.remove_field("zone")
    with fresh(table).update_schema() as update_schema:
        update_schema.delete_column("zone")
    assert any("column that was dropped" in note for note in dataset_of(table).snapshot().notes)
    assert not compact(dataset_of(table)).started

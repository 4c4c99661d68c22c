"""Snapshots of Lithify and of Java for the same rows, field by field: lists, manifests, entries, footers.

A field that differs on purpose is named here and in `docs/iceberg.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import parser
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.avro import read_avro
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import START, append, delete_positions, fresh, make_rows, new_table
from tests.datasets.iceberg.test_output_metrics import MODES, VALUES, elements, table_of
from tests.judge.iceberg_java import ParquetFile

Record = dict[str, Any]
COLUMNS: dict[str, tuple[IcebergType, Sequence[Any]]] = {
    # Spark has no type for times of day.
    **{name: column for name, column in VALUES.items() if name != "a_time"},
    "x": (DoubleType(), [1.5, math.nan, None, -0.0]),
    "only_nan": (FloatType(), [math.nan] * 4),
    "s": (
        StructType(NestedField(200, "y", DoubleType()), NestedField(201, "f", FloatType())),
        [{"y": math.nan, "f": 1.0}, {"y": 2.0, "f": None}, {"y": None, "f": 2.0}, {"y": 3.0, "f": math.nan}],
    ),
    "last_text": (StringType(), ["\U0010ffff" * 17] * 4),
}
OF_THE_SNAPSHOT = {"snapshot_id", "sequence_number", "file_sequence_number", "added_snapshot_id"}
OF_THE_FILE = {"file_path", "file_size_in_bytes", "manifest_path", "manifest_length"}


def by_both(lake: Lake, table: Table, procedure: str, ours: Any, **arguments: str) -> tuple[Table, Table]:
    """The table after the procedure of Java's, and after ours on the same snapshot."""
    before = fresh(table).metadata.current_snapshot_id
    lake.call(procedure, **arguments)
    by_java = fresh(table)
    lake.call("rollback_to_snapshot", snapshot_id=str(before))
    ours(table)
    return by_java, fresh(table)


def compact_it(table: Table) -> None:
    assert compact(dataset_of(table)).committed


def rewrite_deletes(table: Table) -> None:
    assert DeleteRewriter(dataset_of(table), a_clock()).run().outcome is RewriteOutcome.REWRITTEN


def rewrite_manifests(table: Table) -> None:
    assert ManifestRewriter(dataset_of(table), a_clock()).run().outcome is RewriteOutcome.REWRITTEN


def manifests(table: Table) -> list[Record]:
    """The records of the manifest list."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return read_avro(_path(snapshot.manifest_list)).records


def live_files(table: Table, content: int) -> list[Record]:
    """The live entries of the data files (0) or of the delete files (1)."""
    found: list[Record] = []
    for manifest in manifests(table):
        if manifest["content"] == content:
            records = read_avro(_path(manifest["manifest_path"])).records
            found += [record["data_file"] for record in records if record["status"] != 2]
    return found


def _path(location: str) -> Path:
    return Path(location.removeprefix("file:").replace("///", "/"))


def by_id(field: Any) -> Any:
    """A field's value; maps as Python has them."""
    if isinstance(field, list) and field and isinstance(field[0], dict):
        return {pair["key"]: pair["value"] for pair in field}
    return field


def differing(java: Mapping[str, Any], ours: Mapping[str, Any], ignored: set[str]) -> set[str]:
    """The fields of two records that differ; all fields of Java's are there."""
    assert java.keys() <= ours.keys()
    return {name for name in java if by_id(java[name]) != by_id(ours[name])} - ignored


@pytest.mark.parametrize("mode", ["truncate(16)", "full", "counts", "none"])
def test_entries_and_footers_of_data_files(lake: Lake, mode: str) -> None:
    order = SortOrder(SortField(1, IdentityTransform()))
    table = table_of(lake.catalog, COLUMNS, {f"{MODES}default": mode}, order)
    options = {"options": "map('rewrite-all', 'true')", "strategy": "'sort'"}
    java, ours = by_both(lake, table, "rewrite_data_files", compact_it, **options)
    (by_java,), (by_us,) = live_files(java, 0), live_files(ours, 0)
    found = differing(by_java, by_us, OF_THE_FILE | {"sort_order_id"})
    assert found <= {"column_sizes", "value_counts", "null_value_counts"}
    inside = elements(table.schema())
    for name in found:
        by_field, expected = by_id(by_us[name]), by_id(by_java[name])
        assert by_field.keys() - expected.keys() <= inside
        assert expected.keys() <= by_field.keys()
        if name != "column_sizes":
            assert {n: by_field[n] for n in expected} == expected
    assert by_us["sort_order_id"] == table.sort_order().order_id
    _compare_footers(by_java["file_path"], by_us["file_path"])


def _compare_footers(by_java: str, by_us: str) -> None:
    java, ours = (pq.ParquetFile(_path(path)) for path in (by_java, by_us))
    assert _said(ours) == _said(java)
    assert str(ours.schema).splitlines()[2:] == str(java.schema).splitlines()[2:]
    for n in range(java.metadata.num_columns):
        column, expected = (file.metadata.row_group(0).column(n) for file in (ours, java))
        assert column.has_offset_index
        assert expected.has_offset_index
        statistics, of_java = column.statistics, expected.statistics
        if statistics is None:  # there is NaN
            assert math.isnan(of_java.max)
            continue
        assert statistics.null_count == of_java.null_count
        assert statistics.has_min_max == of_java.has_min_max
        if of_java.has_min_max:
            assert (statistics.min_raw, statistics.max_raw) == (of_java.min_raw, of_java.max_raw)


def _said(file: pq.ParquetFile) -> Record:
    """The metadata of a footer; the schema without what Java leaves out if it is empty."""
    said = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    schema = json.loads(said["iceberg.schema"])
    if not schema.get("identifier-field-ids"):
        schema.pop("identifier-field-ids", None)
    for field in schema["fields"]:
        field.pop("doc", None)
    return {**said, "iceberg.schema": schema}


ROWS = 6000
MANY: dict[str, tuple[IcebergType, Sequence[Any]]] = {
    "id": (LongType(), [n * 7919 % ROWS for n in range(ROWS)]),
    "text": (StringType(), [f"{n * 7919 % ROWS:032x}" for n in range(ROWS)]),
    "device": (StringType(), [f"device {n % 7}" for n in range(ROWS)]),
    "x": (DoubleType(), [math.nan if n % 50 == 0 else n / 2 for n in range(ROWS)]),
    "y": (DoubleType(), [n + 0.5 for n in range(ROWS)]),
    "s": (
        StructType(NestedField(200, "n", LongType()), NestedField(201, "t", StringType())),
        [{"n": n, "t": f"t{n:020}"} for n in range(ROWS)],
    ),
}
PARQUET = "write.parquet."
BLOOM = f"{PARQUET}bloom-filter-"


@dataclass(frozen=True)
class Written:
    """One data file as the manifest and parquet-mr have it."""

    entry: Record
    file: pq.ParquetFile
    judged: ParquetFile

    @classmethod
    def of(cls, lake: Lake, table: Table) -> Written:
        (entry,) = live_files(table, 0)
        path = entry["file_path"]
        return cls(entry, pq.ParquetFile(_path(path)), lake.java.parquet(path))

    def columns(self) -> list[Any]:
        """The chunks of the first row group."""
        group = self.file.metadata.row_group(0)
        return [group.column(n) for n in range(group.num_columns)]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {f"{PARQUET}compression-codec": "gzip", f"{PARQUET}compression-level": "9"},
        {f"{PARQUET}compression-codec": "uncompressed"},
        {f"{PARQUET}compression-codec": "snappy"},
        {f"{PARQUET}page-row-limit": "500"},
        {f"{PARQUET}page-size-bytes": "16384"},
        {f"{PARQUET}dict-size-bytes": "1024"},
        {"parquet.enable.dictionary": "false"},
        {
            f"{PARQUET}row-group-size-bytes": "60000",
            f"{PARQUET}row-group-check-min-record-count": "100",
            f"{PARQUET}row-group-check-max-record-count": "100",
        },
        {f"{PARQUET}stats-enabled.column.{name}": "false" for name in ("id", "y", "s.t", "nothing")},
        {f"{BLOOM}enabled.column.{name}": "true" for name in ("id", "text", "device", "s.t", "none")},
        {f"{BLOOM}enabled.column.id": "true", f"{BLOOM}fpp.column.id": "0.2", f"{BLOOM}max-bytes": "4096"},
        {f"{MODES}default": "counts", f"{MODES}column.s.n": "truncate(2)"},
    ],
    ids=lambda properties: ",".join(name.removeprefix(PARQUET) for name in properties) or "none",
)
def test_properties_of_writing(lake: Lake, properties: dict[str, str]) -> None:
    """The same rows in one file: the entry and the footer have what Java's have."""
    order = SortOrder(SortField(1, IdentityTransform()), SortField(2, IdentityTransform()))
    table = table_of(lake.catalog, MANY, properties, order)
    options = {"options": "map('rewrite-all', 'true')", "strategy": "'sort'"}
    found = by_both(lake, table, "rewrite_data_files", compact_it, **options)
    java, ours = (Written.of(lake, which) for which in found)
    changing = {"column_sizes", "split_offsets", "sort_order_id"}
    found_there = differing(java.entry, ours.entry, OF_THE_FILE | changing)
    if f"{PARQUET}stats-enabled.column.id" in properties:
        assert found_there == {"value_counts"}  # Java has no counts of values without statistics
        counts, expected = (by_id(which.entry["value_counts"]) for which in (ours, java))
        assert expected == {n: count for n, count in counts.items() if n in expected}
    else:
        assert not found_there
    assert by_id(ours.entry["column_sizes"]).keys() == by_id(java.entry["column_sizes"]).keys()
    assert _said(ours.file) == _said(java.file)
    _compare_layout(java, ours, properties)


def _compare_layout(java: Written, ours: Written, properties: Mapping[str, str]) -> None:
    """Row groups, pages, dictionaries, indexes, statistics and filters of the columns."""
    starts = [which.entry["split_offsets"] for which in (java, ours)]
    assert all(which[0] == 4 for which in starts)
    assert all(
        len(start) == file.metadata.num_row_groups
        for start, file in zip(starts, (java.file, ours.file), strict=True)
    )
    if f"{PARQUET}row-group-size-bytes" in properties:
        assert min(len(which) for which in starts) > 1
    else:
        assert [len(which) for which in starts] == [1, 1]
    pages = [
        {chunk.column: [page.values for page in chunk.pages] for chunk in which.judged.chunks}
        for which in (java, ours)
    ]
    if f"{PARQUET}page-row-limit" in properties:
        assert pages[0] == pages[1]
    for column, expected in zip(ours.columns(), java.columns(), strict=True):
        name = column.path_in_schema
        assert name == expected.path_in_schema
        if f"{PARQUET}compression-codec" in properties:
            assert column.compression == expected.compression
        assert column.has_offset_index == expected.has_offset_index
        assert column.has_column_index == expected.has_column_index or name == "x"
        if name in ("device", "id") or "parquet.enable.dictionary" in properties:
            # Java drops the dictionary of unrepeated texts too.
            assert column.has_dictionary_page == expected.has_dictionary_page, name
        is_filtered = [which.bloom_filter_offset is not None for which in (column, expected)]
        assert is_filtered[1] <= is_filtered[0]
        if f"{BLOOM}enabled.column.{name}" not in properties:
            assert is_filtered == [False, False]
        if name != "x":  # there is NaN
            assert (column.statistics is None) == (expected.statistics is None), name


FILTERS = (
    "s.n = 1500",
    "s.n > 4100",
    "s.y < 100",
    "s.t.u = 'text 02500'",
    "number = 2500",
    "number >= 1900 AND number < 2100",
    "number = -1",
    "s.y IS NOT NAN",
    "s.y IS NAN",
    "s.t.u IS NULL",
    "s.t.u IS NOT NULL",
)


@pytest.mark.parametrize("mode", ["truncate(16)", "none", "counts"])
def test_files_are_planned_as_after_java(lake: Lake, mode: str) -> None:
    """Three partitions whose rows lie apart in nested fields and in a column of the sort order."""
    java, ours = _clustered(lake, mode)
    sizes = []
    for where in FILTERS:
        expected, found = (_planned(lake, which, where) for which in (java, ours))
        assert found == expected, where
        sizes.append(len(found[0]))
    some = {"truncate(16)": [1, 1, 1, 1, 1, 2, 0, 2, 1, 1, 2], "none": [3, 3, 3, 3, 1, 2, 0, 3, 3, 3, 3]}
    assert mode not in some or sizes == some[mode]


def _clustered(lake: Lake, mode: str) -> tuple[Table, Table]:
    """The table after Java's compaction, and after ours."""
    nested = StructType(
        NestedField(10, "n", LongType(), required=False),
        NestedField(11, "y", DoubleType(), required=False),
        NestedField(12, "t", StructType(NestedField(13, "u", StringType(), required=False)), required=False),
    )
    schema = Schema(
        NestedField(1, "event_time", TimestamptzType(), required=False),
        NestedField(2, "device", StringType(), required=False),
        NestedField(3, "number", LongType(), required=False),
        NestedField(4, "s", nested, required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "device"))
    order = SortOrder(SortField(3, IdentityTransform()))
    properties = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0", f"{MODES}default": mode}
    table = new_table(lake.catalog, schema=schema, spec=spec, order=order, properties=properties)
    arrow = schema_to_pyarrow(table.schema())
    for part in (0, 1):
        rows = [
            {
                "event_time": START,
                "device": f"d{n // 2000}",
                "number": n,
                "s": {
                    "n": n,
                    "y": math.nan if n // 2000 == 1 else n / 2,
                    "t": None if n // 2000 == 2 else {"u": f"text {n:05}"},
                },
            }
            for n in range(part, 6000, 2)
        ]
        fresh(table).append(pa.Table.from_pylist(rows, arrow))
    options = {"options": "map('rewrite-all', 'true')", "strategy": "'sort'"}
    return by_both(lake, table, "rewrite_data_files", compact_it, **options)


def _planned(lake: Lake, table: Table, where: str) -> tuple[set[str], set[str]]:
    """The partitions of the files that PyIceberg and Java plan."""
    by_pyiceberg = {task.file.file_path for task in table.scan(row_filter=where).plan_files()}
    in_json = json.loads(parser.parse(where).model_dump_json())
    if in_json.get("term") == "s.y" and "value" in in_json:
        in_json["value"] = float(in_json["value"])
    by_java = lake.java.planned(table.metadata_location, in_json)
    return _partitions(by_pyiceberg), _partitions(by_java)


def _partitions(paths: Iterable[str]) -> set[str]:
    return {part for path in paths for part in path.split("/") if part.startswith("device=")}


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_entries_and_footers_of_delete_files(lake: Lake, granularity: str) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    table = new_table(lake.catalog, spec=spec, properties={"write.delete.granularity": granularity})
    for _ in range(2):
        append(table, make_rows(40))
    paths = [file["file_path"] for file in live_files(fresh(table), 0)]
    for first in range(0, 16, 2):
        delete_positions(table, {paths[0]: [first, first + 20]})
        delete_positions(table, {paths[1]: [first]})
    arguments = {"options": "map('rewrite-all', 'true')"}
    java, ours = by_both(lake, table, "rewrite_position_delete_files", rewrite_deletes, **arguments)
    by_java, by_us = (sorted(live_files(which, 1), key=lambda f: f["record_count"]) for which in (java, ours))
    for expected, found in zip(by_java, by_us, strict=True):
        names = differing(expected, found, OF_THE_FILE)
        more = {"value_counts", "null_value_counts", "referenced_data_file", "lower_bounds", "upper_bounds"}
        assert names <= {*more, "column_sizes"}
        assert all(expected[name] is None for name in names & more)
        assert by_id(found["column_sizes"]).keys() == by_id(expected["column_sizes"]).keys()
        _compare_footers(expected["file_path"], found["file_path"])


@pytest.mark.parametrize("mode", [compact_it, rewrite_manifests])
def test_lists_manifests_and_summaries(lake: Lake, mode: Any) -> None:
    """Partitions of texts and buckets, and all files in the same ones."""
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "device"),
        PartitionField(2, 1001, BucketTransform(1), "bucket"),
    )
    properties = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
    table = new_table(lake.catalog, spec=spec, properties=properties)
    for device in ("a", "b" * 30, "ü"):
        for _ in range(2):
            append(table, make_rows(40, device=device))
    data = mode is compact_it
    procedure = "rewrite_data_files" if data else "rewrite_manifests"
    arguments = {"options": "map('rewrite-all', 'true')"} if data else {}
    java, ours = by_both(lake, table, procedure, mode, **arguments)
    (by_java,), (by_us,) = (
        [m for m in manifests(which) if m["added_files_count"] or m["existing_files_count"]]
        for which in (java, ours)
    )
    ignored = OF_THE_SNAPSHOT | OF_THE_FILE
    assert differing(_summed(by_java), _summed(by_us), ignored) == set()
    headers = [read_avro(_path(manifest["manifest_path"])).said.keys() for manifest in (by_java, by_us)]
    assert headers[0] <= headers[1] | {"iceberg.schema"}
    summaries = [_summary(which) for which in (java, ours)]
    assert summaries[0].keys() <= summaries[1].keys()
    changing = {name for name in summaries[0] if summaries[0][name] != summaries[1][name]}
    assert all(
        name.endswith("-files-size") or "manifests" in name or name == "entries-processed"
        for name in changing
    )


def _summed(manifest: Record) -> Record:
    """With its partitions as a list of tuples."""
    return {**manifest, "partitions": [tuple(sorted(part.items())) for part in manifest["partitions"]]}


def _summary(table: Table) -> dict[str, str]:
    """Without the properties that say which program wrote it."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    programs = ("spark.", "app-", "engine-", "iceberg-version", "lithify.")
    found = snapshot.summary.additional_properties
    return {"operation": snapshot.summary.operation.value} | {
        name: value for name, value in found.items() if not name.startswith(programs)
    }

"""The table's properties of writing: what cannot be done is refused before anything is written, in one
sentence; what Iceberg allows is done."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.table_properties import USED, USED_PREFIXES
from lithify.datasets.iceberg.format.write_options import delete_options, write_options
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import append, by_id, check, files_of, fresh, make_rows, new_table, read

ROOT = Path(__file__).parents[3]
PARQUET = "write.parquet."


def spoiled(catalog: Catalog, properties: dict[str, str]) -> Table:
    """A table with something to compact, whose properties another program has set, without any check."""
    table = new_table(catalog)
    append(table, make_rows(10))
    append(table, make_rows(10))
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "properties": {**metadata["properties"], **properties}}))
    return table


@pytest.mark.parametrize(
    ("properties", "pattern"),
    [
        (
            {f"{PARQUET}compression-codec": "lzo"},
            "codec is 'lzo'.*use one of zstd, .*uncompressed",
        ),
        ({f"{PARQUET}compression-codec": "best"}, "compression-codec is 'best'"),
        ({f"{PARQUET}compression-level": "23"}, "compression-level is '23'; with zstd .* to 22"),
        ({f"{PARQUET}compression-level": "high"}, "compression-level is 'high'"),
        (
            {f"{PARQUET}compression-codec": "gzip", f"{PARQUET}compression-level": "10"},
            "with gzip .* from 1 to 9",
        ),
        ({f"{PARQUET}row-group-limit": "0"}, "row-group-limit is '0'; .* from 1"),
        ({f"{PARQUET}row-group-limit": "-5"}, "row-group-limit"),
        ({f"{PARQUET}page-size-bytes": "1MB"}, "page-size-bytes is '1MB'; it must be a whole number"),
        ({f"{PARQUET}page-size-bytes": str(1 << 64)}, "page-size-bytes"),
        ({f"{PARQUET}dict-size-bytes": "0"}, "dict-size-bytes"),
        ({f"{PARQUET}page-row-limit": "many"}, "page-row-limit"),
        ({"write.metadata.metrics.max-inferred-column-defaults": "few"}, "column-defaults is 'few'"),
        ({"write.metadata.previous-versions-max": "few"}, "write.metadata.previous-versions-max"),
        ({"write.summary.partition-limit": "x"}, "write.summary.partition-limit"),
        ({"write.object-storage.enabled": "perhaps"}, "write.object-storage.enabled"),
        ({"schema.name-mapping.default": "{"}, "schema.name-mapping.default"),
        ({"write.target-file-size-bytes": "1e9"}, "write.target-file-size-bytes is '1e9'"),
        ({"lithify.skip-from-now-seconds": str(10**30)}, "whole number from 0 to"),
        ({"lithify.target-file-size-bytes": str(1 << 70)}, "whole number from 1 to"),
    ],
)
def test_what_cannot_be_done(catalog: Catalog, properties: dict[str, str], pattern: str) -> None:
    table = spoiled(catalog, properties)
    before = fresh(table).metadata_location
    with pytest.raises(Refused, match=pattern) as refusal:
        compact(dataset_of(table))
    assert str(refusal.value).startswith("iceberg://test/db.events: ")
    assert "\n" not in str(refusal.value)
    assert fresh(table).metadata_location == before
    assert not list(Path(table.location().removeprefix("file://")).rglob("lithify*"))


@pytest.mark.parametrize(
    ("properties", "codec"),
    [
        ({}, "ZSTD"),
        ({f"{PARQUET}compression-codec": "GZIP"}, "GZIP"),
        ({f"{PARQUET}compression-codec": "UNCOMPRESSED"}, "UNCOMPRESSED"),
        ({f"{PARQUET}compression-codec": "snappy", f"{PARQUET}compression-level": "3"}, "SNAPPY"),
        ({f"{PARQUET}compression-codec": "lz4", f"{PARQUET}compression-level": "3"}, "LZ4"),
        ({f"{PARQUET}compression-codec": "lz4_raw"}, "LZ4"),
        ({f"{PARQUET}compression-codec": "brotli"}, "BROTLI"),
        ({f"{PARQUET}compression-level": "-1"}, "ZSTD"),
        ({"write.avro.compression-codec": "uncompressed"}, "ZSTD"),
        ({"write.avro.compression-codec": "ZSTD"}, "ZSTD"),
        ({"write.avro.compression-codec": "snappy"}, "ZSTD"),
        ({"write.avro.compression-codec": "lzo"}, "ZSTD"),
        ({f"{PARQUET}row-group-limit": "7"}, "ZSTD"),
        ({f"{PARQUET}row-group-size-bytes": "1024"}, "ZSTD"),
    ],
)
def test_what_can(catalog: Catalog, properties: dict[str, str], codec: str) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    with fresh(table).transaction() as transaction:
        transaction.set_properties(properties)
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    footer = pq.ParquetFile(file.file_path.removeprefix("file://")).metadata
    assert {footer.row_group(n).column(0).compression for n in range(footer.num_row_groups)} == {codec}
    assert footer.num_row_groups == (3 if "limit" in "".join(properties) else 1)
    assert read(table) == by_id(rows)  # DuckDB knows fewer codecs of manifests


@pytest.mark.parametrize(("value", "is_counted"), [("false", False), ("no", False), ("TRUE", True)])
def test_columns_without_statistics(catalog: Catalog, value: str, is_counted: bool) -> None:
    """The time column has them in any case, so that the table can be planned."""
    names = ("id", "event_time", "none")
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    with fresh(table).transaction() as transaction:
        transaction.set_properties({f"{PARQUET}stats-enabled.column.{name}": value for name in names})
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    counted = {1, 2, 3} if is_counted else {1, 3}
    for by_field in (file.null_value_counts, file.lower_bounds, file.upper_bounds):
        assert {*by_field} == counted
    assert {*file.value_counts} == {*file.column_sizes} == {1, 2, 3}
    assert not compact(dataset_of(table)).started
    check(table, rows)


def test_invalid_properties_of_delete_files_refuse_only_deletes(catalog: Catalog) -> None:
    """Data is compacted all the same."""
    deletes = "write.delete.parquet."
    table = spoiled(catalog, {f"{deletes}compression-codec": "lzo"})
    refused = dataset_of(table).snapshot().refused
    assert refused.keys() == {"deletes"}
    assert f"{deletes}compression-codec is 'lzo'" in refused["deletes"]
    with pytest.raises(Refused, match=f"iceberg://test/db.events: {deletes}compression-codec is 'lzo'"):
        DeleteRewriter(dataset_of(table), a_clock()).run()
    assert compact(dataset_of(table)).committed


def test_delete_files_have_the_options_of_data_files_and_then_their_own() -> None:
    own = {
        f"{PARQUET}compression-codec": "gzip",
        f"{PARQUET}page-size-bytes": "5000",
        "write.delete.parquet.compression-codec": "snappy",
        "write.delete.parquet.row-group-size-bytes": "7000",
    }
    data, deletes = write_options(own), delete_options(own)
    assert (data.parquet["compression"], deletes.parquet["compression"]) == ("gzip", "snappy")
    assert (data.parquet["data_page_size"], deletes.parquet["data_page_size"]) == (5000, 5000)
    assert (data.row_group_bytes, deletes.row_group_bytes) == (128 << 20, 7000)
    with pytest.raises(Refused, match=r"write\.delete\.parquet\.page-row-limit is 'many'"):
        delete_options({"write.delete.parquet.page-row-limit": "many", f"{PARQUET}page-row-limit": "9"})


def test_the_documents_list_every_property_of_writing() -> None:
    page = (ROOT / "docs" / "iceberg.md").read_text()
    _, _, rest = page.partition("### Write properties")
    section, _, _ = rest.partition("\n## ")
    names = [n.removesuffix(".") for n in (*USED, *USED_PREFIXES) if n.startswith(("write.", "parquet."))]
    assert len(names) > 30
    assert not [name for name in names if name not in section and f"`{name.rsplit('.')[-1]}`" not in section]


def test_a_property_that_is_spoiled_before_the_commit(catalog: Catalog) -> None:
    """The work waits until it is right again."""
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    with fresh(table).transaction() as transaction:
        transaction.set_properties({f"{PARQUET}compression-codec": "lzo"})
    with pytest.raises(Refused, match="lzo"):
        steps.commit()
    check(table, rows)
    with fresh(table).transaction() as transaction:
        transaction.remove_properties(f"{PARQUET}compression-codec")
    assert steps.commit().committed
    check(table, rows)

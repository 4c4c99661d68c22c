"""Bounds in the manifests of outputs: none is narrower than the values, so that readers who leave files out
by them miss no row."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo

from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import append, check, files_of, fresh, make_rows, new_table, read_by_duckdb

BEFORE_SURROGATES = "\ud7ff"
LONG = "x" * 5000


@pytest.mark.parametrize("device", [LONG, BEFORE_SURROGATES * 20, "\U0010ffff" * 20, "é" * 17, "", "\0"])
@pytest.mark.parametrize("row_group_limit", ["1", "1000"])
def test_texts_that_are_long_or_at_the_edge_are_found(
    catalog: Catalog, device: str, row_group_limit: str
) -> None:
    """Arrow leaves out bounds above 4 KiB, row group by row group. No text follows U+10FFFF, and nothing that
    can be encoded follows U+D7FF at once."""
    metrics = "write.metadata.metrics.column.device"  # PyIceberg itself could not write all of these
    properties = {"write.parquet.row-group-limit": row_group_limit, metrics: "none"}
    table = new_table(catalog, properties=properties)
    rows = append(table, make_rows(2, device="m")) + append(table, make_rows(2, device=device))
    with fresh(table).transaction() as transaction:
        transaction.remove_properties(metrics)
    assert compact(dataset_of(table)).committed
    check(table, rows)
    is_device = cast(Any, EqualTo)("device", device)
    found = fresh(table).scan(row_filter=is_device).to_arrow()
    assert found.num_rows == 2
    assert len([row for row in read_by_duckdb(table) if row[2] == device]) == 2
    (file,) = files_of(table)
    upper = file.upper_bounds.get(3)
    assert upper is None or upper.decode() >= device[:16]

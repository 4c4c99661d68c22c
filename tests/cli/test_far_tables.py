"""The commands on tables with times that no calendar has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType

from tests.cli.invoking import invoke, invoke_json
from tests.datasets.iceberg.tables import new_catalog, new_table
from tests.datasets.iceberg.test_far_times import (
    MICROSECONDS,
    PROPERTIES,
    TIMESTAMPTZ,
    YEAR_10000_US,
    add_file,
    numbers,
    stored,
)

SCHEMA = Schema(NestedField(1, "t", TimestamptzType()), NestedField(2, "id", LongType()))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("times", [[YEAR_10000_US], [(1 << 63) - 1, -(1 << 63)], [0, *MICROSECONDS]])
def test_all_commands_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[int]) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    table = new_table(new_catalog(tmp_path, name="lake"), schema=SCHEMA, properties=PROPERTIES)
    for n, time in enumerate([*times, *times]):
        add_file(table, {"t": numbers([time], TIMESTAMPTZ), "id": pa.array([n], pa.int64())})
    before = stored(table)
    lake = ["iceberg://lake/db.events", "--store-option", f"uri=sqlite:///{tmp_path}/catalog.db"]
    picture = tmp_path / "plan.png"
    assert "year 9999 and later" in invoke("plan", *lake, "--png", str(picture)).stdout
    assert picture.stat().st_size > 1000
    assert sum(chunk["files"] for chunk in invoke_json("plan", *lake)["chunks"]) == 2 * len(times)
    assert invoke_json("status", *lake)
    invoke("status", *lake)
    assert stored(table) == before

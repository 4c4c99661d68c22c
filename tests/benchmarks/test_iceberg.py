"""The measurement of Iceberg compactors, with hardly any data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.iceberg import IcebergResults, Measured, Sample
from benchmarks.iceberg_data import START_US, TIME_COLUMN, US_PER_DAY, copy_for_a_run, data_files, table_of
from benchmarks.iceberg_layout import Layout, Rows, fingerprint, measure_layout
from benchmarks.iceberg_planning import PlanningRun
from benchmarks.iceberg_tools import TOOLS, Kind
from benchmarks.watch import run_watched

ROOT = Path(__file__).parents[2]
START = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START_US)
DAYS = 31


def write(path: Path, *days: float, row_group_size: int | None = None) -> Path:
    """A file with one row at each of these days."""
    times = pa.array([START_US + int(day * US_PER_DAY) for day in days], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({TIME_COLUMN: times}), path, row_group_size=row_group_size)
    return path


def test_a_day_touches_what_its_statistics_meet(tmp_path: Path) -> None:
    one_day = write(tmp_path / "a.parquet", 2.0, 2.99)
    two_days = write(tmp_path / "b.parquet", 4.5, 5.0, row_group_size=1)
    layout = measure_layout([one_day, two_days])
    assert layout.files == 2
    assert layout.day_files == pytest.approx(3 / DAYS)
    whole = one_day.stat().st_size + 2 * two_days.stat().st_size
    assert layout.day_file_bytes == pytest.approx(whole / DAYS)
    footers = [pq.read_metadata(path) for path in (one_day, two_days)]
    groups = [
        f.row_group(n).column(0).total_compressed_size for f in footers for n in range(f.num_row_groups)
    ]
    assert layout.day_group_bytes == pytest.approx(sum(groups) / DAYS)


def test_files_without_statistics_are_always_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({TIME_COLUMN: pa.array([START])}), path, write_statistics=False)
    assert measure_layout([path]).day_files == 1


def measured(name: str, wall_s: float, day_bytes: float, surplus: dict[str, int]) -> Measured:
    """A compactor with one sample."""
    tool = next(tool for tool in TOOLS if tool.name == name)
    layout = Layout(1, 1, 1.0, day_bytes, day_bytes)
    return Measured(tool, [Sample(wall_s, wall_s, 1, layout, {})], surplus)


def test_targets_compare_with_the_right_peers() -> None:
    right, wrong = {"deletes": 0, "rewrite": 0}, {"deletes": 7, "rewrite": 0}
    tools = [
        measured("Lithify", 6.0, 60.0, right),
        measured("zamboni", 3.0, 300.0, wrong),
        measured("Iceberg on Spark 3.5", 5.0, 600.0, right),
        measured("DuckDB sorted COPY", 4.0, 100.0, {}),
    ]
    assert [m.tool.kind for m in tools[1:]] == [Kind.BIN_PACK, Kind.BIN_PACK, Kind.SORT]
    planning = PlanningRun(100, 1.0, 2.0, 1, 50, 1.0, 0.5, 0, 0)
    results = IcebergResults(Layout(9, 9, 9.0, 100.0, 90.0), Rows(1, 1), tools, planning)
    values = {target.name: round(target.value, 3) for target in results.targets()}
    assert values == {
        "one-day bytes over those before": 0.6,
        "wall over the fastest that keeps rows right": 1.2,
        "wall over the fastest of all": 2.0,
        "one-day bytes over those of the best bin-packing": 0.2,
        "s to plan 100 files": 2.0,
        "s to find 50 chunks unchanged": 0.5,
        "unchanged chunks that were looked at or proposed": 0.0,
    }


def test_a_compactor_is_watched_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    place = table_of(tmp_path, 3, 50)
    folder = copy_for_a_run(place)
    tool = next(tool for tool in TOOLS if tool.name == "DuckDB sorted COPY")
    watched = run_watched(tool.command(folder, None))
    files = [Path(path) for path in watched.document["files"]]
    assert watched.document["wall_s"] > 0
    assert watched.peak_memory_bytes > 10_000_000
    assert fingerprint(files) == fingerprint(data_files(folder))
    assert fingerprint(files).count == 150

"""The S3 part of `make bench`: what is counted, the report, and a real run with hardly any data."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.s3 import NAMES, IdleResult, S3Result, S3Results, Side, print_tables, selected, side_of
from benchmarks.s3_cases import IDLE
from benchmarks.s3_run import LITHIFY, OFFICIAL, WATCHER, SideRun
from rich.console import Console

from lithify.testing.s3 import Fate, LoggedRequest, Operation

ROOT = Path(__file__).parents[2]
SST, STATE = "db/compacted/1.sst", "db/compactions/1.compactions"


def request(
    requester: str, operation: Operation, key: str, start_s: float, end_s: float, size: int = 0
) -> LoggedRequest:
    is_put = operation is Operation.PUT
    sizes = (size, 0) if is_put else (0, size)
    return LoggedRequest(operation, "b", key, "", *sizes, start_s, end_s, 200, Fate.ANSWERED, 1, requester)


def test_of_a_side_counts_what_it_asked_for_between_submission_and_completion() -> None:
    log = [
        request(OFFICIAL, Operation.GET, STATE, 9, 9.5),
        request(WATCHER, Operation.PUT, STATE, 10, 11),
        request(OFFICIAL, Operation.LIST, "db/compactions/", 11, 12),
        request(OFFICIAL, Operation.GET, STATE, 12, 13),
        request(OFFICIAL, Operation.GET, SST, 13, 15, 100),
        request(OFFICIAL, Operation.GET, SST, 13.5, 15, 100),
        request(WATCHER, Operation.GET, STATE, 14, 14.5),
        request(OFFICIAL, Operation.PUT, SST, 15, 16, 150),
        request(OFFICIAL, Operation.PUT, STATE, 16, 17, 5),
        request(OFFICIAL, Operation.PUT, "db/lithify/coordinator.json", 17.1, 18, 5),
        request(OFFICIAL, Operation.GET, STATE, 18, 19),
    ]
    side = side_of(OFFICIAL, SideRun(began_s=9.8, ended_s=20, cpu_s=3, start_cpu_s=1), log)
    assert side == Side(
        wall_s=6,
        data_s=3,
        cpu_s=3,
        start_cpu_s=1,
        requests={"LIST": 1, "control GET": 1, "data GET": 2, "PUT": 2},
        bytes_read=200,
        bytes_written=155,
        chain=5,
        chain_requests=[
            "0.000 s: ListObjectsV2 db/compactions/",
            f"1.000 s: GetObject {STATE}",
            f"2.000 s: GetObject {SST}",
            f"4.000 s: PutObject {SST}",
            f"5.000 s: PutObject {STATE}",
        ],
        most_in_flight=2,
    )


def test_what_needs_much_memory_has_to_be_named() -> None:
    large = "S3 5 GB in 24 sources"
    assert set(selected(None)) == set(NAMES) - {large}
    assert selected([large, IDLE, "200 B"]) == [large, IDLE]
    assert selected(["200 B"]) == []


def test_the_report_has_both_sides_and_their_ratios() -> None:
    theirs = Side(4.0, 2.5, 2.0, 1.0, {"data GET": 30, "PUT": 10}, 100, 50, 20, [], 8)
    ours = Side(2.0, 0.8, 0.5, 9.0, {"data GET": 8, "control GET": 2, "PUT": 10}, 100, 50, 10, [], 4)
    idle = IdleResult(20, {"control GET": 24}, {"control GET": 20, "PUT": 2}, 0.5, 0.25)
    results = S3Results([S3Result("S3 2 MB", 20, 2_000_000, theirs, ours)], [idle], None)
    (compaction,) = results.to_json()["compactions"]
    assert results.to_json()["bandwidth_of_a_connection"] is None
    assert compaction["ratios"] == {"wall": 2.0, "cpu": 4.0, "requests": 2.0, "chain": 2.0}
    console = Console(file=io.StringIO(), width=200)
    print_tables(console, results)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in (
        "2 MB",
        "1 : 2",
        "4.00 : 2.00",
        "30 : 8",
        "0 : 2",
        "20 : 10",
        "0 : 1",
        "without limit",
        "{'control GET': 20, 'PUT': 2}",
    ):
        assert shown in text


@pytest.mark.timeout(600)
@pytest.mark.whole
def test_both_sides_compact_the_same_database(tmp_path: Path) -> None:
    """That the rows are right is judged by the benchmark itself, which fails if they are not."""
    arguments = ["--only", "S3 2 MB", "--latency", "1", "--scale", "0.05"]
    arguments += ["--cache", str(tmp_path / "data"), "--output", str(tmp_path / "bench.json")]
    subprocess.run([sys.executable, "-m", "benchmarks", *arguments], check=True, timeout=550, cwd=ROOT)
    (compaction,) = json.loads((tmp_path / "bench.json").read_text())["s3"]["compactions"]
    for side in (OFFICIAL, LITHIFY):
        assert compaction[side]["wall_s"] > 0
        assert compaction[side]["requests"]["data GET"] >= 8
        assert 0 < compaction[side]["chain"] <= sum(compaction[side]["requests"].values())
        assert compaction[side]["bytes_written"] > 50_000

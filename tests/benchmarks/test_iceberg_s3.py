"""The measurement of Iceberg compactors over S3: what counts, and what is compared with what."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from benchmarks.iceberg import Measured, Sample
from benchmarks.iceberg_data import live_files, open_catalog
from benchmarks.iceberg_layout import Layout, fingerprint
from benchmarks.iceberg_s3 import LOCAL_ONLY, Compactor, IcebergS3Results, Run, print_tables, run_of
from benchmarks.iceberg_s3_data import BUCKET, SIDE, download, key_of, put_anew, store_at, table_in_s3
from benchmarks.iceberg_tools import TOOLS
from rich.console import Console

from lithify.testing.s3 import Fate, LoggedRequest, Operation, S3Process

LAYOUT = Layout(1, 1, 1.0, 1.0, 1.0)


def request(requester: str, operation: Operation, key: str, start_s: float, end_s: float) -> LoggedRequest:
    return LoggedRequest(operation, BUCKET, key, "", 3, 5, start_s, end_s, 200, Fate.ANSWERED, 1, requester)


def test_what_the_compactor_asked_for_meanwhile_counts() -> None:
    log = [
        request(SIDE, Operation.GET, "x/a.parquet", 9, 9.5),
        request(SIDE, Operation.GET, "x/a.parquet", 10, 11),
        request(SIDE, Operation.HEAD, "x/a.parquet", 10.5, 11.5),
        request("catalog", Operation.GET, "x/1.metadata.json", 11, 12),
        request(SIDE, Operation.GET, "x/1.avro", 12, 13),
        request(SIDE, Operation.PUT, "x/b.parquet", 13, 14),
        request(SIDE, Operation.PUT, "x/c.parquet", 15.5, 16),
    ]
    run = run_of({"began_s": 10.0, "wall_s": 5.0, "cpu_s": 2.0}, log)
    assert run.requests == {"data GET": 1, "HEAD": 1, "control GET": 1, "PUT": 1}
    assert (run.chain, run.most_in_flight, run.bytes_read, run.bytes_written) == (3, 2, 20, 12)


def compactor(name: str, disk_s: float, over_s3_s: float, *, surplus: int = 0) -> Compactor:
    tool = next(tool for tool in TOOLS if tool.name == name)
    on_disk = Measured(tool, [Sample(disk_s, 1, 1, LAYOUT, {})], {"deletes": surplus, "rewrite": 0})
    return Compactor(on_disk, {20: Run(over_s3_s, 1, {}, 0, 0, 1, 1, [])})


def test_over_s3_it_is_to_be_as_far_ahead_of_the_safe_peers_as_on_disk() -> None:
    ours, safe = compactor("Lithify", 2, 4), compactor("zamboni", 4, 10)
    wrong = compactor("iceberg-compaction", 1, 1, surplus=7)
    results = IcebergS3Results(5, [20, 100], [ours, safe, wrong])
    (target,) = results.targets()
    assert target.value == pytest.approx(0.4)
    assert target.limit == pytest.approx(0.5)
    assert target.is_met
    output = io.StringIO()
    print_tables(Console(file=output, width=120), results)
    assert "iceberg-compaction: rows are wrong after others have committed" in output.getvalue()


def test_every_compactor_is_measured_or_has_a_reason() -> None:
    assert {tool.name for tool in TOOLS} > set(LOCAL_ONLY)


def test_a_table_is_put_into_the_store_as_it_was_made(tmp_path: Path) -> None:
    with S3Process() as server:
        kept = table_in_s3(server, tmp_path / "cache", 3, 50)
        for _ in range(2):
            put_anew(server, kept, tmp_path / "work")
            live = live_files(tmp_path / "work")
            assert len(live) == 3
            found = download(store_at(server), [key_of(path) for path in live], tmp_path / "live")
            assert fingerprint(found).count == 150
            open_catalog(tmp_path / "work").load_table(("db", "events")).delete()
            assert live_files(tmp_path / "work") == []
        assert table_in_s3(server, tmp_path / "cache", 3, 50) == kept

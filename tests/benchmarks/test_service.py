"""The service part of `make bench`: what is counted, one real process, and the report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from benchmarks.bare import bare_speed_up
from benchmarks.data import database_of
from benchmarks.idle import ClaimCost, IdleCost, measure_claims, measure_idle
from benchmarks.service import CASE, Drain, Scaling, ServiceRun, measure_drain
from benchmarks.service_report import ServiceSamples
from rich.console import Console


@pytest.mark.whole
def test_both_sides_drain_the_same_database(tmp_path: Path) -> None:
    drain = measure_drain(database_of(CASE, tmp_path, 0.001), tmp_path)
    assert drain.input_bytes > 100_000
    assert drain.official_wall_s > 0 < drain.lithify_wall_s
    assert not (tmp_path / "db").exists()


@pytest.mark.whole
def test_the_merge_alone_is_measured_in_one_process_and_in_two(tmp_path: Path) -> None:
    assert bare_speed_up(database_of(CASE, tmp_path, 0.001), tmp_path) > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bare")] == []


def test_what_is_claimed_and_lost_is_counted() -> None:
    cost = measure_claims(workers=3, claims=1)
    assert cost.workers == 3
    assert cost.claims <= 1, "a worker may not have looked in time"
    assert cost.lost <= 2


def test_an_idle_database_is_only_read_but_for_the_lease() -> None:
    costs = measure_idle()
    for cost in costs:
        assert set(cost.requests_per_minute) == {"GET", "HEAD", "PUT"}
        assert cost.requests_per_minute["PUT"] <= 1
        # Each process confirms once a minute that the dataset is still the one that it opened.
        assert cost.requests_per_minute["HEAD"] <= 6 + 2.5 * cost.workers


def test_the_report_has_everything_and_its_verdicts() -> None:
    run = ServiceRun(
        (Scaling("independent", 4, 2.0, 1.0, 1.9), Scaling("one large compaction", 4, 2.0, 1.25, 1.9)),
        (Drain(4, 0.1, 0.2),),
    )
    samples = ServiceSamples([run], [IdleCost(1, {"GET": 20.0, "PUT": 2.0})], ClaimCost(100, 10, 5))
    assert [target.is_met for target in samples.targets()] == [True, False]
    console = Console(file=io.StringIO(), width=200)
    samples.print_tables(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "22 requests a minute (20 GET, 2 PUT)" in text
    assert "0.5 lost claims" in text
    assert samples.to_json()["claims"] == {"workers": 100, "claims": 10, "lost": 5, "lost_per_claim": 0.5}

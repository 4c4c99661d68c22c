"""What is told of a writer that writes as fast as it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.s3_run import LITHIFY, OFFICIAL
from benchmarks.writer import Sample, Side, draw, print_table
from benchmarks.writer_side import BATCH_ROWS, ROW_BYTES, covered_s, summary

BATCH = BATCH_ROWS * ROW_BYTES


def test_what_ends_in_time_counts_and_what_takes_long_is_a_stall() -> None:
    puts = [(0.0, 0.5), (0.5, 1.0), (0.25, 1.5), (1.5, 0.25), (2.75, 5.0)]
    done = summary(7.0, 3.0, puts)
    assert (done.began_s, done.seconds) == (7.0, 3.0)
    assert (done.puts, done.bytes) == (4, 4 * BATCH)
    assert done.bytes_by_second == (BATCH, 3 * BATCH, 0)
    assert done.longest_ms == 5000
    assert done.stalled_s == pytest.approx(1.5 + 0.25)


def test_stalls_at_the_same_time_count_once() -> None:
    assert covered_s([(5, 6), (0, 2), (1, 3), (1.5, 2.5)]) == 4
    assert covered_s([]) == 0


def test_a_side_is_drawn_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = (Sample(0.5, 1, 1_000_000, 0), Sample(1.5, 3, 3_000_000, 2))
    sides = [
        Side(OFFICIAL, summary(0.0, 2.0, [(0.0, 0.5)]), samples),
        Side(LITHIFY, summary(0.0, 2.0, [(0.0, 0.5), (0.5, 0.5)]), samples),
    ]
    draw(sides, tmp_path / "writer.svg")
    picture = (tmp_path / "writer.svg").read_text()
    assert "its own compactor" in picture
    assert "lithify run beside it" in picture
    print_table(sides)
    assert "bytes by Lithify over its own: 2.00" in capsys.readouterr().out

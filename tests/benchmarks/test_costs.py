"""What docs/operations.md says that requests cost, is what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.costs import DOLLARS_A_READ, DOLLARS_A_WRITE, Requests, lines, measure

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def found() -> dict[str, Requests]:
    return measure()


def test_the_table_of_requests_is_as_measured(found: dict[str, Requests]) -> None:
    for name, measured in found.items():
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| {name} |"))
        reads, writes, dollars = (cell.strip(" $") for cell in line.split("|")[2:5])
        assert measured.reads == pytest.approx(int(reads), abs=3), name
        assert measured.writes == pytest.approx(int(writes), abs=3), name
        said = Requests(int(reads), int(writes))
        assert f"{said.dollars * 1e6:.1f}" == dollars, name
    assert len(lines(found)) == len(found)


def database_dollars(once: Requests) -> float:
    """Of 450 MB into two SSTs of 290 MB together."""
    return Requests(once.reads + 450 / 4, once.writes + 2 * 2 + 290 / 8).dollars


def test_the_examples_are_worked_out(found: dict[str, Requests]) -> None:
    once, idle = found["table, a compaction"], found["table, an idle minute"]
    table = Requests(once.reads + 500 + 500, once.writes + 31).dollars
    month = 60 * 24 * 30 * idle.dollars
    (line,) = (line for line in TEXT.splitlines() if line.startswith("| S3 Standard"))
    assert [cell.strip() for cell in line.split("|")[2:4]] == [
        f"${DOLLARS_A_READ * 1e6:.2f} a million",
        f"${DOLLARS_A_WRITE * 1e6:.0f} a million",
    ]
    assert f"which is ${database_dollars(found['database, a compaction']):.4f} for 450 MB into 290" in TEXT
    said = [float(cell.strip(" $")) for cell in line.split("|")[4:6]]
    assert said == [pytest.approx(table, abs=0.0001), pytest.approx(month, rel=0.1)]

"""The measurements of tables with a long history, with hardly any data."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from benchmarks.history import (
    HistoryResults,
    Measured,
    at_scale_of,
    expired,
    judge_expiry,
    made,
    print_tables,
    rewritten_manifests,
    rows_by_ref,
)
from benchmarks.history_tools import JAVA, KEPT, READER_BEHIND, TOOLS
from benchmarks.iceberg_data import Place, copy_for_a_run
from rich.console import Console

ROOT = Path(__file__).parents[2]
IN_PYTHON = [tool for tool in TOOLS if tool.jobs is not None]
SNAPSHOTS, FILES, ORPHANS = 60, 240, 3


NOT_INSTALLED = "iceberg-zamboni is not installed"
"""Peers come with the extra `bench` only; it is measured and judged where it is there."""


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return made(tmp_path_factory.mktemp("history"), "history", SNAPSHOTS, FILES, ORPHANS)


def test_expiry_is_measured_and_judged(place: Place) -> None:
    ours, peer = expired(place, SNAPSHOTS, IN_PYTHON)
    assert (ours.failure, ours.wrong, peer.wrong) == (None, [], [])
    assert peer.failure in (None, NOT_INSTALLED)
    assert ours.wall_s > 0
    # What the reader stands at, all after it, and what is tagged.
    assert ours.found["snapshots"] == READER_BEHIND + 1 + 1
    assert ours.found["reader_can_go_on"]
    assert ours.found["unneeded_files"] == 0
    if peer.failure is None:
        assert peer.found["snapshots"] == KEPT + 1
        assert not peer.found["reader_can_go_on"]


def test_the_judge_misses_files_and_rows(place: Place) -> None:
    rows = rows_by_ref(copy_for_a_run(place))

    def judged() -> Measured:
        measured = Measured("tool")
        judge_expiry(measured, place.work, rows, SNAPSHOTS)
        return measured

    assert not judged().wrong
    assert judged().found["unneeded_files"] == ORPHANS
    newest, orphan = max(place.work.rglob("0*.parquet")), next(place.work.rglob("orphan*"))
    newest.unlink()
    assert judged().wrong == ["1 needed files are gone"]
    orphan.rename(newest)
    assert judged().wrong == ["rows of main"]


@pytest.mark.whole
def test_manifests_are_rewritten_and_one_day_is_planned(tmp_path: Path) -> None:
    before_s, (ours, peer) = rewritten_manifests(made(tmp_path, "manifests", 20, 1000, 16 << 10), IN_PYTHON)
    assert (ours.failure, ours.wrong, peer.wrong) == (None, [], [])
    assert peer.failure in (None, NOT_INSTALLED)
    assert before_s > 0
    assert 1 < ours.found["manifests"] < 20


@pytest.mark.whole
def test_a_large_table_is_planned_and_its_orphans_are_found(tmp_path: Path) -> None:
    large = made(tmp_path, "large", 5, 800, 8 << 20)
    assert at_scale_of(large, "orphans", 3000)["found"] == 2200
    planned = at_scale_of(large, "plan", 800)
    assert planned["proposals"] > 0
    assert planned["peak_memory_bytes"] > 10_000_000
    assert at_scale_of(large, "expire", 800)["wall_s"] > 0
    assert at_scale_of(large, "names", 800)["wall_s"] > 0


def measured(tool: str, wall_s: float, *, wrong: tuple[str, ...] = (), plan_s: float = 0.1) -> Measured:
    found = {"one_day_plan_s": plan_s}
    return Measured(tool, wall_s, wall_s, 1, found, list(wrong))


def test_targets_compare_with_the_peers_that_are_right() -> None:
    tools = [measured("Lithify", 2.0), measured("zamboni", 3.0, wrong=("rows",)), measured(JAVA, 8.0)]
    held = {"listed": 10.0, "files": 10.0, "peak_memory_bytes": 500e6}
    plan = {"files": 7.0, "plan_s": 50.0, "peak_memory_bytes": 1e9, "again_s": 0.5}
    scale = {"orphans": held, "names": held, "expire": held, "plan": plan}
    sizes = {"snapshots": 1, "manifests": 2, "large_files": 7}
    results = HistoryResults(sizes, tools, tools, 2.0, scale)
    assert [(round(target.value, 3), target.is_met) for target in results.targets()] == [
        *[(4.0, True)] * 2,
        (0.05, True),
        *[(500.0, True)] * 3,
        (50.0, False),
        (1000.0, True),
        (0.5, True),
    ]
    output = io.StringIO()
    print_tables(Console(file=output, width=130), results)
    assert "s to plan a table of 7 files 50.00 ≤ 45 MISSED" in output.getvalue()


def test_a_tool_that_is_not_there_has_a_reason() -> None:
    results = [Measured("Lithify", failure="away")]
    names = ("listed", "files", "plan_s", "peak_memory_bytes", "again_s")
    scale = dict.fromkeys(("orphans", "names", "expire", "plan"), dict.fromkeys(names, 1.0))
    found = HistoryResults({"snapshots": 1, "manifests": 1, "large_files": 1}, results, results, 1.0, scale)
    output = io.StringIO()
    print_tables(Console(file=output, width=130), found)
    assert "Lithify: not measured: away" in output.getvalue()
    assert len(found.targets()) == 6

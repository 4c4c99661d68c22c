"""`make bench` measures both sides of everything and writes its document; with hardly any data here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.cases import CASES
from benchmarks.report import KernelSamples, Target

from tests.judge.official import open_reader
from tests.judge.rows import read_database, visible_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench")
    arguments = ["--only", "200 B", "--scale", "0.002", "--repetitions", "1"]
    arguments += ["--cache", str(path / "data"), "--output", str(path / "bench.json")]
    subprocess.run([sys.executable, "-m", "benchmarks", *arguments], check=True, timeout=200, cwd=ROOT)
    return path


@pytest.mark.whole
def test_every_side_is_measured(folder: Path) -> None:
    results = json.loads((folder / "bench.json").read_text())
    (kernel,), (whole,) = results["kernel"], results["end_to_end"]
    assert kernel["rows_in"] == 4000
    assert 0 < kernel["rows_out"] < kernel["rows_in"]
    assert kernel["output_bytes"]["official"] == kernel["output_bytes"]["lithify"]
    for side in ("cp", "official_one_subcompaction", "lithify_one_core"):
        assert kernel[side]["median"]["cpu_s"] > 0
    assert whole["official_four_subcompactions"]["median"]["whole_wall_s"] > 0
    assert whole["lithify_local_2"]["median"]["wall_s"] > 0
    assert not kernel["is_large_enough"]
    assert {target["name"] for target in kernel["targets"]} == {
        "bytes per CPU second over official",
        "peak memory of a task in MB",
        "CPU over cp",
    }


@pytest.mark.whole
def test_measuring_leaves_the_database_as_it_was(folder: Path) -> None:
    (database,) = (folder / "data").glob("*/db")
    trees = read_database(database)
    assert [len(tree.l0) for tree in trees.values()] == [8]
    with open_reader(database) as reader:
        assert dict(reader.scan()) == visible_rows(trees)
    assert not list((folder / "data").glob("run*"))


@dataclass
class Run:
    """What a run took, as far as a ratio asks."""

    cpu_s: float
    system_cpu_s: float
    output_bytes: int = 1


@pytest.mark.parametrize(
    ("official", "ours", "ratio"),
    [((3.0, 1.0), (1.5, 0.5), 2.0), ((0.01, 0.0), (0.01, 0.01), None), ((0.01, 0.01), (0.01, 0.0), None)],
)
def test_a_run_too_short_to_tell_user_from_system_time_has_no_ratio(
    official: tuple[float, float], ours: tuple[float, float], ratio: float | None
) -> None:
    samples = KernelSamples(CASES[0], [], [Run(*official)], [Run(*ours)])  # type: ignore[list-item]  # stand-ins
    assert samples.user_cpu_ratio == ratio


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "is_met"),
    [(8.0, 8, True, True), (7.9, 8, True, False), (3.2, 3.2, False, True), (3.3, 3.2, False, False)],
)
def test_verdicts(value: float, limit: float, at_least: bool, is_met: bool) -> None:
    assert Target("t", value, limit, at_least).is_met is is_met

"""Some of the random tables with NaN; `make nans` plays two hundred. Outputs that hide NaN are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lithify.datasets.iceberg.compaction import commit as commit_module
from lithify.datasets.iceberg.compaction import writer as writer_module
from lithify.datasets.iceberg.format.floats import FloatMetrics, NanColumns
from lithify.datasets.iceberg.format.statistics import column_statistics
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.nan_random import play

SEEDS = range(1, 3)
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", SEEDS)
def test_all_engines_find_and_leave_the_rows_of_the_twin(lake: Lake, seed: int) -> None:
    counts = play(lake, seed)
    assert counts["compacted"]


def without_counts(patch: Patch) -> None:
    """Bounds, and nothing said of NaN: what outputs were before."""

    def uncounted(*arguments: Any) -> Any:
        return replace(column_statistics(*arguments), nan_counts={})

    patch.setattr(writer_module, "column_statistics", uncounted)
    patch.setattr(commit_module, "without_uncounted", lambda file, _: file)


def with_bounds_of_nan(patch: Patch) -> None:
    """NaN takes part in the comparisons by which bounds are found."""

    def bounds(metrics: FloatMetrics) -> tuple[float, float]:
        return metrics.low, float("nan")

    patch.setattr(FloatMetrics, "bounds", property(bounds))


def with_footers_of_numbers(patch: Patch) -> None:
    """Footers have the bounds of the numbers, as Arrow's have."""
    patch.setattr(NanColumns, "with_statistics", lambda columns: list(columns._leaves))


@pytest.mark.parametrize(
    ("damage", "seed", "found"),
    [
        (without_counts, 2, "_delete_by_pyiceberg"),
        (with_bounds_of_nan, 1, "has a bound that is NaN"),
        (with_footers_of_numbers, 4, "_filter_by_pyiceberg"),
    ],
)
def test_outputs_that_hide_nan_are_found(
    lake: Lake, monkeypatch: Patch, damage: Callable[[Patch], None], seed: int, found: str
) -> None:
    damage(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        play(lake, seed)

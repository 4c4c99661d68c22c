"""Settings for segments that are buckets of time reach the planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.cli.building import open_dataset
from lithify.config.model import Config
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.timeline import SegmentTimes
from lithify.errors import Refused
from lithify.planning.timeline.calendar import Calendar, Granularity


def opened(path: Path, **segments: str) -> SlateDataset:
    config = Config.model_validate({"compactor_options": {"segments": segments}})
    return open_dataset(path.as_uri(), config)


def test_without_a_pattern_segments_are_compacted_by_size(tmp_path: Path) -> None:
    assert opened(tmp_path).options.segment_times is None


def test_all_settings_are_passed_on(tmp_path: Path) -> None:
    dataset = opened(
        tmp_path,
        pattern="events/%Y%m%d%H",
        granularity="hour",
        time_zone="Europe/Berlin",
        skip_from_now="1h",
        skip_from_latest="2m",
    )
    assert dataset.options.segment_times == SegmentTimes(
        "events/%Y%m%d%H", Calendar(Granularity.HOUR, "Europe/Berlin"), 3_600_000_000, 120_000_000
    )


def test_a_pattern_that_tells_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="tells no time"):
        opened(tmp_path, pattern="events/")

"""Settings for segments that are buckets of time reach the planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.api.wiring import open_dataset
from lithify.base.errors import Refused
from lithify.datasets.registry import config_type
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.planning.timeline import SegmentTimes
from lithify.planning.timeline.calendar import Calendar, Granularity
from tests.cli.invoking import invoke, invoke_json
from tests.judge.official import Put, open_db


def opened(path: Path, **segments: str) -> SlateDataset:
    config = config_type().model_validate({"slatedb": {"segments": segments}})
    dataset = open_dataset(path.as_uri(), config)
    assert isinstance(dataset, SlateDataset)
    return dataset


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
    with pytest.raises(Refused, match="contains no time"):
        opened(tmp_path, pattern="events/")


DAYS = [f"slatedb.segments.{name}" for name in ("pattern=%Y-%m-%d", "skip_from_latest=0s")]


def write_days(path: Path) -> None:
    with open_db(path, segment_prefix_len=len("2024-05-01")) as database:
        for _ in range(2):
            for day in ("2024-04-29", "2024-04-30"):
                database.write_batch([Put(f"{day}-key".encode(), b"value")])
            database.flush()


def test_plan_draws_the_timeline_of_segments(tmp_path: Path) -> None:
    database, picture = tmp_path / "db", tmp_path / "days.png"
    write_days(database)
    sets = [word for setting in DAYS for word in ("--set", setting)]
    shown = invoke("plan", *sets, "--png", picture, database)
    assert shown.exit_code == 0, shown.stderr
    for expected in ("one chunk per day", "sequences", "2024-04-29", "2024-04-30", "compact", "at once"):
        assert expected in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    timeline = invoke_json("plan", *sets, database)["timeline"]
    assert [(c["name"], c["files"], c["action"]) for c in timeline["chunks"]] == [
        ("2024-04-29", 2, "compact"),
        ("2024-04-30", 2, "compact"),
    ]
    assert "rows" not in timeline["totals"]["awaiting"]


def test_without_a_pattern_there_is_no_timeline(tmp_path: Path) -> None:
    database = tmp_path / "db"
    write_days(database)
    assert "timeline" not in invoke_json("plan", database)
    refused = invoke("plan", "--png", tmp_path / "x.png", database)
    assert refused.exit_code == Refused.exit_code
    assert "segments.pattern" in refused.stderr

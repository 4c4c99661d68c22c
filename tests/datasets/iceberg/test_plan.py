"""From the properties of a table and its files to tasks: what is planned is what runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.datasets.iceberg import plan as module
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.plan import cuts_of, timeline_policy
from lithify.datasets.iceberg.policy import parse_policy
from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.model import ChunkBucket, Color, Interval, TimelineFile, TimelinePlan
from lithify.protocol import transitions
from lithify.protocol.model import Ledger
from lithify.service.admission import starting
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
)

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
EACH_DAY = {"lithify.max-task-bytes": "1", "lithify.small-task-bytes": "1"}
"""A task for each chunk."""


def timeline_of(dataset: IcebergDataset) -> TimelinePlan:
    return dataset.timeline(dataset.snapshot(), dataset.ledger() or Ledger())


def make_chain(catalog: Catalog, days: int) -> tuple[Table, list[Row]]:
    """Days that each share a file with the next, and have two of their own."""
    table = new_table(catalog, properties=EACH_DAY)
    rows: list[Row] = []
    for day in range(days):
        rows += append(table, make_rows(5, START + day * DAY, DAY / 4))
        rows += append(table, make_rows(6, START + day * DAY, DAY / 4))
        if day:
            rows += append(table, make_rows(8, START + (day - 0.5) * DAY, DAY))
    return table, rows


@pytest.mark.parametrize(
    ("key", "value", "name", "want"),
    [
        ("granularity", "week", "calendar", Calendar(Granularity.WEEK)),
        ("time-zone", "Asia/Tokyo", "calendar", Calendar(zone="Asia/Tokyo")),
        ("target-file-size-bytes", "77", "max_file_bytes", 77),
        ("min-saved-files", "3", "min_saved_files", 3),
        ("max-deleted-percent", "25", "max_deleted_ratio", 0.25),
        ("max-deleted-percent", "0", "max_deleted_ratio", None),
        ("skip-from-latest-seconds", "5", "skip_newest_us", 5_000_000),
        ("max-task-bytes", "2GiB", "max_task_bytes", 2 << 30),
        ("skip-from-latest-seconds", "1h 30m", "skip_newest_us", 5_400_000_000),
        ("skip-from-latest-seconds", "0", "skip_newest_us", None),
        ("skip-from-now-seconds", "6", "skip_clock_us", 6_000_000),
        ("max-task-bytes", "500", "max_task_bytes", 500),
        ("max-task-bytes", "500", "small_task_bytes", 500),
        ("small-task-bytes", "9", "small_task_bytes", 9),
        ("max-combine-gap-seconds", "7", "max_combine_gap_us", 7_000_000),
    ],
)
def test_properties_reach_the_planner(key: str, value: str, name: str, want: object) -> None:
    policy = timeline_policy(parse_policy({f"lithify.{key}": value}, "x"))
    assert getattr(policy, name) == want


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lithify.max-task-bytes", "2 parsecs"),
        ("lithify.max-tasks", "2k"),
        ("lithify.skip-from-now-seconds", "1500ms"),
        ("lithify.skip-from-now-seconds", "1MB"),
        ("write.target-file-size-bytes", "512MiB"),
    ],
)
def test_properties_that_are_no_numbers_are_refused(key: str, value: str) -> None:
    with pytest.raises(Refused, match=f"{key} is '{value}'"):
        parse_policy({key: value}, "x")


def span(start_us: int, end_us: int) -> TimelineFile:
    return TimelineFile("f", Interval(start_us, end_us), 1, 1)


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ([span(HOUR_US, 3 * DAY_US)], [DAY_US, 2 * DAY_US]),
        ([span(HOUR_US, 2 * HOUR_US)], []),
        ([span(0, HOUR_US), span(5 * DAY_US, 5 * DAY_US + 1)], [DAY_US, 5 * DAY_US]),
        ([TimelineFile("f", ChunkBucket.NULL, 1, 1)], []),
    ],
)
def test_outputs_are_cut_at_the_inner_edges_of_the_chunks(files: list[TimelineFile], want: list[int]) -> None:
    assert list(cuts_of(files, Calendar())) == want


def test_what_meets_too_many_chunks_is_cut_at_coarser_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CUTS", 30)
    days, weeks = cuts_of([span(0, 29 * DAY_US)], Calendar()), cuts_of([span(0, 60 * DAY_US)], Calendar())
    assert len(days) == 28
    assert {b - a for a, b in pairwise(weeks)} == {7 * DAY_US}


def test_files_with_a_wrong_timestamp_come_to_rest(catalog: Catalog) -> None:
    """They reach over millennia of hours, are cut, and then their rows are where they belong."""
    table = new_table(catalog, properties={"lithify.granularity": "hour"})
    ends = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
    ]
    rows: list[Row] = []
    for n, moment in enumerate(ends):
        rows += append(table, [(moment, 10_000_020 + n, "x"), *make_rows(4, START, timedelta(hours=1))])
    result = compact(dataset_of(table))
    assert result.committed
    assert not result.failures
    assert len(files_of(table)) == 4
    check(table, rows)
    assert not compact(dataset_of(table)).started


def test_what_is_planned_is_exactly_what_starts(catalog: Catalog) -> None:
    table, _ = make_chain(catalog, 4)
    dry = dataset_of(table)
    before = fresh(table).metadata_location
    red = {task.key for task in timeline_of(dry).tasks if task.color is Color.RED}
    planned = starting(dry, a_clock(), dry.propose)[2].plan
    assert fresh(table).metadata_location == before
    assert dry.ledger() is None
    tick = Steps(dataset_of(table)).schedule()
    starts = {p.spec.task: p.spec for p in planned.proposals}
    assert starts == {c.spec.task: c.spec for c in tick.ledger.active()}
    assert set(starts) == red


def test_the_most_urgent_is_claimed_first(catalog: Catalog) -> None:
    table = new_table(catalog, properties=EACH_DAY)
    for day, files in ((0, 3), (2, 5), (4, 2), (6, 6), (8, 4)):
        for _ in range(files):
            append(table, make_rows(3, START + day * DAY, DAY / 2))
    tick = Steps(dataset_of(table)).schedule()
    claimed = [c.spec.task.partition("@")[2] for c in transitions.claimable(tick.ledger)]
    assert claimed == ["2025-01-07", "2025-01-03", "2025-01-09", "2025-01-01", "2025-01-05"]


def test_tasks_that_share_files_wait_and_take_what_is_there_then(catalog: Catalog) -> None:
    """Red tasks first. Then the black ones, of which the shared files are gone, and the parts of those
    that belong to their days are there."""
    table, rows = make_chain(catalog, 4)
    steps = Steps(dataset_of(table))
    first = {path for c in steps.schedule().ledger.active() for path in c.spec.inputs}
    shared = {
        p for p in first if len([c for c in timeline_of(steps.dataset).chunks if p in _ids(c.chunk)]) > 1
    }
    assert len(shared) == 3
    steps.execute()
    tick = steps.commit()
    assert len(tick.committed) == 2
    assert not tick.refused
    check(table, rows)
    second = {path for c in tick.ledger.active() for path in c.spec.inputs}
    assert not second & first
    assert len(second) == 7, "four of their own, and a part of each shared one"
    steps.execute()
    tick = steps.commit()
    assert not tick.refused
    assert not tick.ledger.active()
    assert len(files_of(table)) == 4
    check(table, rows)


def _ids(chunk: object) -> set[str]:
    return {file.id for file in getattr(chunk, "files", ())}


def test_chunks_in_work_get_no_second_task(catalog: Catalog) -> None:
    table, _ = make_chain(catalog, 3)
    steps = Steps(dataset_of(table))
    active = {c.id: c.spec for c in steps.schedule().ledger.active()}
    ticks = [steps.schedule(), Steps(dataset_of(table), name="another").schedule()]
    for tick in ticks:
        assert not tick.plan.proposals
        assert not tick.refused
        assert {c.id: c.spec for c in tick.ledger.active()} == active


def test_a_task_that_shares_a_file_with_one_in_work_waits_for_it(catalog: Catalog) -> None:
    """New files make the next day one to compact, and one of its files is being rewritten."""
    at_once = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
    table = new_table(catalog, properties=EACH_DAY | at_once)
    rows = append(table, make_rows(8, START + DAY / 2, DAY))
    rows += append(table, make_rows(5, START, DAY / 4))
    steps = Steps(dataset_of(table))
    (active,) = steps.schedule().ledger.active()
    for _ in range(2):
        rows += append(table, make_rows(5, START + DAY, DAY / 4))
    tick = steps.schedule()
    assert not tick.plan.proposals
    assert not tick.refused
    (waiting,) = timeline_of(steps.dataset).tasks
    assert (waiting.color, waiting.after) == (Color.BLACK, (active.spec.task,))
    steps.execute()
    tick = steps.commit()
    assert tick.committed
    assert tick.plan.proposals
    compact(dataset_of(table))
    assert len(files_of(table)) == 2
    check(table, rows)

"""A compaction is committed as far as it still holds: a conflict drops what shares rows with it, no more."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse

from lithify.base import events
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.compaction.conflict_groups import components
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, collect
from lithify.datasets.iceberg.model import NewFile
from lithify.service.coordinator import Coordinator
from lithify.testing.faulty import Crash
from tests.datasets.iceberg.other_cleaners import own_folder
from tests.datasets.iceberg.partial import (
    PROPERTIES,
    Patch,
    finds,
    half_moved,
    moved_twice,
    of_a_dead_attempt,
    off_by_one,
    play,
    uncounted,
)
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    age_files,
    append,
    check,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_table,
    rewrite_without,
)
from tests.datasets.iceberg.test_commit import Commit, MeddlingCatalog

DAYS = 11


class Week:
    """Many small days of three files each, all in one compaction, rewritten and waiting for the commit."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.table = new_table(catalog, properties=PROPERTIES)
        self.rows: list[Row] = []
        for day in range(DAYS):
            for part in range(3):
                self.append(day, part)
        self.catalog = MeddlingCatalog("test", **catalog.properties)
        self.events: list[Event] = []
        self.steps = Steps(dataset_of(self.table, catalog=self.catalog))
        self.steps.coordinator = Coordinator(
            self.steps.dataset, self.steps.clock, RandomIds(), observer=self.events.append
        )
        self.steps.coordinator.start(Term(self.steps.dataset.take_epoch()))
        self.work()

    def append(self, day: int, part: int = 0) -> None:
        start = START + day * DAY + timedelta(hours=part)
        self.rows += append(self.table, make_rows(4, start, DAY / 4))

    def work(self) -> None:
        """Plan and rewrite, in one compaction."""
        self.steps.schedule()
        ledger = self.steps.dataset.ledger()
        assert ledger is not None
        assert len(ledger.active()) == 1
        self.steps.execute()

    def rewrite(self, day: int) -> None:
        """Somebody deletes a row of that day by rewriting its file."""
        gone = next(row for row in self.rows if row[0] is not None and row[0] - START >= day * DAY)
        rewrite_without(self.table, gone[1])
        self.rows.remove(gone)

    def days(self) -> list[int]:
        """The number of files of each day."""
        counts = [0] * (DAYS + 1)
        for file in files_of(self.table):
            at_us = int.from_bytes(file.lower_bounds[1], "little", signed=True)
            counts[(at_us // 1_000_000 - int(START.timestamp())) // 86_400] += 1
        return counts[:DAYS]

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def test_one_foreign_rewrite_drops_its_day_only(catalog: SqlCatalog) -> None:
    week = Week(catalog)
    week.rewrite(4)
    tick = week.steps.commit()
    assert len(tick.committed) == 1
    assert not tick.refused
    ((compaction, reason),) = tick.dropped
    assert compaction == tick.committed[0]
    assert reason.startswith("3 of its 33 inputs are not replaced: file:")
    assert reason.endswith("was removed or rewritten by another process")
    assert week.days() == [1, 1, 1, 1, 3, *[1] * (DAYS - 5)]
    check(week.table, week.rows)
    assert len(week.seen(events.Committed)) == len(week.seen(events.Dropped)) == 1
    snapshot = fresh(week.table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary[COMPACTIONS_PROPERTY] == compaction

    # The same tick has planned the rest again, and nothing else.
    week.steps.execute()
    tick = week.steps.commit()
    assert len(tick.committed) == 1
    assert not tick.dropped
    assert week.days() == [1] * DAYS
    check(week.table, week.rows)
    assert not tick.ledger.active()
    assert not compact(dataset_of(week.table)).started


def test_a_writer_that_keeps_rewriting_one_day_does_not_hold_up_the_others(catalog: SqlCatalog) -> None:
    week = Week(catalog)
    committed = 0
    for turn in range(4):
        week.rewrite(2)
        tick = week.steps.commit()
        committed += len(tick.committed)
        assert [files for day, files in enumerate(week.days()) if day != 2] == [1] * (DAYS - 1)
        check(week.table, week.rows)
        week.append(5 + turn)
        week.append(5 + turn)
        week.steps.schedule()
        week.steps.execute()
    assert committed == 4
    compact(dataset_of(week.table))
    check(week.table, week.rows)


def test_a_file_of_two_days_ties_them(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=PROPERTIES)
    rows: list[Row] = []
    for day in range(4):
        rows += append(table, make_rows(4, START + day * DAY, DAY / 4))
        rows += append(table, make_rows(4, START + day * DAY, DAY / 4))
    rows += append(table, make_rows(4, START + 0.8 * DAY, DAY / 2))  # of two days
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    gone = rows.pop(0)
    rewrite_without(table, gone[1])
    tick = steps.commit()
    ((_, reason),) = tick.dropped
    assert reason.startswith("5 of its 9 inputs are not replaced")
    check(table, rows)
    assert len(files_of(table)) == 5 + 2


def test_a_position_delete_for_files_of_several_days_stays_for_what_is_dropped(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=PROPERTIES)
    rows: list[Row] = []
    for day in range(3):
        for _ in range(2):
            rows += append(table, make_rows(4, START + day * DAY, DAY / 4))
    paths = [file.file_path for file in files_of(table)]
    delete_positions(table, {path: [1] for path in paths})
    kept = {row["id"] for row in fresh(table).scan().to_arrow().to_pylist()}
    rows = [row for row in rows if row[1] in kept]
    assert len(rows) == 18
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    gone = rows.pop(0)
    rewrite_without(table, gone[1])
    assert len(steps.commit().dropped) == 1
    check(table, rows)
    compact(dataset_of(table))
    check(table, rows)
    assert len(files_of(table)) == 3


@pytest.mark.parametrize("is_history_known", [True, False])
def test_a_crash_after_a_commit_in_part_is_recognised(catalog: SqlCatalog, is_history_known: bool) -> None:
    """The table has some of the outputs, the ledger knows nothing of it."""
    week = Week(catalog)
    week.rewrite(4)

    def die(commit: Commit) -> CommitTableResponse:
        commit()
        raise Crash("the process is dead")

    week.catalog.meddle = die
    with pytest.raises(Crash):
        week.steps.commit()
    expected = [1, 1, 1, 1, 3, *[1] * (DAYS - 5)]
    assert week.days() == expected
    if not is_history_known:
        published = fresh(week.table).current_snapshot()
        assert published is not None
        week.append(DAYS)
        fresh(week.table).maintenance.expire_snapshots().by_id(published.snapshot_id).commit()
    successor = Steps(dataset_of(week.table), name="successor")
    assert len(successor.commit().committed) == 1
    assert week.days() == expected
    check(week.table, week.rows)
    successor.execute()
    assert len(successor.commit().committed) == 1
    assert week.days() == [1] * DAYS
    check(week.table, week.rows)


def test_what_was_dropped_is_garbage(catalog: SqlCatalog) -> None:
    week = Week(catalog)
    week.rewrite(4)
    assert week.steps.commit().dropped
    compact(dataset_of(week.table))
    folder = Path(fresh(week.table).location().removeprefix("file://"))
    two_hours_ago_s = time.time() - 7200
    for path in folder.rglob("*"):
        os.utime(path, (two_hours_ago_s, two_hours_ago_s))
    age_files(own_folder(week.table), 3)
    report = collect(dataset_of(week.table), a_clock(), GarbageOptions(dry_run=False))
    assert report.count(GarbageKind.DATA) == 1
    there = {path.as_uri() for path in folder.rglob("*lithify-*") if path.suffix in (".parquet", ".avro")}
    assert there <= named_paths(fresh(week.table))
    check(week.table, week.rows)


def test_outputs_that_do_not_say_where_their_rows_came_from_are_all_or_nothing(catalog: Catalog) -> None:
    """Of a worker of before they did."""
    (one,) = components(["a", "b", "c"], [NewFile("x", 1, 1, None, sources=(0,)), NewFile("y", 1, 1, None)])
    assert (one.inputs, len(one.outputs)) == (("a", "b", "c"), 2)
    (one,) = components(["a", "b"], [NewFile("x", 1, 1, None, sources=(0, 7))])
    assert one.inputs == ("a", "b")


links = st.lists(st.sets(st.integers(0, 7), min_size=1).map(lambda found: tuple(sorted(found))), max_size=8)


@given(links)
@settings(max_examples=200, deadline=None)
def test_components_share_nothing_and_are_as_small_as_can_be(sources: list[tuple[int, ...]]) -> None:
    inputs = [str(n) for n in range(8)]
    outputs = [NewFile(f"out {n}", 1, 1, None, sources=found) for n, found in enumerate(sources)]
    found = components(inputs, outputs)
    assert sorted(path for part in found for path in part.inputs) == inputs
    assert sorted(o.path for part in found for o in part.outputs) == sorted(o.path for o in outputs)
    for part in found:
        reached = {part.inputs[0]}
        for _ in range(8):
            for output in outputs:
                of_output = {inputs[source] for source in output.sources or ()}
                if reached & of_output:
                    reached |= of_output
        assert reached == set(part.inputs)
        for output in part.outputs:
            assert {inputs[source] for source in output.sources or ()} <= set(part.inputs)


@pytest.mark.parametrize("seed", range(6))
def test_rows_stay_the_same_whatever_is_dropped(tmp_path: Path, seed: int) -> None:
    """`python -m tests.datasets.iceberg.partial` plays hundreds."""
    play(tmp_path, seed)


@pytest.mark.parametrize(
    ("twin", "seed"),
    [(off_by_one, 2), (of_a_dead_attempt, 2), (moved_twice, 2), (half_moved, 6), (uncounted, 6)],
)
def test_a_defect_in_moving_deletes_is_found(twin: Patch, seed: int) -> None:
    assert finds(twin, seed)

"""What is remembered of chunks, the queue, and the properties that steer them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.coordination.leadership import Term
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.planning.timeline.model import DeletesStatus, TimelinePlan
from lithify.planning.timeline.state import ChunkState, ChunkStates
from lithify.protocol.model import Ledger
from lithify.protocol.proposal import Plan
from lithify.service.admission import Admission
from lithify.testing import ManualClock
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    check,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)


def timeline_of(dataset: IcebergDataset) -> TimelinePlan:
    return dataset.timeline(dataset.snapshot(), dataset.ledger() or Ledger())


def make_days(
    catalog: Catalog, days: int, properties: dict[str, str] | None = None
) -> tuple[Table, list[Row]]:
    """Two files for each day."""
    own = {"lithify.small-task-bytes": "1", **(properties or {})}
    table = new_table(catalog, properties=own)
    rows: list[Row] = []
    for day in range(days):
        for half in range(2):
            rows += append(table, make_rows(5 + half, START + (day + half / 2) * DAY, DAY / 4))
    return table, rows


def test_what_did_not_change_is_not_analysed_again(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 4, {"lithify.min-saved-files": "1"})
    assert timeline_of(dataset_of(table)).analysed == 4
    compact(dataset_of(table))
    assert timeline_of(dataset_of(table)).analysed == 0
    append(table, make_rows(3, START + DAY, DAY / 2))
    assert timeline_of(dataset_of(table)).analysed == 1
    compact(dataset_of(table))
    assert timeline_of(dataset_of(table)).analysed == 0


@pytest.mark.parametrize("change", ["delete", "replacement", "policy"])
def test_changes_are_analysed(catalog: Catalog, change: str) -> None:
    table, _ = make_days(catalog, 2)
    compact(dataset_of(table))
    if change == "delete":
        delete_positions(table, {files_of(table)[0].file_path: [0]})
    elif change == "replacement":
        fresh(table).delete(f"id = {fresh(table).scan().to_arrow()['id'][0]}")
    else:
        with fresh(table).transaction() as transaction:
            transaction.set_properties({"lithify.granularity": "week"})
    assert timeline_of(dataset_of(table)).analysed == 1


def test_a_commit_leaves_the_chunks_remembered_as_stable(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 3)
    steps = Steps(dataset_of(table))
    steps.schedule()
    assert {r.state for r in dataset_of(table).snapshot().states.records.values()} == {ChunkState.UNSTABLE}
    steps.execute()
    steps.commit()
    state = dataset_of(table).snapshot()
    assert [record.state for record in state.states.records.values()] == [ChunkState.STABLE] * 3
    assert timeline_of(dataset_of(table)).analysed == 0


def test_a_lost_memory_costs_one_analysis(catalog: Catalog) -> None:
    table, rows = make_days(catalog, 3)
    compact(dataset_of(table))
    dataset = dataset_of(table)
    for version_id in dataset.numbered_files[1].ids():
        dataset.store.delete(dataset.numbered_files[1].key(version_id))
    assert not compact(dataset_of(table)).started
    assert timeline_of(dataset_of(table)).analysed == 3
    check(table, rows)


def test_no_more_tasks_than_allowed_are_active(catalog: Catalog) -> None:
    table, rows = make_days(catalog, 5, {"lithify.max-tasks": "2"})
    steps = Steps(dataset_of(table))
    assert len(steps.schedule().ledger.active()) == 2
    steps.execute()
    assert len(steps.commit().ledger.active()) == 2
    compact(dataset_of(table))
    assert len(files_of(table)) == 5
    check(table, rows)


def test_no_more_bytes_than_allowed_are_active_but_one_task_always_is(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 3, {"lithify.max-active-bytes": "1"})
    assert len(Steps(dataset_of(table)).schedule().ledger.active()) == 1


def test_what_the_queue_does_not_hold_is_deferred_and_comes_back(catalog: Catalog) -> None:
    table, rows = make_days(catalog, 6, {"lithify.max-queued-tasks": "2", "lithify.max-tasks": "1"})
    dataset = dataset_of(table)
    steps = Steps(dataset)
    steps.schedule()
    states = [record.state for record in dataset.snapshot().states.records.values()]
    assert states.count(ChunkState.DEFERRED) == 4
    assert states.count(ChunkState.UNSTABLE) == 2
    totals = timeline_of(dataset).totals
    assert totals[DeletesStatus.DEFERRED].chunks == 4
    assert sum(amount.rows for amount in totals.values()) == len(rows)
    steps.coordinator.start(Term(dataset.take_epoch()))
    compact(dataset_of(table))
    assert len(files_of(table)) == 6
    check(table, rows)


def test_a_plan_changes_nothing_until_a_coordinator_acts_on_it(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 6, {"lithify.max-queued-tasks": "2", "lithify.max-tasks": "1"})
    dataset = dataset_of(table)

    def look() -> Plan:
        return dataset.propose(dataset.snapshot(), Ledger())

    first = look()
    before = list(dataset.store.list(dataset.root))
    assert [look(), look()] == [first, first]
    assert list(dataset.store.list(dataset.root)) == before
    assert dataset.snapshot().states == ChunkStates()
    choice = Admission(dataset, a_clock()).look(first, Ledger(), dataset.snapshot())
    dataset.save_planner_state(choice.plan, choice.shed, is_queue_empty=choice.is_queue_empty)
    states = [record.state for record in dataset.snapshot().states.records.values()]
    assert states.count(ChunkState.DEFERRED) == 4
    assert timeline_of(dataset).totals[DeletesStatus.DEFERRED].chunks == 4, "the queue is not empty any more"


def test_conflicts_are_left_alone_for_a_while(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 1)
    clock = a_clock()
    steps = Steps(dataset_of(table, clock=clock), clock=clock)
    steps.schedule()
    steps.execute()
    delete_positions(table, {files_of(table)[0].file_path: [0]})
    tick = steps.commit()
    assert tick.refused
    assert not tick.plan.proposals
    clock.advance_s(61)
    assert steps.schedule().plan.proposals


@pytest.mark.parametrize(
    ("properties", "held"),
    [
        ({"lithify.skip-from-latest-seconds": "0"}, 0),
        ({"lithify.skip-from-latest-seconds": "1"}, 1),
        ({"lithify.skip-from-latest-seconds": str(86_400)}, 2),
        ({"lithify.skip-from-now-seconds": str(3 * 86_400)}, 2),
        ({"lithify.skip-from-now-seconds": str(10 * 86_400)}, 4),
    ],
)
def test_new_chunks_are_held(catalog: Catalog, properties: dict[str, str], held: int) -> None:
    table, _ = make_days(catalog, 4, properties)
    clock = ManualClock(round((START + 5 * DAY + timedelta(hours=1)).timestamp() * 1000))
    dataset = dataset_of(table, clock=clock)
    result = compact(dataset, clock=clock)
    timeline = timeline_of(dataset)
    assert timeline.totals[DeletesStatus.SKIPPED].chunks == held
    assert len(files_of(table)) == 4 + held
    if held:
        assert any("left alone" in note for note in dataset.propose(dataset.snapshot(), Ledger()).notes)
    assert bool(result.committed) == (held < 4)


@pytest.mark.parametrize(("zone", "files"), [("UTC", 2), ("America/New_York", 3)])
def test_chunks_follow_a_time_zone(catalog: Catalog, zone: str, files: int) -> None:
    table = new_table(catalog, properties={"lithify.time-zone": zone})
    rows: list[Row] = []
    for half in range(4):
        rows += append(table, make_rows(6, START + half * DAY / 2, DAY / 2))
    compact(dataset_of(table))
    assert len(files_of(table)) == files
    check(table, rows)

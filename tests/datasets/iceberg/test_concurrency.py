"""What others do to a table while it is being compacted: no row is lost, doubled or brought back.

Each case happens between the rewrite and the commit, and again between the plan and the rewrite; then
compaction goes on to its end. PyIceberg and DuckDB say what rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import StringType

from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    by_id,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
    rewrite_without,
)


@dataclass
class World:
    """A table with one day of small files, and the rows it must have."""

    table: Table
    files: list[list[Row]]

    @property
    def rows(self) -> list[Row]:
        return [row for file in self.files for row in file]

    def path_of(self, file: int) -> str:
        """The data file of the rows that were appended as number `file`."""
        first = self.files[file][0]
        assert first[0] is not None
        times = {f.lower_bounds[1]: f.file_path for f in files_of(self.table)}
        micros = round((first[0] - START) / timedelta(microseconds=1)) + round(START.timestamp() * 1_000_000)
        return times[micros.to_bytes(8, "little", signed=True)]

    def append(self, start: timedelta = timedelta()) -> None:
        self.files.append(append(self.table, make_rows(20, START + start, DAY / 2)))

    def delete_by_position(self, file: int, *positions: int, with_bounds: bool = True) -> None:
        path = self.path_of(file)
        delete_positions(self.table, {path: positions}, with_bounds=with_bounds)
        self.files[file] = [row for n, row in enumerate(self.files[file]) if n not in positions]

    def delete_by_value(self, *indexes: int) -> None:
        gone = {self.rows[n][1] for n in indexes}
        delete_equal(self.table, sorted(gone))
        self.files = [[row for row in file if row[1] not in gone] for file in self.files]

    def delete_by_rewrite(self, file: int) -> None:
        rewrite_without(self.table, self.files[file].pop()[1])


def make_world(catalog: Catalog, properties: Mapping[str, str] | None = None) -> World:
    world = World(new_table(catalog, properties=properties), [])
    for n in range(5):
        world.append(n * timedelta(hours=2))
    return world


Event = Callable[[World], None]


def appended(world: World) -> None:
    world.append()


def appended_late(world: World) -> None:
    world.append(-2 * DAY)


def rewritten(world: World) -> None:
    world.delete_by_rewrite(2)


def deleted_by_position(world: World) -> None:
    world.delete_by_position(1, 3, 4)


def deleted_then_appended(world: World) -> None:
    world.delete_by_position(1, 3, 4)
    world.append()


def appended_then_deleted(world: World) -> None:
    world.append()
    world.delete_by_position(1, 3, 4)


def deleted_twice(world: World) -> None:
    world.delete_by_position(1, 3)
    world.delete_by_position(3, 0)


def deleted_without_bounds(world: World) -> None:
    world.delete_by_position(1, 7, with_bounds=False)


def deleted_in_new_file(world: World) -> None:
    world.append(3 * DAY)
    world.delete_by_position(5, 0, 1)


def deleted_by_value(world: World) -> None:
    world.delete_by_value(0, 25, 99)


def deleted_by_value_then_appended(world: World) -> None:
    world.delete_by_value(0, 25, 99)
    world.append()


def column_added(world: World) -> None:
    with fresh(world.table).update_schema() as update:
        update.add_column("note", StringType())


def column_replaced(world: World) -> None:
    """A column that the outputs have is no column of the table any more."""
    with fresh(world.table).update_schema() as update:
        update.add_column("note", StringType())
        update.delete_column("device")


def column_renamed(world: World) -> None:
    with fresh(world.table).update_schema() as update:
        update.rename_column("device", "machine")


def spec_changed(world: World) -> None:
    with fresh(world.table).update_spec() as update:
        update.add_field("event_time", DayTransform(), "day")


def dropped_all(world: World) -> None:
    fresh(world.table).delete("id >= 0")
    world.files = []


def rolled_back(world: World) -> None:
    """The newest append is taken back, and another one follows."""
    table = fresh(world.table)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    table.manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()
    world.files.pop()
    world.append(DAY)


def compacted(world: World) -> None:
    """By another program, which Lithify knows nothing of: PyIceberg rewrites the files."""
    table = fresh(world.table)
    rows = table.scan().to_arrow()
    table.overwrite(rows.cast(table.schema().as_arrow()))


@dataclass(frozen=True)
class Case:
    event: Event
    commits: bool
    """Whether the compaction goes through although it happened."""
    by_pyiceberg: bool = True
    columns: int = 3
    extra_columns: int = 0


CASES = [
    Case(appended, commits=True),
    Case(appended_late, commits=True),
    Case(rewritten, commits=False),
    Case(deleted_by_position, commits=False),
    Case(deleted_then_appended, commits=False),
    Case(appended_then_deleted, commits=False),
    Case(deleted_twice, commits=False),
    Case(deleted_without_bounds, commits=False),
    Case(deleted_in_new_file, commits=True),
    Case(deleted_by_value, commits=True, by_pyiceberg=False),
    Case(deleted_by_value_then_appended, commits=True, by_pyiceberg=False),
    Case(column_added, commits=True, extra_columns=1),
    Case(column_replaced, commits=True, columns=2, extra_columns=1),
    Case(column_renamed, commits=True),
    Case(spec_changed, commits=True),
    Case(dropped_all, commits=False),
    Case(rolled_back, commits=False),
    Case(compacted, commits=False),
]
NAMED = pytest.mark.parametrize("case", CASES, ids=[case.event.__name__ for case in CASES])


def check_world(world: World, case: Case) -> None:
    rows = by_id((*row[: case.columns], *[None] * case.extra_columns) for row in world.rows)
    assert read_by_java(world.table) == rows
    assert read_by_duckdb(world.table) == rows
    if case.by_pyiceberg:
        assert read(world.table) == rows


@NAMED
def test_between_rewrite_and_commit(catalog: Catalog, case: Case) -> None:
    world = make_world(catalog)
    steps = Steps(dataset_of(world.table))
    tick = steps.until_committed(lambda: case.event(world))
    assert bool(tick.committed) == case.commits
    assert len(tick.refused) == (0 if case.commits else 1)
    check_world(world, case)

    compact(dataset_of(world.table))
    check_world(world, case)


@NAMED
def test_between_plan_and_rewrite(catalog: Catalog, case: Case) -> None:
    world = make_world(catalog)
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    case.event(world)
    steps.execute()
    assert bool(steps.commit().committed) == case.commits
    check_world(world, case)


@NAMED
def test_a_commit_in_its_own_process_knows_no_more(catalog: Catalog, case: Case) -> None:
    """The coordinator that commits has loaded the table only after everything happened."""
    world = make_world(catalog)
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    case.event(world)
    another = Steps(dataset_of(world.table), name="another")
    assert bool(another.commit().committed) == case.commits
    check_world(world, case)


def test_conflicts_drop_the_compaction_and_not_the_batch(catalog: Catalog) -> None:
    world = make_world(catalog, {"lithify.small-task-bytes": "1"})
    for day in (5, 6, 7):
        for _ in range(2):
            world.append(day * DAY)
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    world.delete_by_position(5, 1)
    tick = steps.commit()
    assert len(tick.committed) == 3
    assert len(tick.refused) == 1
    assert len([s for s in fresh(world.table).snapshots() if "lithify.compactions" in _summary(s)]) == 1
    check(world.table, world.rows)
    compact(dataset_of(world.table))
    assert not delete_files_of(world.table)
    check(world.table, world.rows)


def test_deletes_before_the_plan_are_applied_and_their_files_removed(catalog: Catalog) -> None:
    world = make_world(catalog)
    world.delete_by_position(0, 0, 5)
    world.delete_by_position(3, 2, with_bounds=False)
    check(world.table, world.rows)
    assert compact(dataset_of(world.table)).committed
    check(world.table, world.rows)
    assert not delete_files_of(world.table)


def test_an_expired_planned_snapshot_is_refused(catalog: Catalog) -> None:
    world = make_world(catalog)
    steps = Steps(dataset_of(world.table))

    def expire() -> None:
        planned = fresh(world.table).current_snapshot()
        assert planned is not None
        world.append()
        fresh(world.table).maintenance.expire_snapshots().by_id(planned.snapshot_id).commit()

    tick = steps.until_committed(expire)
    assert not tick.committed
    assert "expired" in tick.refused[0][1]
    check(world.table, world.rows)


def test_two_coordinators_publish_the_same_files_once(catalog: Catalog) -> None:
    world = make_world(catalog)
    first = Steps(dataset_of(world.table), name="first")
    first.schedule()
    first.execute()
    ledger = first.dataset.ledger()
    assert ledger is not None
    (stalled,) = ledger.active()
    second = Steps(dataset_of(world.table), name="second")
    assert second.commit().committed
    # The first wakes up past its check of the epoch.
    verdicts = first.dataset._committer.commit([stalled], first.dataset._branch, lambda table: None)
    assert verdicts[stalled.id].refusal is None
    check(world.table, world.rows)


def test_an_equality_delete_keeps_its_hold_on_rewritten_rows(catalog: Catalog) -> None:
    """Rows that come after the delete stay, also those with the same key."""
    world = make_world(catalog, {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"})
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    deleted_id = world.rows[0][1]
    world.delete_by_value(0, 30)
    returned = (START, deleted_id, "again")
    world.files.append(append(world.table, [returned]))
    assert steps.commit().committed
    check(world.table, world.rows, by_pyiceberg=False)
    # The next compaction applies it, and nothing is left for it to apply to.
    assert compact(dataset_of(world.table)).committed
    assert not delete_files_of(world.table)
    check(world.table, world.rows)


def _summary(snapshot: object) -> Sequence[str]:
    summary = getattr(snapshot, "summary", None)
    return list(summary.additional_properties) if summary is not None else []

"""Deletes that come between plan and commit: the work is committed, and no deleted row comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile

from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    append,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
)
from tests.datasets.iceberg.test_concurrency import World, make_world

READ_MERGED = {"write.delete.mode": "merge-on-read"}


def rewritten(catalog: Catalog, properties: dict[str, str] | None = None) -> tuple[World, Steps]:
    """A table whose writers merge on read, with a compaction that is rewritten and not committed."""
    world = make_world(catalog, {**READ_MERGED, **(properties or {})})
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    return world, steps


def maps_of(world: World) -> list[Path]:
    return sorted(Path(world.table.location().removeprefix("file://")).rglob("*.rowmap"))


def test_a_later_delete_is_moved_to_the_output(catalog: Catalog) -> None:
    world, steps = rewritten(catalog)
    world.delete_by_position(1, 3, 4)
    world.delete_by_position(3, 0)
    tick = steps.commit()
    assert len(tick.committed) == 1
    assert not tick.dropped
    (output,) = files_of(world.table)
    (delete,) = delete_files_of(world.table)
    assert (delete.record_count, delete.file_path.rpartition("-deletes-")[2]) == (3, "0.parquet")
    assert referenced(delete) == output.file_path
    check(world.table, world.rows)
    snapshot = fresh(world.table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["added-position-deletes"] == "3"
    compact(dataset_of(world.table))
    check(world.table, world.rows)


def referenced(file: DataFile) -> str:
    low, high = file.lower_bounds[2147483546], file.upper_bounds[2147483546]
    assert low == high
    return low.decode()


def deleted_twice(world: World) -> None:
    """Two files delete the same row."""
    world.delete_by_position(1, 3)
    delete_positions(world.table, {world.path_of(1): [3, 3]})


def deleted_whole(world: World) -> None:
    world.delete_by_position(2, *range(20))


def deleted_without_bounds(world: World) -> None:
    world.delete_by_position(1, 7, with_bounds=False)


def deleted_by_key_and_position(world: World) -> None:
    gone = world.files[1][5][1]
    delete_positions(world.table, {world.path_of(1): [5, 6]})
    delete_equal(world.table, [gone])
    world.files[1] = [row for n, row in enumerate(world.files[1]) if n not in (5, 6)]


def deleted_elsewhere(world: World) -> None:
    """The delete file may have rows of the inputs, and has none."""
    world.append(3 * DAY)
    world.delete_by_position(5, 0, 1, with_bounds=False)


def added_again(world: World) -> None:
    row = world.files[1][5]
    world.delete_by_position(1, 5)
    world.files.append(append(world.table, [row]))


EVENTS = [
    deleted_twice,
    deleted_whole,
    deleted_without_bounds,
    deleted_by_key_and_position,
    deleted_elsewhere,
]


@pytest.mark.parametrize("event", [*EVENTS, added_again], ids=lambda event: event.__name__)
def test_nothing_is_lost_to_deletes(catalog: Catalog, event: Callable[[World], None]) -> None:
    world, steps = rewritten(catalog)
    event(world)
    tick = steps.commit()
    assert len(tick.committed) == 1
    assert not tick.dropped
    by_pyiceberg = event is not deleted_by_key_and_position  # which does not read equality deletes
    check(world.table, world.rows, by_pyiceberg=by_pyiceberg)
    compact(dataset_of(world.table))
    check(world.table, world.rows, by_pyiceberg=by_pyiceberg)

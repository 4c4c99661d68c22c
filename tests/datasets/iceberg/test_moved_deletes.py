"""Deletes that come between plan and commit: the work is committed, and no deleted row comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import CommitTableResponse, Table

from lithify.datasets.iceberg.compaction import row_map
from lithify.datasets.iceberg.deletes.deleted_rows import ListedPositions
from lithify.datasets.iceberg.documents import _of_output, _output
from lithify.datasets.iceberg.format.summary import MOVED_ROWS, MovedTotals
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.model import NewFile
from lithify.datasets.iceberg.view import show_status
from lithify.service.status import status
from lithify.testing.faulty import Crash
from tests.datasets.iceberg.hadoop_lake import hadoop_lake
from tests.datasets.iceberg.other_cleaners import own_folder
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    Row,
    age_files,
    append,
    by_id,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    read,
    read_by_duckdb,
)
from tests.datasets.iceberg.test_commit import Commit, MeddlingCatalog
from tests.datasets.iceberg.test_concurrency import World, make_world
from tests.datasets.iceberg.test_version3 import create, insert
from tests.datasets.iceberg.test_version3_compaction import AT_ONCE
from tests.judge.iceberg_java import IcebergJava

READ_MERGED = {"write.delete.mode": "merge-on-read"}


def rewritten(catalog: Catalog, properties: dict[str, str] | None = None) -> tuple[World, Steps]:
    """A table whose writers merge on read, with a compaction that is rewritten and not committed."""
    world = make_world(catalog, {**READ_MERGED, **(properties or {})})
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    return world, steps


def agree(table: Table, rows: Iterable[Row], *, by_pyiceberg: bool = True) -> None:
    """PyIceberg and DuckDB read these rows."""
    assert read_by_duckdb(table) == by_id(rows)
    assert not by_pyiceberg or read(table) == by_id(rows)


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
    agree(world.table, world.rows)
    snapshot = fresh(world.table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["added-position-deletes"] == snapshot.summary[MOVED_ROWS] == "3"
    totals = MovedTotals(1, 3, output.file_size_in_bytes)
    shown = show_status(status(dataset_of(world.table), a_clock(), 30_000))
    assert shown.document["moved_deletes"] == asdict(totals)
    assert "3 rows were deleted while compactions ran; 1 commit(s) moved" in str(shown.blocks)
    compact(dataset_of(world.table))
    agree(world.table, world.rows)


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
    agree(world.table, world.rows, by_pyiceberg=by_pyiceberg)
    compact(dataset_of(world.table))
    agree(world.table, world.rows, by_pyiceberg=by_pyiceberg)


def test_only_tables_with_such_writers_get_row_maps(catalog: Catalog) -> None:
    """Elsewhere the first conflict costs a repetition, and shows that they are needed."""
    world = make_world(catalog)
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    assert not maps_of(world)
    world.delete_by_position(1, 3)
    tick = steps.commit()
    assert "deleted meanwhile" in tick.refused[0][1]
    agree(world.table, world.rows)
    steps = Steps(dataset_of(world.table), name="next")
    steps.schedule()
    steps.execute()
    assert maps_of(world)
    world.delete_by_position(2, 4)
    assert steps.commit().committed
    agree(world.table, world.rows)


def lost(path: Path, other: bytes) -> None:
    path.unlink()


def damaged(path: Path, other: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path, other: bytes) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def of_another_output(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def huge(path: Path, other: bytes) -> None:
    path.write_bytes(bytes(8 * 1024 * 1024))


@pytest.mark.parametrize(
    "harm", [lost, damaged, cut, of_another_output, huge], ids=lambda harm: harm.__name__
)
def test_a_map_that_cannot_be_used_costs_a_repetition(
    catalog: Catalog, harm: Callable[[Path, bytes], None]
) -> None:
    world = make_world(catalog, READ_MERGED)
    for _ in range(3):
        world.append(4 * DAY)
    steps = Steps(dataset_of(world.table))
    steps.schedule()
    steps.execute()
    world.delete_by_position(1, 3, 4)
    maps = {path: path.read_bytes() for path in maps_of(world)}
    assert len(maps) == 2
    for path, other in zip(maps, reversed(maps.values()), strict=True):
        harm(path, other)
    tick = steps.commit()
    assert len([reason for _, reason in (*tick.refused, *tick.dropped) if ".rowmap" in reason]) == 1
    assert len(files_of(world.table)) == 5 + 1, "the other day does not need its map"
    agree(world.table, world.rows)
    assert compact(dataset_of(world.table)).committed
    agree(world.table, world.rows)


def test_maps_and_deletes_of_dead_attempts_are_garbage(catalog: SqlCatalog) -> None:
    """A commit dies after it has written deletes, a second one loses to another delete, a third succeeds."""
    world, _ = rewritten(catalog)
    world.delete_by_position(1, 3)
    own = MeddlingCatalog("test", **catalog.properties)

    def die(commit: Commit) -> CommitTableResponse:
        raise Crash("the process is dead")

    def lose(commit: Commit) -> CommitTableResponse:
        world.delete_by_position(2, 4, 5)
        return commit()

    own.meddle = die
    with pytest.raises(Crash):
        Steps(dataset_of(world.table, catalog=own), name="dead").commit()
    own.meddle = lose
    assert Steps(dataset_of(world.table, catalog=own), name="next").commit().committed
    agree(world.table, world.rows)
    (delete,) = delete_files_of(world.table)
    assert delete.record_count == 3
    folder = Path(world.table.location().removeprefix("file://"))
    assert not maps_of(world)
    assert len(list(folder.rglob("*-deletes-0.parquet"))) == 2  # of the dead process and of the last attempt
    age_files(folder)
    age_files(own_folder(world.table), 7300)
    report = collect(dataset_of(world.table), a_clock(), GarbageOptions(dry_run=False, max_percent=100))
    assert [path.as_uri() for path in folder.rglob("*-deletes-0.parquet")] == [delete.file_path]
    assert not report.notes
    agree(world.table, world.rows)


def test_an_answer_that_is_lost_moves_nothing_twice(catalog: SqlCatalog) -> None:
    world, _ = rewritten(catalog)
    world.delete_by_position(1, 3)

    def lost_answer(commit: Commit) -> CommitTableResponse:
        commit()
        raise ServiceUnavailableError("no answer")

    own = MeddlingCatalog("test", **catalog.properties)
    own.meddle = lost_answer
    assert Steps(dataset_of(world.table, catalog=own), name="next").commit().committed
    (delete,) = delete_files_of(world.table)
    assert delete.record_count == 1
    agree(world.table, world.rows)
    assert not Steps(dataset_of(world.table), name="another").commit().committed
    agree(world.table, world.rows)


def test_maps_of_compactions_that_are_given_up_are_garbage(catalog: Catalog) -> None:
    world, steps = rewritten(catalog)
    world.delete_by_rewrite(2)
    assert steps.commit().refused
    assert maps_of(world)
    folder = Path(world.table.location().removeprefix("file://"))
    age_files(folder)
    age_files(own_folder(world.table), 7300)
    collect(dataset_of(world.table), a_clock(), GarbageOptions(dry_run=False, max_percent=100))
    assert not maps_of(world)
    agree(world.table, world.rows)


def test_a_delete_that_cannot_be_read_keeps_its_component(catalog: Catalog) -> None:
    world, steps = rewritten(catalog)
    world.delete_by_position(1, 3)
    before = delete_files_of(world.table)[0].file_path
    Path(before.removeprefix("file://")).write_bytes(b"no Parquet")
    tick = steps.commit()
    assert not tick.committed
    assert before in tick.refused[0][1]


@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(100, 4000))
@settings(max_examples=20, deadline=None)
def test_a_map_returns_every_row(seed: int, in_order: bool, block_rows: int) -> None:
    """Of many sources or one, in any order, over several blocks; positions up to the largest."""
    rng = np.random.default_rng(seed)
    sources = rng.choice(5000, rng.integers(1, 70), replace=False)
    rows = {
        int(source): rng.choice(2 ** int(rng.integers(8, 40)), rng.integers(1, 200), replace=False)
        for source in sources
    }
    origins = np.array([(source << 40) | int(row) for source, found in rows.items() for row in found])
    origins = np.sort(origins) if in_order else rng.permutation(origins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_map, "BLOCK_ROWS", block_rows)
        writer = row_map.RowMapWriter()
        for part in np.array_split(origins, 3):
            writer.add(pa.chunked_array([part]))
    content = writer.finish()
    deleted = {source: rng.choice(found, len(found) // 2) for source, found in rows.items() if source % 2}
    deleted[1_000_000] = np.array([7])  # not a source
    gone = {(source << 40) | int(row) for source, found in deleted.items() for row in found}
    listed = {source: ListedPositions(np.unique(found)) for source, found in deleted.items()}
    assert row_map.rows_of(content, listed).tolist() == [
        n for n, origin in enumerate(origins.tolist()) if origin in gone
    ]


def test_old_documents_have_no_maps(catalog: Catalog) -> None:
    """An output that an earlier version recorded is committed, or conflicts, as before."""
    file = NewFile("a.parquet", 1, 1, None, sources=(0,))
    assert "row_map" not in json.dumps(_of_output(file))
    for found in (None, 0, 7, 2**32 - 1):
        assert _output(_of_output(replace(file, row_map=found))) == replace(file, row_map=found)
    for wrong in ("7", -1, 2**32, 1.5, True, [7]):
        with pytest.raises((ValueError, TypeError)):
            _output({**_of_output(file), "row_map": wrong})


@pytest.mark.parametrize("version", [2, 3])
def test_java_deletes_while_a_compaction_runs(tmp_path: Path, java: IcebergJava, version: int) -> None:
    """Merge on read, with updates, and vectors and delete files that replace others; all readers agree."""
    lake = hadoop_lake(tmp_path / "lake", java)
    create(lake, version=version)
    for first in range(0, 60, 20):
        insert(lake, first, count=20)
    lake.sql(f"ALTER TABLE events SET TBLPROPERTIES ({AT_ONCE})")
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 44)")
    for turn, gone in enumerate(((3, 21), (5, 23))):
        steps = Steps(dataset_of(lake.table), name=f"worker {turn}")
        steps.schedule()
        steps.execute()
        lake.sql(f"DELETE FROM events WHERE id IN {gone}")
        if version == 2:
            lake.call("rewrite_position_delete_files", options="map('rewrite-all', 'true')")
        lake.sql(f"DELETE FROM events WHERE id = {gone[0] + 3}")
        lake.sql(f"UPDATE events SET device = 'a' WHERE id = {gone[1] + 3}")
        select = lake.identities if version == 3 else partial(lake.sql, "SELECT * FROM events ORDER BY id")
        rows = select()
        tick = steps.commit()
        assert tick.committed
        assert not tick.refused
        assert not tick.dropped
        assert select() == rows
        assert len(read(lake.table)) == len(rows)
        assert len(read_by_duckdb(lake.table)) == len(rows)
        deletes = delete_files_of(lake.table)
        assert {file.file_format for file in deletes} == {
            FileFormat.PUFFIN if version == 3 else FileFormat.PARQUET
        }
        assert all("/lithify-" in file.file_path for file in deletes)
        lake.sql("DELETE FROM events WHERE id = 50" if turn else "DELETE FROM events WHERE id = 51")
        insert(lake, 100 * (turn + 1))
    rows = select()
    compact(dataset_of(lake.table))
    assert select() == rows

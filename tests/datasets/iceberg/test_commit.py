"""The moment of the commit: what comes between looking and publishing, answers that mislead, and compactions
that must not be published. PyIceberg and DuckDB say what rows there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lithify.base.errors import Fenced, StoreUnavailable
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.format.publish import (
    MAX_COMMIT_MS,
    MIN_MANIFEST_AGE_MS,
    PreparedSnapshot,
    publish,
)
from lithify.datasets.iceberg.format.replace import Added, Replacement, write
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, Lane, NewFile, SpecPart
from lithify.protocol.model import Compaction, CompactionState
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    age_files,
    append,
    append_with_deletes,
    as_arrow,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_table,
    read,
)

Commit = Callable[[], CommitTableResponse]


class MeddlingCatalog(SqlCatalog):
    """Lets somebody do something around the next commit, once."""

    meddle: Callable[[Commit], CommitTableResponse] | None = None

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        meddle, self.meddle = self.meddle, None

        def commit() -> CommitTableResponse:
            return super(MeddlingCatalog, self).commit_table(table, requirements, updates)

        return commit() if meddle is None else meddle(commit)


BY_DEVICE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))


class World:
    """A day of three small files, rewritten and waiting for the commit."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.table = new_table(catalog)
        self.rows: list[Row] = []
        for n in range(3):
            self.rows += append(self.table, make_rows(20, START + n * DAY / 4, DAY / 2))
        self.catalog = MeddlingCatalog("test", **catalog.properties)
        self.steps = Steps(dataset_of(self.table, catalog=self.catalog))
        self.steps.schedule()
        self.steps.execute()

    def published(self) -> int:
        """Snapshots that publish compactions."""
        summaries = [snapshot.summary for snapshot in fresh(self.table).snapshots()]
        return len([s for s in summaries if s and COMPACTIONS_PROPERTY in s.additional_properties])

    def orphans(self) -> set[str]:
        """Manifests of Lithify's that no snapshot names."""
        table = fresh(self.table)
        folder = table.location_provider().metadata_path
        store = self.steps.dataset.store
        root = f"{self.steps.dataset.root}/metadata"
        there = {f"{folder}/{meta.key.rpartition('/')[2]}" for meta in store.list(root)}
        return {path for path in there if "/lithify-" in path} - named_paths(table)


def appended(world: World) -> None:
    world.rows += append(world.table, make_rows(20, START + DAY / 2, DAY / 4))


def deleted_by_position(world: World) -> None:
    before = {row[1] for row in world.rows}
    path = files_of(world.table)[0].file_path
    delete_positions(world.table, {path: [1, 2]})
    kept = {row["id"] for row in fresh(world.table).scan().to_arrow().to_pylist()}
    assert len(before - kept) == 2
    world.rows = [row for row in world.rows if row[1] in kept]


def deleted_by_value(world: World) -> None:
    gone = world.rows.pop(5)
    delete_equal(world.table, [gone[1]])


def deleted_by_rewriting(world: World) -> None:
    gone = world.rows.pop(30)
    fresh(world.table).delete(f"id = {gone[1]}")


@pytest.mark.parametrize(
    ("event", "commits"),
    [(appended, True), (deleted_by_position, False), (deleted_by_value, True), (deleted_by_rewriting, False)],
)
def test_somebody_is_faster_by_a_moment(
    catalog: SqlCatalog, event: Callable[[World], None], commits: bool
) -> None:
    """After the head was looked at, and before it is replaced: it is looked at again."""
    world = World(catalog)

    def meddle(commit: Commit) -> CommitTableResponse:
        event(world)
        return commit()

    world.catalog.meddle = meddle
    tick = world.steps.commit()
    assert bool(tick.committed) == commits
    assert len(tick.refused) == (0 if commits else 1)
    assert world.published() == int(commits)
    assert not world.orphans(), "what was written for the first try is deleted"
    check(world.table, world.rows, by_pyiceberg=event is not deleted_by_value)


def lost_answer(commit: Commit) -> CommitTableResponse:
    commit()
    raise CommitStateUnknownException("the connection broke")


def conflict_with_itself(commit: Commit) -> CommitTableResponse:
    """A client below repeated the request, and the repetition was refused."""
    commit()
    raise CommitFailedException("the head has changed")


@pytest.mark.parametrize("meddle", [lost_answer, conflict_with_itself])
def test_a_commit_that_landed_is_recognised(
    catalog: SqlCatalog, meddle: Callable[[Commit], CommitTableResponse]
) -> None:
    world = World(catalog)
    world.catalog.meddle = meddle
    assert world.steps.commit().committed
    assert world.published() == 1
    check(world.table, world.rows)


@pytest.mark.parametrize("lands_later", [False, True])
def test_a_commit_that_had_no_effect_so_far_is_tried_again_and_published_once(
    catalog: SqlCatalog, lands_later: bool
) -> None:
    """The first one may still be under way when the table is looked at, and land before the second."""
    world = World(catalog)
    under_way: list[Commit] = []

    def second(commit: Commit) -> CommitTableResponse:
        if lands_later:
            under_way[0]()
        return commit()

    def first(commit: Commit) -> CommitTableResponse:
        under_way.append(commit)
        world.catalog.meddle = second
        raise CommitStateUnknownException("no answer")

    world.catalog.meddle = first
    assert world.steps.commit().committed
    assert world.published() == 1
    check(world.table, world.rows)


@pytest.mark.parametrize("lands_later", [False, True])
def test_a_commit_whose_outcome_is_unknown_is_published_once(catalog: SqlCatalog, lands_later: bool) -> None:
    """No try has an answer, and one of them may land after all; then the next run finds it."""
    world = World(catalog)
    under_way: list[Commit] = []

    def meddle(commit: Commit) -> CommitTableResponse:
        under_way.append(commit)
        world.catalog.meddle = meddle
        raise CommitStateUnknownException("no answer")

    world.catalog.meddle = meddle
    with pytest.raises(StoreUnavailable, match="no answer"):
        world.steps.commit()
    world.catalog.meddle = None
    if lands_later:
        under_way[7]()
    check(world.table, world.rows)
    assert world.steps.commit().committed
    assert world.published() == 1
    check(world.table, world.rows)
    assert not compact(dataset_of(world.table)).started


def outputs_rewritten(world: World) -> None:
    """The history names the compaction, but none of its files is left."""
    fresh(world.table).overwrite(fresh(world.table).scan().to_arrow())


def history_expired(world: World) -> None:
    """The files are there, but no snapshot names the compaction."""
    published = fresh(world.table).current_snapshot()
    assert published is not None
    world.rows += append(world.table, make_rows(5))
    fresh(world.table).maintenance.expire_snapshots().by_id(published.snapshot_id).commit()
    assert world.published() == 0


@pytest.mark.parametrize("later", [outputs_rewritten, history_expired])
def test_a_lost_answer_is_recognised_much_later(catalog: SqlCatalog, later: Callable[[World], None]) -> None:
    world = World(catalog)
    ledger = world.steps.dataset.ledger()
    assert ledger is not None
    (stalled,) = ledger.active()
    assert Steps(dataset_of(world.table)).commit().committed
    later(world)
    verdicts = world.steps.dataset._committer.commit(
        [stalled], world.steps.dataset._branch, lambda table: None
    )
    assert verdicts[stalled.id].refusal is None
    check(world.table, world.rows)


# What must not be published


def test_a_coordinator_that_was_replaced_publishes_nothing(catalog: SqlCatalog) -> None:
    world = World(catalog)
    ledger = world.steps.dataset.ledger()
    assert ledger is not None
    dataset_of(world.table).take_epoch()
    with pytest.raises(Fenced):
        world.steps.dataset.commit(ledger.active(), world.steps.coordinator.epoch)
    assert world.published() == 0
    assert not world.orphans()
    check(world.table, world.rows)


def test_compactions_of_the_same_files_are_not_published_together(catalog: SqlCatalog) -> None:
    world = World(catalog)
    ledger = world.steps.dataset.ledger()
    assert ledger is not None
    (one,) = ledger.active()
    two = replace(one, id=RandomIds().ulid(1))
    verdicts = world.steps.dataset.commit([one, two], world.steps.coordinator.epoch)
    assert verdicts[one.id] is None
    assert verdicts[two.id] == "another compaction of the same commit replaces the same files"
    check(world.table, world.rows)


BY_DEVICE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))


def impossible(name: str, spec: ChunkSpec, others: list[str]) -> ChunkSpec:
    """A spec with one thing wrong."""
    (part,) = spec.parts

    def changed(**fields: Any) -> ChunkSpec:
        return replace(spec, parts=(replace(part, **fields),))

    changes: dict[str, ChunkSpec] = {
        "a file the snapshot does not have": changed(inputs=("nowhere.parquet",)),
        "another partition spec": changed(lane=Lane(1, part.lane.partition)),
        "files of two partitions": changed(inputs=(part.inputs[0], others[0])),
        "an output of two partitions": replace(spec, parts=(part, replace(part, inputs=(others[0],)))),
        "a snapshot that is gone": replace(spec, snapshot_id=1),
        "no outputs": spec,
    }
    return changes[name]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("a file the snapshot does not have", "not a file of the planned snapshot"),
        ("another partition spec", "of partition spec 0, not 1"),
        ("files of two partitions", "of several partitions"),
        ("an output of two partitions", "of several partitions"),
        ("a snapshot that is gone", "has expired"),
        ("no outputs", "0 rows, but the inputs had 20"),
    ],
)
def test_an_impossible_compaction_is_refused_and_nothing_is_written(
    catalog: Catalog, wrong: str, why: str
) -> None:
    table = new_table(catalog, spec=BY_DEVICE)
    rows = append(table, make_rows(20, device="a")) + append(table, make_rows(20, device="b"))
    dataset = dataset_of(table)
    epoch = dataset.take_epoch()
    state = dataset.snapshot()
    assert state.snapshot_id is not None
    first, *others = [file.id for file in state.files]
    lane = Lane.of_group(next(file.group for file in state.files if file.id == first))
    right = ChunkSpec("t", state.snapshot_id, (), (SpecPart(lane, (), (first,)),), 0)
    spec = impossible(wrong, right, others)
    outputs = (NewFile("of-both.parquet", 10, 40, None),) if "two partitions" in wrong else ()
    compaction: IcebergCompaction = Compaction(RandomIds().ulid(1), spec, CompactionState.COMPACTED, outputs)
    before = fresh(table).metadata_location
    refusal = dataset.commit([compaction], epoch)[compaction.id]
    assert refusal is not None
    assert why in refusal
    assert fresh(table).metadata_location == before
    check(table, rows)


def test_an_equality_delete_that_the_rewrite_did_not_apply_is_a_conflict(catalog: Catalog) -> None:
    """As old as the planned snapshot, it would not apply to outputs of that sequence number. So it is with a
    file that another program makes of several."""
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    delete_equal(table, [rows[0][1]])
    steps = Steps(dataset_of(table))

    def replaced() -> None:
        """By a delete file of the same number that deletes one more row."""
        delete_equal(table, [rows[0][1], rows[5][1]])
        listing = read_listing(fresh(table), "main", ManifestCache())
        assert listing is not None
        deletes = listing.entries(DataFileContent.EQUALITY_DELETES)
        old, new = sorted(deletes, key=lambda entry: entry.sequence_number or 0)
        replacement = Replacement({e.data_file.file_path: e for e in (old, new)})
        replacement.added.append(Added(new.data_file, old.sequence_number or 0))
        prepared = write(fresh(table), "main", listing, replacement, {}, 0)
        assert publish(fresh(table), prepared, lambda: fresh(table))

    tick = steps.until_committed(replaced)
    assert not tick.committed
    assert "equality deletes as old as the planned snapshot" in tick.refused[0][1]
    check(table, [row for row in rows if row not in (rows[0], rows[5])], by_pyiceberg=False)


def test_a_partition_column_that_is_dropped_meanwhile_is_a_conflict(catalog: Catalog) -> None:
    table = new_table(catalog, spec=BY_DEVICE)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    with fresh(table).update_spec() as update:
        update.remove_field("device")
    with fresh(table).update_schema() as schema:
        schema.delete_column("device")
    tick = steps.commit()
    assert not tick.committed
    assert "a column by which the inputs are partitioned was dropped" in tick.refused[0][1]
    found = fresh(table).scan().to_arrow().to_pylist()
    assert sorted((row["event_time"], row["id"]) for row in found) == sorted((t, i) for t, i, _ in rows)


def test_a_file_that_was_removed_and_put_back_is_another_one(catalog: Catalog) -> None:
    """With a higher sequence number, so that deletes in between do not apply to it."""
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    file = files_of(table)[0]
    with fresh(table).transaction() as transaction, transaction.update_snapshot().overwrite() as removing:
        removing.delete_data_file(file)
    delete_equal(table, [row[1] for row in rows if row in _rows_of(table, file.file_path)])
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        adding.append_data_file(file)
    check(table, rows, by_pyiceberg=False)
    tick = steps.commit()
    assert not tick.committed
    assert "was removed or rewritten by another process" in tick.refused[0][1]
    check(table, rows, by_pyiceberg=False)


def test_a_delete_that_was_taken_back_is_a_conflict(catalog: Catalog) -> None:
    """The outputs are without rows that the table has again."""
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    before = fresh(table).current_snapshot()
    assert before is not None
    delete_positions(table, {files_of(table)[0].file_path: [1, 2]})
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    fresh(table).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    tick = steps.commit()
    assert not tick.committed
    assert "that were deleted have come back" in tick.refused[0][1]
    check(table, rows)
    assert compact(dataset_of(table)).committed
    check(table, rows)


def _rows_of(table: Table, path: str) -> list[tuple[object, ...]]:
    with fresh(table).io.new_input(path).open() as stream:
        return [tuple(row.values()) for row in pq.read_table(stream).to_pylist()]


# Delete files that must stay, and those that may go


def test_a_delete_committed_together_with_its_file_stays(catalog: Catalog) -> None:
    """File and delete have one sequence number, and the delete applies."""
    table = new_table(catalog)
    rows = append_with_deletes(table, make_rows(20, START), [2, 3])
    for n in range(2):
        rows += append(table, make_rows(20, START + (3 + n / 4) * DAY, DAY / 4))
    check(table, rows)
    assert compact(dataset_of(table)).committed
    check(table, rows)
    assert len(delete_files_of(table)) == 1


def test_rows_that_were_deleted_twice_are_counted_once(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    path = files_of(table)[0].file_path
    for positions in ([1, 2], [2, 3]):
        delete_positions(table, {path: positions})
    kept = {row["id"] for row in fresh(table).scan().to_arrow().to_pylist()}
    rows = [row for row in rows if row[1] in kept]
    assert len(rows) == 37
    assert compact(dataset_of(table)).committed
    assert not delete_files_of(table)
    check(table, rows)


@pytest.mark.parametrize("device", ["a", "b"])
def test_an_equality_delete_of_a_partition_keeps_its_hold_on_rewritten_rows(
    catalog: Catalog, device: str
) -> None:
    """In the partition that is compacted, or in another one that is left alone."""
    table = new_table(catalog, spec=BY_DEVICE)
    rows = append(table, make_rows(20, device="a")) + append(table, make_rows(20, device="a"))
    rows += append(table, make_rows(20, device="b"))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    gone = next(row for row in rows if row[2] == device)
    delete_equal(table, [gone[1]], partition=Record(device))
    rows.remove(gone)
    rows += append(table, make_rows(5, device=device))
    assert steps.commit().committed
    check(table, rows, by_pyiceberg=False)
    assert len(delete_files_of(table)) == 1


def test_an_equality_delete_older_than_every_file_is_removed(catalog: Catalog) -> None:
    """Others replaced what it applied to, and left it where it was."""
    table = new_table(catalog)
    deleted = append(table, make_rows(5))
    delete_equal(table, [deleted[0][1]])
    fresh(table).overwrite(as_arrow(deleted))  # the row is back, on purpose
    rows = deleted + append(table, make_rows(5))
    assert len(delete_files_of(table)) == 1
    assert compact(dataset_of(table)).committed
    assert not delete_files_of(table)
    check(table, rows)


def test_a_delete_file_for_a_data_file_of_another_partition_stays(catalog: SqlCatalog) -> None:
    """Readers apply what is for one data file by its path, whatever partition it was put into."""
    table = new_table(catalog, spec=BY_DEVICE)
    append(table, make_rows(5, device="b"))
    (other,) = files_of(table)
    for _ in range(3):
        append(table, make_rows(5, device="a"))
    of_a = next(file for file in files_of(table) if file.partition[0] == "a")
    delete_positions(fresh(table), {other.file_path: [1, 2]}, files={other.file_path: of_a})
    rows = read(table)
    assert len(rows) == 18
    assert compact(dataset_of(table)).committed
    assert read(table) == rows
    assert len(files_of(table)) == 2


def test_no_value_and_the_text_null_are_two_partitions(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DEVICE)
    devices = ("null", None, "nULL", "", "nul", "%6Eull")
    for _ in range(3):
        for device in devices:
            append(table, make_rows(5, device=device))  # type: ignore[arg-type]
    rows = sorted(read(table), key=str)
    for _ in devices:
        compact(dataset_of(table))
    assert sorted(read(table), key=str) == rows
    assert {file.partition[0] for file in files_of(table)} == set(devices)
    assert len(files_of(table)) == len(devices)


@pytest.mark.parametrize("stands_still", [True, False], ids=["the machine stood still", "it took long"])
def test_what_garbage_collection_could_have_taken_is_not_committed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    """Manifests that no snapshot names are deleted when they are old enough."""
    clock = a_clock()
    table = new_table(catalog)
    rows = [row for _ in range(3) for row in append(table, make_rows(5))]
    steps = Steps(dataset_of(table, clock=clock))
    steps.schedule()
    steps.execute()
    writes = list[PreparedSnapshot]()

    def write_slowly(*arguments: Any) -> PreparedSnapshot:
        writes.append(write(*arguments))
        if len(writes) == 1:
            (clock.jump_s if stands_still else clock.advance_s)(MAX_COMMIT_MS / 1000 + 1)
            age_files(Path(table.location().removeprefix("file://")))
            collect(steps.dataset, clock, GarbageOptions(MIN_MANIFEST_AGE_MS, dry_run=False))
        return writes[-1]

    monkeypatch.setattr("lithify.datasets.iceberg.compaction.commit.write", write_slowly)
    steps.commit()
    assert len(writes) == 2
    assert read(table) == sorted(rows, key=lambda row: row[1])
    assert len(files_of(table)) == 1
    assert not any(Path(path.removeprefix("file://")).exists() for path in writes[0].written)

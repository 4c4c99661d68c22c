"""Equality deletes become deletes by position: every reader finds the same rows before and after, whatever
other writers and compactions do meanwhile."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, StructType

from lithify.datasets.iceberg.compaction.state import cost_of
from lithify.datasets.iceberg.deletes import key_matching
from lithify.datasets.iceberg.deletes.key_columns import KeyColumns
from lithify.datasets.iceberg.deletes.key_matching import KeyMatcher
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.format.publish import publish
from lithify.datasets.iceberg.format.summary import MOVED_ROWS
from lithify.datasets.iceberg.rewriting import head_rewrite
from lithify.datasets.iceberg.rewriting.equality_plan import ColumnBounds, may_share_keys
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_equality import EqualityRewriter, RewritingEquality
from tests.datasets.iceberg.running import Steps, a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    Row,
    _commit_deletes,
    append,
    check,
    data_file,
    delete_equal,
    delete_files_of,
    delete_keys,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
    set_version,
)
from tests.datasets.iceberg.test_equality_deletes import AT_ONCE, BY_DEVICE, VALUES, without
from tests.datasets.iceberg.test_rewrite_vectors import OwnCatalog


def run(table: Table, **options: bool) -> RewritingEquality:
    return EqualityRewriter(dataset_of(fresh(table)), a_clock()).run(**options)


def equality_files(table: Table) -> list[str]:
    return [f.file_path for f in delete_files_of(table) if f.content == DataFileContent.EQUALITY_DELETES]


def rewritten(table: Table, rows: list[Row]) -> RewritingEquality:
    """Rewrite; all readers find these rows, no equality delete is left, and a second run does nothing."""
    foreseen, found = run(table, dry_run=True), run(table)
    assert found.outcome is RewriteOutcome.REWRITTEN
    assert not found.notes
    assert len(foreseen.removed) == len(found.removed) == found.delete_files
    assert not equality_files(table)
    check(table, rows)
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    return found


def test_upserts(catalog: SqlCatalog) -> None:
    """A delete applies to older files only; rows deleted by position before are not deleted again."""
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    key = rows[2][1]
    keys = pa.table({"id": pa.array([key, -1], pa.int64())})
    newest: list[Row] = []
    for n in range(3):
        newest = [(START + n * timedelta(hours=1), key, f"version {n}")]
        delete_keys(table, keys, together=[data_file(table, newest)])
    whole = next(file for file in files_of(table) if file.record_count == 10)
    delete_positions(fresh(table), {whole.file_path: [4]}, files={whole.file_path: whole})
    gone = next(row for row in rows if row[1] not in {found[1] for found in read_by_duckdb(table)})
    left = [*without(rows, key, gone[1]), *newest]
    check(table, left, by_pyiceberg=False)
    assert rewritten(table, left).deleted_rows == 3
    delete_keys(table, keys)
    assert rewritten(table, without(left, key)).deleted_rows == 1
    summary = fresh(table).current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert summary.summary.operation.value == "replace"
    assert summary.summary["removed-equality-delete-files"] == "1"


def test_nulls_several_columns_and_several_kinds_of_keys(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, [(START, 1, "a"), (START, 2, "a"), (START, 3, "b"), (None, 4, "c"), (START, 7, "a")])
    times, ids = pa.array([START] * 3, pa.timestamp("us", tz="UTC")), pa.array([5, 6, 2], pa.int64())
    fresh(table).append(pa.table({"event_time": times, "id": ids, "device": [None, "d", "b"]}))
    delete_keys(table, pa.table({"id": [2, 3, 5], "device": ["a", "a", None]}))
    delete_keys(table, pa.table({"event_time": pa.array([None], pa.timestamp("us", tz="UTC"))}))
    delete_keys(table, pa.table({"device": ["d"], "id": [6]}))
    delete_keys(table, pa.table({"device": pa.array([None, "x"], pa.string())}))
    rewritten(table, [(START, 1, "a"), (START, 2, "b"), (START, 3, "b"), (START, 7, "a")])


def test_deletes_of_a_partition_and_deletes_of_all(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DEVICE)
    files = [append(table, make_rows(4, device=device)) for device in "aabb"]
    rows = [row for file in files for row in file]
    for row, device in ((files[0][0], "a"), (files[1][1], "b"), (files[2][2], "b")):
        delete_equal(table, [row[1]], partition=Record(device))
    left = without(rows, files[0][0][1], files[2][2][1])
    with fresh(table).update_spec() as change:
        change.remove_field("device")
    delete_equal(table, [files[1][3][1], files[3][3][1]], spec_id=fresh(table).spec().spec_id)
    found = rewritten(table, without(left, files[1][3][1], files[3][3][1]))
    assert found.deleted_rows == 4
    assert {file.spec_id for file in found.added} == {0}


def test_columns_that_were_renamed_promoted_or_dropped(catalog: SqlCatalog) -> None:
    """Java fails to read a table whose equality deletes use a dropped column."""
    schema = Schema(
        NestedField(1, "event_time", SCHEMA.fields[0].field_type, required=False),
        NestedField(2, "id", IntegerType(), required=False),
        NestedField(3, "device", StringType(), required=False),
        NestedField(4, "code", StringType(), required=False),
    )
    table = new_table(catalog, schema=schema, properties={"lithify.time-column": "event_time"})
    times = pa.array([START] * 5, pa.timestamp("us", tz="UTC"))
    ids, code = pa.array(range(5), pa.int32()), ["x", "y", "z", None, "q"]
    fresh(table).append(pa.table({"event_time": times, "id": ids, "device": list("aabbc"), "code": code}))
    delete_keys(table, pa.table({"id": pa.array([0], pa.int32())}))
    delete_keys(table, pa.table({"code": pa.array(["y", None])}))
    with fresh(table).update_schema() as change:
        change.update_column("id", LongType())
        change.rename_column("device", "machine")
        change.delete_column("code")
    delete_keys(table, pa.table({"id": pa.array([2, 4], pa.int64()), "machine": ["b", "z"]}))
    with fresh(table).update_schema() as change:
        change.add_column("code", StringType())
    found = run(table)
    assert (found.deleted_rows, found.notes, equality_files(table)) == (4, (), [])
    left = [(START, 4, "c", None)]
    assert (read_by_java(table), read_by_duckdb(table), read(table)) == (left, left, left)


def test_keys_inside_structs(catalog: SqlCatalog) -> None:
    """A struct that is null equals no struct with a null inside."""
    inner = StructType(
        NestedField(5, "sku", LongType(), required=False), NestedField(6, "other", LongType(), required=False)
    )
    schema = Schema(*SCHEMA.fields, NestedField(4, "item", inner, required=False))
    table = new_table(catalog, schema=schema)
    items = [{"sku": 1, "other": 1}, {"sku": 2, "other": 2}, {"sku": None, "other": 3}, None]
    kind = pa.struct([("sku", pa.int64()), ("other", pa.int64())])
    columns = {"event_time": pa.array([START] * 4, pa.timestamp("us", tz="UTC")), "id": [1, 2, 3, 4]}
    fresh(table).append(pa.table({**columns, "device": ["a"] * 4, "item": pa.array(items, kind)}))
    field = pa.field("sku", pa.int64(), True, {"PARQUET:field_id": "5"})
    whole = pa.field("item", pa.struct([field]), True, {"PARQUET:field_id": "4"})
    keys = pa.table([pa.array([{"sku": 2}, {"sku": None}], whole.type)], schema=pa.schema([whole]))
    delete_by(table, keys, [5])
    assert run(table).deleted_rows == 2
    assert not equality_files(table)
    assert [row[1] for row in read_by_java(table)] == [row[1] for row in read(table)] == [1, 4]


def delete_by(table: Table, keys: pa.Table, ids: list[int]) -> None:
    """Delete by columns with these ids, which are in the schema of `keys` already."""
    kind = DataFileContent.EQUALITY_DELETES
    _commit_deletes(fresh(table), keys, kind, 0, Record(), ({}, {}), equality_ids=ids)


def delete_with_bounds(table: Table, keys: pa.Table) -> None:
    """Delete by columns called as in the table now, with the bounds and counts that PyIceberg derives."""
    fields = [table.schema().find_field(name) for name in keys.column_names]
    ids = [field.field_id for field in fields]
    keys = keys.cast(
        pa.schema(
            field.with_metadata({"PARQUET:field_id": str(n)})
            for n, field in zip(ids, keys.schema, strict=True)
        )
    )
    pq.write_table(keys, content := io.BytesIO())
    found = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(content),
        compute_statistics_plan(Schema(*fields), {}),
        parquet_path_to_id_mapping(Schema(*fields)),
    ).to_serialized_dict()
    bounds = found["lower_bounds"], found["upper_bounds"]
    kind = DataFileContent.EQUALITY_DELETES
    _commit_deletes(fresh(table), keys, kind, 0, Record(), bounds, equality_ids=ids)


def test_every_type_of_key_with_bounds(catalog: SqlCatalog) -> None:
    """Each delete file has bounds, by which only the data file with its rows is read."""
    long = ["a" * 16 + "z", "a" * 16 + "b", None, "a" * 40, "a" * 15]
    values = {**VALUES, "long": (StringType(), pa.string(), long)}
    fields = [NestedField(10 + n, name, values[name][0], required=False) for n, name in enumerate(values)]
    table = new_table(catalog, schema=Schema(*SCHEMA.fields, *fields))
    parts, expected = [], set[int]()
    for n, (name, (_, kind, some)) in enumerate(values.items()):
        ids = pa.array(range(10 * n, 10 * n + 5), pa.int64())
        parts.append(pa.table({"id": ids, name: pa.array(some, kind)}))
        expected |= {10 * n, 10 * n + 2, 10 * n + 3}
    for part in parts:
        fresh(table).append(part)
    for part in parts:
        delete_with_bounds(fresh(table), part.take([0, 2, 3]))
    before = read_by_java(table, reader="generic")
    assert {row[1] for row in before} == {10 * n + m for n in range(len(parts)) for m in range(5)} - expected
    found = run(table)
    assert (len(found.removed), found.deleted_rows, equality_files(table)) == (len(parts), len(expected), [])
    assert found.data_files == len(parts)
    assert read_by_java(table, reader="generic") == before


def test_numbers_with_a_point(catalog: SqlCatalog) -> None:
    """All NaN are equal. A delete by a zero is left alone: readers differ about the other zero."""
    schema = Schema(*SCHEMA.fields, NestedField(4, "level", DoubleType(), required=False))
    table = new_table(catalog, schema=schema)
    odd_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    levels = [1.5, odd_nan, -0.0, 0.0, None, 2.5]
    columns = {"event_time": pa.array([START] * 6, pa.timestamp("us", tz="UTC")), "id": list(range(6))}
    fresh(table).append(pa.table({**columns, "device": ["a"] * 6, "level": pa.array(levels, pa.float64())}))
    delete_keys(table, pa.table({"level": pa.array([float("nan"), 1.5, None], pa.float64())}))
    delete_keys(table, pa.table({"level": pa.array([0.0, 2.5], pa.float64())}))
    found = run(table)
    assert len(found.removed) == len(equality_files(table)) == 1
    assert "deletes by a zero" in found.notes[0]
    assert [row[1] for row in read_by_java(table)] == [2]


def test_files_that_cannot_be_read_keep_younger_deletes(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    first, second = append(table, make_rows(3)), None
    delete_equal(table, [first[0][1]])
    second = append(table, make_rows(3))
    delete_equal(table, [second[1][1], first[2][1]])
    (path,) = (
        f.file_path for f in files_of(table) if f.lower_bounds[2] == second[0][1].to_bytes(8, "little")
    )
    place = Path(path.removeprefix("file://"))
    content = place.read_bytes()
    place.write_bytes(b"PAR1 damaged")
    found = run(table)
    assert (len(found.removed), len(equality_files(table)), found.deleted_rows) == (1, 1, 2)
    assert "cannot be read" in found.notes[0]
    place.write_bytes(content)
    rewritten(table, [first[1], *without(second, second[1][1])])


def test_nothing_is_read_if_no_delete_could_be_removed(catalog: SqlCatalog) -> None:
    """The oldest data file is not Parquet: a dry run knows it too."""
    table = new_table(catalog)
    path = f"{table.location()}/data/old.orc"
    table.io.new_output(path).create().close()
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.ORC,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
    )
    file.spec_id = 0
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(file)
    rows = append(table, make_rows(3))
    delete_equal(table, [rows[0][1]])
    foreseen, found = run(table, dry_run=True), run(table)
    assert found.outcome is foreseen.outcome is RewriteOutcome.NOTHING_TO_DO
    assert found.data_files == 0
    assert found.notes == (
        "1 equality delete file(s) are left alone: they apply to data files that are in the format ORC, not "
        "Parquet",
    )


def test_what_readers_pay_is_shown_and_bounds_prune_files(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = [append(table, make_rows(5)) for _ in range(3)]
    keys = pa.table({"id": pa.array([rows[1][2][1]], pa.int64())})
    bound = rows[1][2][1].to_bytes(8, "little")
    field = keys.schema.field(0).with_metadata({"PARQUET:field_id": "2"})
    kind, bounds = DataFileContent.EQUALITY_DELETES, ({2: bound}, {2: bound})
    _commit_deletes(fresh(table), keys.cast(pa.schema([field])), kind, 0, Record(), bounds, equality_ids=[2])
    head = read_listing(fresh(table), "main", ManifestCache())
    assert head is not None
    cost = cost_of(head)
    assert (cost.files, cost.keys, cost.scan_keys, cost.scan_bytes) == (1, 1, 3, 3 * cost.size_bytes)
    found = rewritten(table, without([row for part in rows for row in part], rows[1][2][1]))
    assert found.data_files == 1


def test_bounds() -> None:
    def column(low: Any, high: Any, *, nulls: bool = False, values: bool = True) -> list[ColumnBounds]:
        return [ColumnBounds(low, high, nulls, values)]

    assert may_share_keys(column(1, 5), column(5, 9))
    assert not may_share_keys(column(1, 4), column(5, 9))
    assert not may_share_keys(column(5, 9), column(1, 4, nulls=True))
    assert may_share_keys(column(5, 9, nulls=True), column(1, 4, nulls=True))
    assert may_share_keys(column(None, None), column(1, 4))
    assert not may_share_keys(column(None, None, nulls=True, values=False), column(1, 4))
    assert may_share_keys(column(1, 5) + column("a", "c"), column(2, 2) + column("b", "b"))
    assert not may_share_keys(column(1, 5) + column("a", "c"), column(2, 2) + column("d", "d"))


# Other writers


def meanwhile(patch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Do these, one before each of the first commits."""
    waiting, usual = list(actions), publish

    def after_them(*arguments: Any) -> bool:
        if waiting:
            waiting.pop(0)()
        return usual(*arguments)

    patch.setattr(head_rewrite, "publish", after_them)


def test_writers_commit_meanwhile(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Younger files are not touched, younger deletes stay, and nothing is read twice."""
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    key, other = rows[4][1], rows[15][1]
    delete_equal(table, [key])
    back: Row = (START, key, "back")
    meanwhile(monkeypatch, lambda: append(table, [back]), lambda: delete_equal(table, [other]))
    found = run(table)
    assert (found.outcome, found.data_files, found.deleted_rows) == (RewriteOutcome.REWRITTEN, 2, 1)
    assert len(equality_files(table)) == 1
    left = [*without(rows, key, other), back]
    check(table, left, by_pyiceberg=False)
    rewritten(table, left)


def test_a_compaction_commits_meanwhile(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are older than the delete, and have a deleted row: they are read too."""
    table = new_table(catalog, properties=AT_ONCE)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    append(table, make_rows(1, START + 3 * DAY))  # so that not all files are inputs
    delete_equal(table, [rows[4][1]])
    meanwhile(monkeypatch, lambda: steps.commit())
    before = read_by_duckdb(table)
    found = run(table)
    assert (found.data_files, found.deleted_rows) == (4, 1)
    assert not equality_files(table)
    assert read_by_duckdb(table) == read(table) == before
    assert rows[4][1] not in {row[1] for row in before}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_of_upserts(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A writer in the style of Flink: each checkpoint deletes its keys from older files of a partition, and
    adds their new rows, in one commit. It commits before, during and after rewrites, while another writer
    deletes by position and a compaction runs. After each step, readers find what a dictionary has."""
    rng, newest, checkpoints = random.Random(seed), dict[int, Row](), 0
    table = new_table(catalog, spec=BY_DEVICE, properties={**AT_ONCE, "write.delete.mode": "merge-on-read"})
    steps = Steps(dataset_of(table))

    def checkpoint() -> None:
        nonlocal checkpoints
        checkpoints += 1
        device = rng.choice("ab")
        keys = rng.sample(range(1 if device == "a" else 2, 60, 2), 8)
        upserts: list[Row] = [(START + checkpoints * timedelta(minutes=1), key, device) for key in keys[2:]]
        place, column = Record(device), pa.table({"id": pa.array(keys, pa.int64())})
        delete_keys(table, column, partition=place, together=[data_file(table, upserts)])
        for key in keys:
            newest.pop(key, None)
        newest.update({row[1]: row for row in upserts})

    def by_position() -> None:
        files = {file.file_path: file for file in files_of(table)}
        file = rng.choice(sorted(files))
        position = rng.randrange(files[file].record_count)
        delete_positions(fresh(table), {file: [position]}, files=files)
        now = {row[1] for row in read_by_duckdb(table)}
        newest.pop(next((key for key in newest if key not in now), 0), None)

    checkpoint()
    compactions = 0
    for step in range(24):
        action = rng.choice(["checkpoint", "checkpoint", "checkpoint", "delete", "compact", "rewrite"])
        if action == "rewrite":
            with monkeypatch.context() as patch:
                meanwhile(patch, *rng.choices([checkpoint, steps.execute, lambda: None], k=2))
                assert run(table).outcome is not RewriteOutcome.LOST_RACE
        elif action == "compact":
            if rng.random() < 0.5:
                steps.execute()
            compactions += len(steps.schedule().committed)
        else:
            checkpoint() if action == "checkpoint" else by_position()
        assert sorted(read_by_duckdb(table)) == sorted(newest.values()), f"step {step}"
    steps.execute()
    compactions += len(steps.commit().committed)
    assert compactions
    run(table)
    if equality_files(table):  # left to the compaction that the last tick scheduled
        steps.execute()
        steps.commit()
        run(table)
    assert not equality_files(table)
    check(table, list(newest.values()))


@pytest.mark.parametrize("is_planned_before", [True, False])
def test_deletes_are_rewritten_while_a_compaction_runs(
    catalog: SqlCatalog, *, is_planned_before: bool
) -> None:
    """The compaction commits. Without the rows of the delete if it had applied it; else they are moved."""
    table = new_table(catalog, properties={**AT_ONCE, "write.delete.mode": "merge-on-read"})
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    steps = Steps(dataset_of(table))
    gone = [rows[4][1], rows[13][1]]
    if not is_planned_before:
        delete_equal(table, gone)
    steps.schedule()
    steps.execute()
    if is_planned_before:
        delete_equal(table, gone)
    newest = append(table, make_rows(1))
    delete_equal(table, [rows[7][1]])
    assert run(table).deleted_rows == 3
    tick = steps.commit()
    assert len(tick.committed) == 1
    assert not tick.dropped
    check(table, [*without(rows, *gone, rows[7][1]), *newest])
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary[MOVED_ROWS] == ("3" if is_planned_before else "1")


def test_deletes_that_only_a_compaction_applies_are_left_to_it(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=AT_ONCE)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    delete_equal(table, [rows[4][1]])
    steps = Steps(dataset_of(table))
    steps.schedule()
    found = run(table)
    assert found.outcome is RewriteOutcome.NOTHING_TO_DO
    assert "active compactions" in found.notes[0]
    steps.execute()
    assert steps.commit().committed
    check(table, without(rows, rows[4][1]))


def test_a_rewrite_that_was_wrong_would_be_a_conflict(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete is removed, and one of its rows is not deleted instead: the compaction, which lacks it, is not
    committed."""
    table = new_table(catalog, properties={**AT_ONCE, "write.delete.mode": "merge-on-read"})
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    delete_equal(table, [rows[4][1], rows[13][1]])
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    append(table, make_rows(1))
    delete_equal(table, [-1])
    usual = KeyMatcher.deleted

    def half(self: KeyMatcher) -> dict[int, Any]:
        return dict(list(usual(self).items())[:1])

    monkeypatch.setattr(KeyMatcher, "deleted", half)
    assert run(table).deleted_rows == 1
    tick = steps.commit()
    assert not tick.committed
    assert "have 18 rows, but the inputs had 19" in tick.refused[0][1]


def test_coordinators_do_it_beyond_a_number_of_files(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.max-equality-delete-files": "2"})
    rows = append(table, make_rows(10))
    for row in rows[:2]:
        delete_equal(table, [row[1]])
    assert run(table, unasked=True).outcome is RewriteOutcome.NOTHING_TO_DO
    delete_equal(table, [rows[2][1]])
    assert run(table, unasked=True).outcome is RewriteOutcome.REWRITTEN
    check(table, rows[3:])


# Version 3


@pytest.mark.parametrize("has_vectors", [True, False])
def test_vectors_of_version_3(tmp_path: Path, *, has_vectors: bool) -> None:
    """The new vectors have the positions of the vectors or delete files that they replace."""
    table = new_table(new_catalog(tmp_path))
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    delete_positions(table, {file.file_path: [1] for file in files_of(table)})
    delete_equal(table, [rows[1][1], rows[4][1], rows[25][1], -1])
    set_version(table, 3)
    owned = OwnCatalog("test", **table.catalog.properties).load_table(table.name())
    left = without(rows, *(rows[n][1] for n in (1, 4, 21, 25)))
    assert read_by_duckdb(owned) == left
    if has_vectors:
        assert DeleteRewriter(dataset_of(owned), a_clock()).run().removed
    found = run(owned)
    assert (found.outcome, found.deleted_rows) == (RewriteOutcome.REWRITTEN, 2)
    head = read_listing(fresh(owned), "main", ManifestCache())
    assert head is not None
    assert [len(vectors) for vectors in head.vectors.values()] == [1, 1]
    assert not equality_files(owned)
    assert read_by_java(owned) == read_by_duckdb(owned) == read(owned) == left


# Many keys


@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_keys(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: SqlCatalog
) -> None:
    """Keys and rows on disk, in many partitions, and a filter that is too small: the rows are those that a
    dictionary finds."""
    monkeypatch.setattr(key_matching, "KEYS_OF_PARTITION", 7)
    monkeypatch.setattr(key_matching, "HELD_BYTES", 2000)
    monkeypatch.setattr(key_matching, "MAX_FILTER_BYTES", 64)
    rng = random.Random(seed)
    texts = [None, "", *(f"{n:x}" * (n % 5) for n in range(200))]

    def keys(rows: int) -> list[tuple[int | None, str | None]]:
        return [(rng.choice([None, *range(40)]), rng.choice(texts)) for _ in range(rows)]

    def batch(found: list[tuple[int | None, str | None]]) -> pa.RecordBatch:
        arrays = [pa.array([k for k, _ in found], pa.int64()), pa.array([t for _, t in found], pa.string())]
        return pa.RecordBatch.from_arrays([arrays[0], arrays[1].cast(pa.binary())], ["0", "1"])

    matcher = KeyMatcher(tmp_path, 300)
    newest: dict[Any, int] = {}
    for number in rng.sample(range(1, 100), 20):
        found = keys(rng.randrange(60))
        matcher.add_keys(batch(found), number)
        newest |= {key: max(number, newest.get(key, 0)) for key in found}
    expected: dict[int, list[int]] = {}
    for file in range(15):
        number, start = rng.randrange(100), 0
        for _ in range(3):
            rows = keys(rng.randrange(200))
            matcher.add_rows(batch(rows), file, start, number)
            gone = [start + n for n, key in enumerate(rows) if newest.get(key, 0) > number]
            expected.setdefault(file, []).extend(gone)
            start += len(rows)
    deleted = {file: vector.between(0, 10_000).tolist() for file, vector in matcher.deleted().items()}
    assert deleted == {file: rows for file, rows in expected.items() if rows}
    assert sum(map(len, deleted.values())) > 100


def test_a_column_that_is_no_single_value(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    assert KeyColumns(table.metadata, []).why_unfit == "list no columns"
    assert "no schema" in str(KeyColumns(table.metadata, [77]).why_unfit)
    assert KeyColumns(table.metadata, [2]).why_unfit is None

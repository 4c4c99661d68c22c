"""Deletes of tables of format version 3: position delete files become deletion vectors, and Puffin files that
are mostly dead are written again. All readers find the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, read_listing
from lithify.datasets.iceberg.format.manifests import is_vector
from lithify.datasets.iceberg.format.publish import publish
from lithify.datasets.iceberg.format.replace import Added, Replacement, write
from lithify.datasets.iceberg.io.closed_catalogs import ClosedCatalog
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.rewriting import head_rewrite
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter, RewritingDeletes
from tests.datasets.iceberg.hadoop_lake import HadoopLake, hadoop_lake
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
    read_by_duckdb,
    set_version,
)
from tests.datasets.iceberg.test_version3 import create, history, insert
from tests.datasets.iceberg.test_version3_commits import check_ids, goes_on
from tests.judge.iceberg_java import IcebergJava


class OwnCatalog(ClosedCatalog, SqlCatalog):
    """A catalog as Lithify opens it, which writes all versions."""


@pytest.fixture
def upgraded(tmp_path: Path) -> Table:
    """A table of version 3 with position delete files from before its upgrade."""
    table = new_table(new_catalog(tmp_path))
    for n in range(3):
        append(table, make_rows(20, START + n * DAY / 4, DAY / 2))
    paths = [file.file_path for file in files_of(table)]
    delete_positions(table, {paths[0]: [1, 2]})
    delete_positions(table, {paths[0]: [2, 5], paths[1]: [0]})
    delete_positions(table, {paths[1]: [19]})
    set_version(table, 3)
    return OwnCatalog("test", **table.catalog.properties).load_table(table.name())


def run(table: Table, **options: bool) -> RewritingDeletes:
    return DeleteRewriter(dataset_of(fresh(table)), a_clock()).run(**options)


def rewritten(table: Table) -> RewritingDeletes:
    """Rewrite; every snapshot reads as before, and a second run does nothing."""
    before = {s.snapshot_id: read(table, s.snapshot_id) for s in fresh(table).snapshots()}
    rows = read(table)
    foreseen = run(table, dry_run=True)
    found = run(table)
    assert found.outcome is RewriteOutcome.REWRITTEN
    assert len(foreseen.removed) == len(found.removed)
    assert foreseen.would_add >= len(found.added)
    assert read(table) == rows == read_by_duckdb(table)
    assert {snapshot_id: read(table, snapshot_id) for snapshot_id in before} == before
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    return found


def head_of(table: Table) -> Listing:
    head = read_listing(fresh(table), "main", ManifestCache())
    assert head is not None
    return head


def counts(table: Table) -> dict[str, Any]:
    head = fresh(table).current_snapshot()
    assert head is not None
    assert head.summary is not None
    return head.summary.additional_properties


def test_position_delete_files_become_vectors(upgraded: Table) -> None:
    found = rewritten(upgraded)
    assert (len(found.removed), len(found.added), found.dangling) == (3, 2, 0)
    assert {file.file_path for file in found.added} == {found.added[0].file_path}
    assert sorted(file.record_count for file in found.added) == [2, 3]
    assert all(is_vector(file) for file in delete_files_of_head(upgraded))
    summary = counts(upgraded)
    assert (summary["added-dvs"], summary["removed-position-delete-files"]) == ("2", "3")
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("2", "5")


def delete_files_of_head(table: Table) -> list[Any]:
    return [entry.data_file for found in head_of(table).vectors.values() for entry in found]


def remove(table: Table, path: str) -> None:
    """Remove a data file, and leave its deletes."""
    head = head_of(table)
    prepared = write(fresh(table), "main", head, Replacement({path: head.data[path]}), {}, 0)
    assert publish(fresh(table), prepared, lambda: fresh(table))


def test_dangling_ones_are_dropped(upgraded: Table) -> None:
    remove(upgraded, sorted(head_of(upgraded).data)[0])
    removed = {file.file_path for file in rewritten(upgraded).removed}
    assert not removed & {file.file_path for file in delete_files_of(upgraded)}
    for path in sorted(head_of(upgraded).vectors):
        remove(upgraded, path)
    found = rewritten(upgraded)
    assert found.dangling == len(found.removed) > 0
    assert not found.added
    assert not delete_files_of(upgraded)
    assert counts(upgraded)["removed-dvs"] == str(found.dangling)


def test_a_puffin_file_that_is_mostly_dead_is_written_again(upgraded: Table) -> None:
    old = rewritten(upgraded).added
    first = min(old, key=lambda file: file._data[-2])
    remove(upgraded, first._data[-3])
    found = rewritten(upgraded)
    assert (len(found.removed), found.dangling, len(found.added)) == (2, 1, 1)
    assert found.added[0].file_path != first.file_path
    assert first.file_path not in {file.file_path for file in delete_files_of(upgraded)}


def test_equality_deletes_stay(tmp_path: Path) -> None:
    table = new_table(new_catalog(tmp_path))
    rows = append(table, make_rows(20))
    delete_equal(table, [rows[3][1]])
    delete_positions(table, {files_paths(table)[0]: [1]}, files={f.file_path: f for f in files_of(table)})
    set_version(table, 3)
    owned = OwnCatalog("test", **table.catalog.properties).load_table(table.name())
    rows_before = read_by_duckdb(owned)
    found = run(owned)
    assert (len(found.removed), len(found.added)) == (1, 1)
    assert read_by_duckdb(owned) == rows_before
    assert len(rows_before) == 18
    assert len(delete_files_of(owned)) == 2


def files_paths(table: Table) -> list[str]:
    return [file.file_path for file in files_of(table)]


def test_inputs_of_active_compactions_are_left_alone(upgraded: Table) -> None:
    steps = Steps(dataset_of(upgraded))
    steps.schedule()
    steps.execute()
    assert run(upgraded).outcome is RewriteOutcome.NOTHING_TO_DO
    steps.commit()
    assert not delete_files_of(upgraded)
    assert len(read(upgraded)) == 55


def give_vectors(table: Table, vectors: Sequence[tuple[str, Sequence[int]]], order: Sequence[int]) -> None:
    """Give data files vectors, which lie in one Puffin file in this order, in a commit of their own."""
    head = head_of(table)
    place = f"{table.location()}/data/{len(fresh(table).snapshots())}.puffin"
    new = [
        NewVector(
            path, DeletionVector.of(np.array(positions, np.int64)), 0, head.data[path].data_file.partition
        )
        for path, positions in vectors
    ]
    files = dict(zip(order, write_vectors(table.io, place, [new[n] for n in order]), strict=True))
    added = [Added(files[n], (head.snapshot.sequence_number or 0) + 1) for n in range(len(new))]
    prepared = write(fresh(table), "main", head, Replacement(added=added), {}, 0)
    assert publish(fresh(table), prepared, lambda: fresh(table))


def test_only_a_file_with_two_vectors_is_left_alone(upgraded: Table) -> None:
    """Java refuses such a table, and other readers choose different vectors."""
    rewritten(upgraded)
    (third,) = head_of(upgraded).data.keys() - head_of(upgraded).vectors.keys()
    first, second = head_of(upgraded).data.keys() - {third}
    give_vectors(upgraded, [(third, [7]), (third, [1, 3])], [1, 0])
    result = compact(dataset_of(upgraded))
    assert result.committed
    assert not result.failures
    head = head_of(upgraded)
    assert third in head.data
    assert not {first, second} & head.data.keys()
    assert {path: len(vectors) for path, vectors in head.vectors.items()} == {third: 2}
    (left,) = result.after.left_alone
    assert (left.files, left.why[:34]) == (1, "have more than one deletion vector")
    assert run(upgraded).outcome is RewriteOutcome.NOTHING_TO_DO


def test_uncommitted_vectors_are_garbage(upgraded: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(head_rewrite, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(upgraded)
    root = Path(upgraded.location().removeprefix("file://"))
    (left,) = root.rglob("*.puffin")
    rewritten(upgraded)
    paths = {Path(path.removeprefix("file://")) for path in named_paths(upgraded)}
    (kept,) = set(root.rglob("*.puffin")) - {left}
    clock = a_clock()
    clock.sleep_s(24 * 3600)
    options = GarbageOptions(dry_run=True, max_percent=100)
    garbage = {
        Path(one.path.removeprefix("file://"))
        for one in collect(dataset_of(upgraded), clock, options).garbage
    }
    assert left in garbage
    assert kept in paths
    assert not garbage & paths


def test_java_agrees(tmp_path: Path, java: IcebergJava) -> None:
    lake: HadoopLake = hadoop_lake(tmp_path / "lake", java)
    create(lake, version=2)
    insert(lake, 0)
    insert(lake, 10)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 14)")
    lake.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='3')")
    insert(lake, 20)
    lake.sql("DELETE FROM events WHERE id IN (3, 25, 26)")
    rows, before = lake.identities(), history(lake)
    assert run(lake.table).outcome is RewriteOutcome.REWRITTEN
    assert lake.identities() == rows
    after = history(lake)
    assert {n: after[n] for n in before} == before
    check_ids(lake)
    goes_on(lake)

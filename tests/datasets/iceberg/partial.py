"""Random tables, random conflicts: whatever is committed of a compaction, the rows stay the same.

    python -m tests.datasets.iceberg.partial [SEEDS]
    python -m tests.datasets.iceberg.partial twins

A seed makes a table of files that overlap at random, with deletes; plans and rewrites it; lets others
rewrite, delete from and add to some files; and commits, perhaps only at the second attempt, with more deletes
in between. Some row maps are lost or damaged. PyIceberg reads which rows there are. Which outputs share rows
with which inputs is found out by reading all of them. The twins are defects, each of which a seed must find.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from lithify.datasets.iceberg.compaction import commit, moved_deletes
from lithify.datasets.iceberg.compaction.conflict_groups import Component, components
from lithify.datasets.iceberg.compaction.moved_deletes import DeletesSincePlan
from lithify.datasets.iceberg.compaction.row_map import path_of, rows_of
from lithify.datasets.iceberg.format.summary import moved_totals
from lithify.datasets.iceberg.model import IcebergCompaction, files_written
from lithify.protocol.model import CompactionState
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    rewrite_without,
)
from tests.datasets.iceberg.test_commit import Commit, MeddlingCatalog

DAYS = 6
BY_DEVICE = SortOrder(SortField(source_id=3, transform=IdentityTransform()))
PROPERTIES = {
    "lithify.min-saved-files": "1",
    "lithify.min-new-percent": "0",
    "lithify.max-combine-gap-seconds": str(30 * 86_400),
}


@dataclass
class Outcome:
    """What a seed came to, to see that not all are alike."""

    inputs: int = 0
    components: int = 0
    replaced: int = 0
    moved_rows: int = 0


def play(folder: Path, seed: int) -> Outcome:
    """Play one seed; fails where rows change, or a component is replaced in part."""
    rng = random.Random(seed)
    order = rng.choice((UNSORTED_SORT_ORDER, BY_DEVICE))
    properties = PROPERTIES | rng.choice(({}, {"write.delete.mode": "merge-on-read"}))
    catalog = new_catalog(folder)
    table = new_table(catalog, order=order, properties=properties)
    for _ in range(rng.randint(3, 10)):
        _append(table, rng)
    for file in rng.sample(files_of(table), rng.randint(0, 2)):
        whole = range(file.record_count)
        delete_positions(table, {file.file_path: rng.choice((whole, whole[:2]))})
    busy_catalog = MeddlingCatalog("test", **catalog.properties)
    dataset = dataset_of(table, catalog=busy_catalog)
    if rng.random() < 0.5:
        dataset.range_bytes = 1
    steps = Steps(dataset)
    steps.schedule()
    steps.execute()
    ledger = dataset.ledger()
    assert ledger is not None
    compactions = [c for c in ledger.active() if c.state is CompactionState.COMPACTED]
    # Read now: others may delete files from the table, but not from the disk.
    ids = {path: _ids(path) for path in _paths(compactions)}

    inputs, outcome = [path for c in compactions for path in c.spec.inputs], Outcome()
    others = _Others(table, inputs, rng)
    others.interfere()
    maps = [output for c in compactions for output in files_written(c) if output.row_map is not None]
    damaged = {output.path for output in maps if rng.random() < 0.1}
    for path in damaged:
        _damage(Path(path_of(path).removeprefix("file://")), rng)
    busy_catalog.meddle = others.first if rng.random() < 0.5 else None
    steps.commit()
    assert read(table) == others.rows
    live = {file.file_path for file in files_of(table)}
    for compaction in compactions:
        mapped = {output.path for output in files_written(compaction) if output.row_map is not None}
        _judge(compaction, live, others, mapped - damaged, ids, outcome)
    before = others.rows
    outcome.moved_rows = _moved_rows(table)
    compact(dataset_of(table))
    assert read(table) == before
    return outcome


def _append(table: Table, rng: random.Random) -> None:
    start = START + rng.randrange(DAYS) * DAY + timedelta(hours=rng.randrange(20))
    rows = make_rows(rng.randint(1, 12), start, DAY * rng.choice((0.05, 0.1, 0.3, 1.5)), rng.choice("abc"))
    append(table, [(None if rng.random() < 0.03 else time, row_id, device) for time, row_id, device in rows])


class _Others:
    """Other writers of the table."""

    def __init__(self, table: Table, inputs: Sequence[str], rng: random.Random) -> None:
        self._table = table
        self._inputs = inputs
        self._rng = rng
        self.rewritten: set[str] = set()
        self.deleted: set[str] = set()
        """Inputs with new deletes."""
        self.rows = read(table)

    def interfere(self) -> None:
        """Rewrite some files, delete from some, and add one perhaps."""
        for path in self._chosen(0.08):
            left = sorted(_ids(path) & {row[1] for row in self.rows})
            if left:
                rewrite_without(self._table, self._rng.choice(left))
                self.rewritten.add(path)
                self.rows = read(self._table)
        self.delete()
        if self._rng.random() < 0.5:
            _append(self._table, self._rng)
        self.rows = read(self._table)

    def first(self, finish: Commit) -> CommitTableResponse:
        """Commit before Lithify does."""
        self.delete()
        self.rows = read(self._table)
        return finish()

    def delete(self) -> None:
        """Delete rows of some inputs: in one file for all, or in one for each."""
        live = {file.file_path: file.record_count for file in files_of(self._table)}
        targets = {
            path: self._rng.sample(range(live[path]), self._rng.randint(1, live[path]))
            for path in self._chosen(0.25)
            if path in live
        }
        together = [targets] if self._rng.random() < 0.5 else [{path: rows} for path, rows in targets.items()]
        for one in filter(None, together):
            delete_positions(self._table, one, with_bounds=self._rng.random() < 0.5)
        self.deleted |= targets.keys()

    def _chosen(self, share: float) -> list[str]:
        return [path for path in self._inputs if self._rng.random() < share]


def _damage(path: Path, rng: random.Random) -> None:
    """Lose a row map, or change a byte of it."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 0xFF
    path.unlink()
    if rng.random() < 0.5:
        path.write_bytes(content)


def _moved_rows(table: Table) -> int:
    return moved_totals(fresh(table).metadata).rows


def _judge(
    compaction: IcebergCompaction,
    live: set[str],
    others: _Others,
    mapped: set[str],
    ids: dict[str, set[int]],
    outcome: Outcome,
) -> None:
    """`mapped` are the outputs with a row map that is whole."""
    inputs, outputs = compaction.spec.inputs, [file.path for file in files_written(compaction)]
    for group in _groups([*inputs, *outputs], ids):
        is_there = {path in live for path in group if path in outputs}
        assert len(is_there) < 2, "all outputs of a group or none"
        if is_there == {True}:
            assert live.isdisjoint(group.intersection(inputs)), "no row is there twice"
            assert not others.rewritten.intersection(group), "a conflict keeps its whole group out"
    for part in components(inputs, compaction.outputs):
        paths = {output.path for output in part.outputs}
        is_clean = others.rewritten.isdisjoint(part.inputs) and (
            paths <= mapped or others.deleted.isdisjoint(part.inputs)
        )
        outcome.inputs += len(part.inputs)
        outcome.components += 1
        outcome.replaced += is_clean
        if is_clean:
            assert paths <= live, "what is not in conflict is replaced"
            assert live.isdisjoint(part.inputs)
        elif not others.rewritten.isdisjoint(part.inputs):
            assert live.isdisjoint(paths)


def _groups(paths: Iterable[str], ids: dict[str, set[int]]) -> list[set[str]]:
    """Files that share rows, directly or through others."""
    groups: list[tuple[set[str], set[int]]] = []
    for path in paths:
        joined, rows = {path}, set(ids[path])
        others = []
        for group, of_group in groups:
            if rows & of_group:
                joined |= group
                rows |= of_group
            else:
                others.append((group, of_group))
        groups = [*others, (joined, rows)]
    return [group for group, _ in groups]


def _paths(compactions: Iterable[IcebergCompaction]) -> set[str]:
    return {p for c in compactions for p in (*c.spec.inputs, *(file.path for file in files_written(c)))}


def _ids(path: str) -> set[int]:
    return set(pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].to_pylist())


Patch = Callable[[pytest.MonkeyPatch], None]


def off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A row map names the row after each."""
    patch.setattr(moved_deletes, "rows_of", lambda content, deleted: rows_of(content, deleted) + 1)


def of_a_dead_attempt(patch: pytest.MonkeyPatch) -> None:
    """The second attempt to commit writes the deletes of the first."""
    known: dict[str, dict[str, moved_deletes.Rows]] = {}
    found = DeletesSincePlan.of

    def of(self: DeletesSincePlan, part: Component) -> dict[str, moved_deletes.Rows]:
        return known.setdefault(part.inputs[0], found(self, part))

    patch.setattr(DeletesSincePlan, "of", of)


def moved_twice(patch: pytest.MonkeyPatch) -> None:
    """Each delete is moved twice."""
    patch.setattr(moved_deletes, "rows_of", lambda content, deleted: np.repeat(rows_of(content, deleted), 2))


def half_moved(patch: pytest.MonkeyPatch) -> None:
    """A row map lacks rows."""
    patch.setattr(moved_deletes, "rows_of", lambda content, deleted: rows_of(content, deleted)[::2])


def uncounted(patch: pytest.MonkeyPatch) -> None:
    """A row map lacks rows, and nothing counts them."""
    half_moved(patch)
    patch.setattr(commit, "_check_count", lambda *counts: None)


TWINS: tuple[Patch, ...] = (off_by_one, of_a_dead_attempt, moved_twice, half_moved, uncounted)


def finds(twin: Patch, seed: int) -> bool:
    """Return whether a seed finds a defect."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        twin(patch)
        try:
            play(Path(folder), seed)
        except AssertionError:
            return True
    return False


def _find_twins() -> None:
    for twin in TWINS:
        seed = next(seed for seed in range(300) if finds(twin, seed))
        print(f"{twin.__name__}: seed {seed}", flush=True)


def main() -> None:
    """Play so many seeds, 300 by default; or find each twin."""
    if sys.argv[1:] == ["twins"]:
        _find_twins()
        return
    total = Outcome()
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 300):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = play(Path(folder), seed)
            except BaseException:
                print(f"seed {seed}")
                raise
        total.inputs += outcome.inputs
        total.components += outcome.components
        total.replaced += outcome.replaced
        total.moved_rows += outcome.moved_rows
    print(total)


if __name__ == "__main__":
    main()

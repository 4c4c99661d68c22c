"""Random tables, random conflicts: whatever is committed of a compaction, the rows stay the same.

    python -m tests.datasets.iceberg.partial [SEEDS]

A seed makes a table of files that overlap at random, with deletes; plans and rewrites it; lets others
rewrite, delete from and add to some files; and commits. PyIceberg says which rows there are. Which outputs
share rows with which inputs is found out by reading all of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from lithify.datasets.iceberg.compaction.conflict_groups import components
from lithify.datasets.iceberg.model import IcebergCompaction, files_written
from lithify.protocol.model import CompactionState
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    delete_positions,
    files_of,
    make_rows,
    new_catalog,
    new_table,
    read,
    rewrite_without,
)

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


def play(folder: Path, seed: int) -> Outcome:
    """Play one seed; fails where rows change, or a component is replaced in part."""
    rng = random.Random(seed)
    order = rng.choice((UNSORTED_SORT_ORDER, BY_DEVICE))
    table = new_table(new_catalog(folder), order=order, properties=PROPERTIES)
    for _ in range(rng.randint(3, 10)):
        _append(table, rng)
    for file in rng.sample(files_of(table), rng.randint(0, 2)):
        whole = range(file.record_count)
        delete_positions(table, {file.file_path: rng.choice((whole, whole[:2]))})
    dataset = dataset_of(table)
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

    touched = {path for c in compactions for path in c.spec.inputs if rng.random() < 0.25}
    _interfere(table, touched, rng)
    before, outcome = read(table), Outcome()
    steps.commit()
    assert read(table) == before
    live = {file.file_path for file in files_of(table)}
    for compaction in compactions:
        _judge(compaction, live, touched, ids, outcome)
    compact(dataset_of(table))
    assert read(table) == before
    return outcome


def _append(table: Table, rng: random.Random) -> None:
    start = START + rng.randrange(DAYS) * DAY + timedelta(hours=rng.randrange(20))
    rows = make_rows(rng.randint(1, 12), start, DAY * rng.choice((0.05, 0.1, 0.3, 1.5)), rng.choice("abc"))
    append(table, [(None if rng.random() < 0.03 else time, row_id, device) for time, row_id, device in rows])


def _interfere(table: Table, touched: Iterable[str], rng: random.Random) -> None:
    for path in sorted(touched):
        ids = _ids(path)
        there = {row[1] for row in read(table)}
        left = sorted(ids & there)
        if left and rng.random() < 0.5:
            rewrite_without(table, rng.choice(left))
        else:
            delete_positions(table, {path: [0]})
    if rng.random() < 0.5:
        _append(table, rng)


def _judge(
    compaction: IcebergCompaction,
    live: set[str],
    touched: set[str],
    ids: dict[str, set[int]],
    outcome: Outcome,
) -> None:
    inputs, outputs = compaction.spec.inputs, [file.path for file in files_written(compaction)]
    for group in _groups([*inputs, *outputs], ids):
        is_there = {path in live for path in group if path in outputs}
        assert len(is_there) < 2, "all outputs of a group or none"
        if is_there == {True}:
            assert live.isdisjoint(group.intersection(inputs)), "no row is there twice"
            assert not touched.intersection(group), "a conflict keeps its whole group out"
    for part in components(inputs, compaction.outputs):
        is_clean = touched.isdisjoint(part.inputs)
        paths = {output.path for output in part.outputs}
        outcome.inputs += len(part.inputs)
        outcome.components += 1
        outcome.replaced += is_clean
        if is_clean:
            assert paths <= live, "what nobody touched is replaced"
            assert live.isdisjoint(part.inputs)
        else:
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


def main() -> None:
    """Play so many seeds, 300 by default."""
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
    print(total)


if __name__ == "__main__":
    main()

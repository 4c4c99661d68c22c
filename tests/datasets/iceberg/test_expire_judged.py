"""What expiry leaves of tables with random histories, read by others: Java Iceberg, PyIceberg and DuckDB read
every snapshot whole, and a program of its own finds all files that are needed and none that is not."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.iceberg.expire import ExpireOptions, Expirer
from lithify.datasets.iceberg.maintenance import TableMaintenance
from lithify.datasets.iceberg.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewrite_manifests import ManifestRewriter
from lithify.datasets.maintenance import Wanted
from lithify.errors import Refused
from lithify.ids import RandomIds
from tests.datasets.iceberg.reachability import needed_by
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    by_id,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    rewrite_without,
)
from tests.judge.iceberg_java import iceberg_java

PARTS = ("snapshots", "files", "manifests", "entries", "refs", "history", "all_data_files")


THINGS = (
    *("append", "append", "rewrite", "delete", "delete", "tag", "branch", "compact", "hold", "expire"),
    *("rewrite manifests", "rewrite deletes"),
)


class Life:
    """Random things that happen to a table."""

    def __init__(self, table: Table, rng: random.Random) -> None:
        self.table, self._rng = table, rng

    def step(self, n: int) -> None:
        table, rng = self.table, self._rng
        match rng.choice(THINGS):
            case "append":
                append(table, make_rows(3, START + rng.randrange(3) * DAY))
            case "rewrite" if read(table):
                rewrite_without(table, rng.choice(read(table))[1])
            case "delete" if files_of(table):
                delete_positions(table, {files_of(table)[0].file_path: [0]})
            case "tag" | "branch" as kind if fresh(table).snapshots():
                with fresh(table).manage_snapshots() as changes:
                    chosen = rng.choice(fresh(table).snapshots()).snapshot_id
                    getattr(changes, f"create_{kind}")(chosen, f"{kind}{n}")
            case "compact":
                compact(dataset_of(table))
            case "rewrite manifests":
                self._keeping(lambda: ManifestRewriter(dataset_of(table), a_clock()).run())
            case "rewrite deletes":
                self._keeping(lambda: DeleteRewriter(dataset_of(table), a_clock()).run())
            case "hold" if fresh(table).snapshots():
                self._hold(f"h{n}")
            case "expire":
                self.expire(rng.randint(1, 4))

    def _keeping(self, action: Callable[[], object]) -> None:
        """What every snapshot reads, and the newest, stays."""
        before = {s.snapshot_id: read(self.table, s.snapshot_id) for s in fresh(self.table).snapshots()}
        rows = read(self.table)
        action()
        assert {n: read(self.table, n) for n in before} == before
        assert read(self.table) == rows

    def _hold(self, name: str) -> None:
        clock = a_clock()
        maintenance = TableMaintenance(dataset_of(self.table, clock=clock), clock, RandomIds())
        chosen = self._rng.choice(fresh(self.table).snapshots()).snapshot_id
        with suppress(Refused):  # it came too late
            maintenance.hold(Wanted(version=chosen), 3_600_000, name, "me")

    def expire(self, keep: int) -> None:
        before = {s.snapshot_id: read(self.table, s.snapshot_id) for s in fresh(self.table).snapshots()}
        clock = a_clock()
        options = ExpireOptions(older_than_ms=4_000_000_000_000, retain_last=keep, grace_ms=0)
        Expirer(dataset_of(self.table, clock=clock), clock, RandomIds()).run(options)
        for snapshot in fresh(self.table).snapshots():
            assert read(self.table, snapshot.snapshot_id) == before[snapshot.snapshot_id]


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(catalog: SqlCatalog, seed: int) -> None:
    properties = {"lithify.min-saved-files": "1", "lithify.branch": "main"}
    table = new_table(catalog, properties=properties)
    life = Life(table, random.Random(seed))
    for n in range(14):
        life.step(n)
    append(table, make_rows(2))
    life.expire(2)
    now = fresh(table)
    for snapshot in now.snapshots():
        expected = read(table, snapshot.snapshot_id)
        assert read_by_duckdb(table, snapshot.snapshot_id) == expected
        rows = iceberg_java().rows(now.metadata_location, snapshot_id=snapshot.snapshot_id).values
        assert by_id(rows) == expected
    for part in PARTS:
        assert iceberg_java().rows(now.metadata_location, part=part).values, part
    needed = needed_by(now.metadata_location, lambda path: Path(path.removeprefix("file://")).read_bytes())
    root = Path(now.location().removeprefix("file://"))
    there = {path.as_uri() for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}
    unneeded = there - needed.files - needed.manifests
    assert needed.files | needed.manifests <= there
    # What compactions left behind that never were in a snapshot is the garbage collector's.
    assert {path for path in unneeded if "lithify-" not in path} == set()

"""Random tables with garbage, collected and judged: nothing that is needed goes, nothing of ours stays.

    python -m tests.datasets.iceberg.garbage_random [SEEDS] [FIRST]

Each seed makes one or two tables that may share a place: partition values from all of Unicode, odd locations,
both layouts, branches and tags, expired snapshots, files of others, compactions that were killed, on local
files or on S3. Every other table is collected by the coordinator's collector, the others by a single
collection.
"""

from __future__ import annotations

import random
import shutil
import string
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from lithify.datasets.collecting import PeriodicCollector
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, collect, collect_due
from lithify.datasets.iceberg.settings import TableCollectionSettings
from tests.datasets.iceberg.reachability import needed_by
from tests.datasets.iceberg.running import Steps, a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    Row,
    age_files,
    append,
    by_id,
    fresh,
    make_rows,
    read,
)
from tests.s3 import REGION, S3, serve_s3

LOCAL_PLACES = (
    "t",
    "a//b",
    "a/../b",
    "a%20b",
    "a b",
    "Zürich",
    "a/./b",
    "x%2Fy",
    "e\u0301",
    "日本",
    "a+b&c=d",
    "t/",
)
REMOTE_PLACES = ("t", "a%20b", "a b", "Zürich", "x%2Fy", "e\u0301", "日本", "a+b&c=d", "t/")
OTHERS = ("lithify-.parquet", "part-0.parquet", "lithify-0123456789abcdef-x.parquet", "_SUCCESS")


@dataclass(frozen=True)
class Place:
    """Where tables lie: a folder, or a bucket."""

    warehouse: str
    properties: dict[str, str]
    folder: Path
    s3: S3 | None
    bucket: str = ""

    def keys(self) -> set[str]:
        """All files, named as this place names them."""
        if self.s3 is None:
            return {str(p) for p in self.folder.joinpath("lake").rglob("*") if p.is_file()}
        pages = self.s3.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {item["Key"] for page in pages for item in page.get("Contents", [])}

    def key(self, path: str) -> str:
        """What a path in metadata is called here."""
        if self.s3 is not None:
            return path.removeprefix(f"s3://{self.bucket}/")
        return str(Path(path.removeprefix("file://")).resolve())

    def read(self, path: str) -> bytes:
        if self.s3 is None:
            return Path(path.removeprefix("file://")).read_bytes()
        body: bytes = self.s3.client().get_object(Bucket=self.bucket, Key=self.key(path))["Body"].read()
        return body

    def write(self, path: str, data: bytes) -> None:
        if self.s3 is None:
            file = Path(path.removeprefix("file://"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        else:
            self.s3.client().put_object(Bucket=self.bucket, Key=self.key(path), Body=data)

    def age(self) -> None:
        """Everything was written two hours ago."""
        if self.s3 is None:
            age_files(self.folder / "lake")
            return
        self.s3.server.age(self.bucket, timedelta(hours=2).total_seconds())


def place_for(rng: random.Random, folder: Path, s3: S3 | None) -> Place:
    if s3 is None:
        (folder / "lake" / "a").mkdir(parents=True)
        return Place(f"file://{folder}/lake", {}, folder, None)
    bucket = s3.bucket()
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.options["aws_access_key_id"],
        "s3.secret-access-key": s3.options["aws_secret_access_key"],
        "s3.region": REGION,
    }
    return Place(f"s3://{bucket}/lake", properties, folder, s3, bucket)


def text(rng: random.Random) -> str:
    """A partition value from all of Unicode."""
    if rng.random() < 0.4:
        return rng.choice(
            ("Zürich", "/", "#", "%", "&", "=", "+", "?", "..", ".", "", " ", "a/b", "%2F", "%C3%BC", "null")
        )
    size = rng.randint(1, 12)
    if rng.random() < 0.4:
        return "".join(rng.choice(string.printable[:95]) for _ in range(size))
    points = (
        rng.choice((rng.randint(0xA0, 0xD7FF), rng.randint(0xE000, 0xFFFD), rng.randint(0x10000, 0x10FFFF)))
        for _ in range(size)
    )
    return "".join(chr(point) for point in points)


def make_table(
    rng: random.Random, catalog: SqlCatalog, place: Place, number: int, shared: str | None
) -> Table:
    root = f"{place.warehouse}/{rng.choice(REMOTE_PLACES if place.s3 else LOCAL_PLACES)}"
    properties = {"format-version": "2", "lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
    if rng.random() < 0.4:
        properties["write.object-storage.enabled"] = "true"
        properties["write.object-storage.partitioned-paths"] = rng.choice(("true", "false"))
    if shared is not None:
        properties["write.data.path"] = shared
    elif rng.random() < 0.3:
        properties["write.data.path"] = f"{root.rstrip('/')}/else/where"
    if rng.random() < 0.2:
        properties["write.metadata.path"] = f"{root.rstrip('/')}/meta"
    if rng.random() < 0.05:
        properties["gc.enabled"] = "false"
    spec = UNPARTITIONED_PARTITION_SPEC
    if rng.random() < 0.7:
        spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    return catalog.create_table(
        ("db", f"t{number}"), SCHEMA, location=root, partition_spec=spec, properties=properties
    )


def give_up(table: Table) -> None:
    """A compaction whose outputs are written, and whose coordinator is gone for good."""
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    steps.dataset.update_ledger(lambda ledger: replace(ledger, compactions=()))


def live(rng: random.Random, table: Table, place: Place) -> list[Row]:
    """A life of a table; the rows it has in the end."""
    devices = [text(rng) for _ in range(rng.randint(1, 3))]
    rows: list[Row] = []
    for _ in range(rng.randint(2, 5)):
        event = rng.random()
        if event < 0.75:
            for n in range(2):
                start = START + rng.randint(0, 1) * DAY + n * DAY / 4
                rows += append(table, [row for d in devices for row in make_rows(3, start, DAY / 8, d)])
        if event < 0.5:
            compact_once(table)
        elif event < 0.65:
            give_up(table)
        elif event < 0.75:
            ref(rng, table)
        elif event < 0.9:
            expire(rng, table)
    folder = fresh(table).location_provider().data_path
    for name in rng.sample(OTHERS, 2):
        place.write(f"{folder}/{name}", b"somebody else's")
    return rows


def compact_once(table: Table) -> None:
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    steps.commit()


def ref(rng: random.Random, table: Table) -> None:
    head = fresh(table).metadata.current_snapshot_id
    if head is not None:
        with fresh(table).manage_snapshots() as snapshots:
            snapshots.create_tag(head, f"tag-{rng.randint(0, 2**32)}")


def expire(rng: random.Random, table: Table) -> None:
    metadata = fresh(table).metadata
    kept = {each.snapshot_id for each in metadata.refs.values()}
    old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept and rng.random() < 0.8]
    if old:
        fresh(table).maintenance.expire_snapshots().by_ids(old).commit()


def collect_twice(rng: random.Random, table: Table) -> None:
    """The second finds nothing; which of the two ways is chosen by chance."""
    dataset = dataset_of(table)
    if rng.random() < 0.5:
        options = dict.fromkeys(GarbageKind, TableCollectionSettings())
        PeriodicCollector(options, lambda due: collect_due(dataset, a_clock(), due), a_clock()).tick()
    else:
        collect(dataset, a_clock(), GarbageOptions(dry_run=False))
    assert not collect(dataset_of(table), a_clock()).garbage


def play(seed: int, folder: Path, s3: S3 | None) -> dict[str, int]:
    """Make, collect and judge; how many files there were, were needed and went."""
    rng = random.Random(seed)
    place = place_for(rng, folder, s3)
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{folder}/catalog.db", warehouse=place.warehouse, **place.properties
    )
    try:
        catalog.create_namespace("db")
        shared = f"{place.warehouse}/shared" if rng.random() < 0.3 else None
        tables = [
            make_table(rng, catalog, place, n, shared)
            for n in range(2 if shared or rng.random() < 0.2 else 1)
        ]
        rows = [live(rng, table, place) for table in tables]
        place.age()
        before = place.keys()
        for table in tables:
            collect_twice(rng, table)
        return judge(place, tables, rows, before)
    finally:
        catalog.close()


def judge(place: Place, tables: list[Table], rows: list[list[Row]], before: set[str]) -> dict[str, int]:
    after = place.keys()
    needed: set[str] = set()
    keeps_all = False
    for table, expected in zip(tables, rows, strict=True):
        now = fresh(table)
        found = needed_by(now.metadata_location, place.read)
        needed |= {place.key(path) for path in (*found.manifests, *found.files)}
        keeps_all = keeps_all or now.metadata.properties.get("gc.enabled") == "false"
        if expected:
            assert read(now) == by_id(expected)
    assert needed <= after, f"needed and gone: {sorted(needed - after)[:3]}"
    gone = before - after
    foreign = {key for key in gone if "lithify-" not in key and "_lithify/" not in key}
    assert not foreign, f"not ours and gone: {sorted(foreign)[:3]}"
    assert not {key for key in gone if key.rpartition("/")[2] in OTHERS}
    ours = {key for key in after if is_ours(key)}
    if not keeps_all:
        assert ours <= needed, f"ours and left: {sorted(ours - needed)[:3]}"
    return {"files": len(before), "needed": len(needed), "gone": len(gone)}


def is_ours(key: str) -> bool:
    name = key.rpartition("/")[2]
    return "lithify-" in name and name not in OTHERS and name.endswith((".parquet", ".avro"))


def seeds(first: int, count: int, s3: S3) -> Iterator[tuple[int, dict[str, int]]]:
    """Every third table lies on S3."""
    for seed in range(first, first + count):
        folder = Path(tempfile.mkdtemp(prefix="lithify-garbage-"))
        try:
            yield seed, play(seed, folder, s3 if seed % 3 == 0 else None)
        except BaseException as error:
            error.add_note(f"replay: python -m tests.datasets.iceberg.garbage_random 1 {seed}")
            raise
        finally:
            shutil.rmtree(folder)


def main() -> None:
    """Play a thousand tables, or as many as are asked for."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    started_s = time.monotonic()
    totals: dict[str, Any] = {}
    with serve_s3() as s3:
        for seed, counts in seeds(first, count, s3):
            for name, number in counts.items():
                totals[name] = totals.get(name, 0) + number
            if seed % 50 == 0:
                print(
                    f"{seed - first + 1} of {count}, {time.monotonic() - started_s:.0f} s: {totals}",
                    flush=True,
                )
    print(f"{count} seeds, {time.monotonic() - started_s:.0f} s: {totals}")
    print("Nothing that is needed went, and nothing of ours stayed.")


if __name__ == "__main__":
    main()

"""The table that is measured: made once by PyIceberg, then kept; each run gets a copy.

1. 500 appends of one file each, every one about an hour and a half of events; together 31 days, about
   250 MB. Files overlap their neighbours by a tenth, and in every tenth file two rows in a hundred are up
   to three days late. Rows of a file are in no order. The table is not partitioned; its sort order is
   by time, its target file size 16 MiB.
2. Metadata of Iceberg name files by absolute path. So the table is always at the same place
   (`Place.work`), and what was made is kept beside it (`Place.kept`).
3. A copy for a run shares data and metadata files (hard links: they are never changed), so all runs find
   the same warm page cache; the catalog's database is its own.
4. A table whose files are elsewhere (`iceberg_s3`) has only the catalog's database in its folder, and
   `REACHED`: how that catalog reaches them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

VERSION = 1
"""Part of the kept names: to be raised when other data is made."""
FILES = 500
ROWS_PER_FILE = 15_000
DAYS = 31
US_PER_DAY = 86_400_000_000
START_US = 1_735_689_600_000_000
"""2025-01-01 in UTC."""
OVERLAP = 1.1
LATE_EVERY = 10
LATE_SHARE = 0.02
LATE_DAYS = 3
TARGET_FILE_BYTES = 16 << 20
NAME = ("db", "events")
TIME_COLUMN = "event_time"
MARK = "made.json"
CATALOG = "catalog.db"
REACHED = "catalog.json"
MAKE_TIMEOUT_S = 1800
WORDS = (
    "amber",
    "basalt",
    "cobalt",
    "dune",
    "ember",
    "flint",
    "granite",
    "hazel",
    "ivory",
    "jade",
    "kelp",
    "lime",
)

SCHEMA = Schema(
    NestedField(1, TIME_COLUMN, TimestamptzType(), required=True),
    NestedField(2, "user_id", LongType(), required=True),
    NestedField(3, "device", StringType()),
    NestedField(4, "value", DoubleType()),
    NestedField(5, "payload", StringType()),
    NestedField(6, "tags", ListType(7, StringType(), element_required=False)),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is kept and where it lies while it is worked on."""

    folder: Path

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    @property
    def work(self) -> Path:
        return self.folder / "work"


def table_of(cache: Path, files: int, rows_per_file: int) -> Place:
    """A table in the folder `cache`, made if it is not there."""
    name = f"iceberg-v{VERSION}-{files}-{rows_per_file}"

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.iceberg_data", str(folder), str(files), str(rows_per_file)]

    return made_once(cache, name, command)


def made_once(cache: Path, name: str, command: Callable[[Path], Sequence[str]]) -> Place:
    """What a command makes in an empty folder, kept in the folder `cache` by its name."""
    place = Place(cache.absolute() / name)
    wanted = {"folder": str(place.folder)}
    mark = place.folder / MARK
    if not mark.exists() or json.loads(mark.read_text()) != wanted:
        shutil.rmtree(place.folder, ignore_errors=True)
        place.work.mkdir(parents=True)
        subprocess.run(command(place.work), check=True, timeout=MAKE_TIMEOUT_S)
        place.work.rename(place.kept)
        mark.write_text(json.dumps(wanted))
    return place


def copy_for_a_run(place: Place) -> Path:
    """The table as it was made, where it may be compacted."""
    shutil.rmtree(place.work, ignore_errors=True)
    for source in sorted(place.kept.rglob("*")):
        copy = place.work / source.relative_to(place.kept)
        if source.is_dir():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.name == CATALOG:
            shutil.copy2(source, copy)
        else:
            os.link(source, copy)
    return place.work


def open_catalog(folder: Path, properties: Mapping[str, str] | None = None) -> SqlCatalog:
    """The catalog of a table in a folder; `properties` win over how its files are reached by default."""
    reached = {**properties_of(folder), **(properties or {})}
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/{CATALOG}", **reached)


def properties_of(folder: Path) -> dict[str, str]:
    """How the files of a table in a folder are reached."""
    reached = folder / REACHED
    if not reached.exists():
        return {"warehouse": (folder / "warehouse").as_uri()}
    return {name: str(value) for name, value in json.loads(reached.read_text()).items()}


def live_files(folder: Path) -> list[str]:
    """The live data files by their locations."""
    return [task.file.file_path for task in open_catalog(folder).load_table(NAME).scan().plan_files()]


def data_files(folder: Path) -> list[Path]:
    """The live data files of a table on the local disk."""
    return [local_path(location) for location in live_files(folder)]


def local_path(uri: str) -> Path:
    """The path in a file URI, however many slashes it has."""
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def _make(folder: Path, files: int, rows_per_file: int) -> None:
    table = new_table(open_catalog(folder))
    for number in range(files):
        table.append(events(number, files, rows_per_file))


def new_table(catalog: SqlCatalog) -> Table:
    """The table without rows."""
    catalog.create_namespace(NAME[:-1])
    return catalog.create_table(
        NAME,
        SCHEMA,
        sort_order=SortOrder(SortField(source_id=1, transform=IdentityTransform())),
        properties={"format-version": "2", "write.target-file-size-bytes": str(TARGET_FILE_BYTES)},
    )


def events(number: int, files: int, rows: int) -> pa.Table:
    """The rows of one file."""
    rng = np.random.default_rng([VERSION, number])
    span_us = DAYS * US_PER_DAY // files
    times = START_US + number * span_us + rng.integers(0, int(OVERLAP * span_us), rows)
    if number % LATE_EVERY == 0:
        late = rng.random(rows) < LATE_SHARE
        times = np.where(late, times - rng.integers(0, LATE_DAYS * US_PER_DAY, rows), times)
    times = np.clip(times, START_US, START_US + DAYS * US_PER_DAY - 1)
    words = pa.array(WORDS)
    payload = pc.binary_join_element_wise(
        *(words.take(pa.array(rng.integers(0, len(WORDS), rows))) for _ in range(3)),
        pa.array(rng.integers(0, 1 << 62, rows)).cast(pa.string()),
        "-",
    )
    device = pc.binary_join_element_wise("dev", pa.array(rng.integers(0, 500, rows)).cast(pa.string()), "-")
    tags = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 2 * rows + 1, 2, dtype=np.int32)),
        words.take(pa.array(rng.integers(0, len(WORDS), 2 * rows))),
    )
    columns = [
        pa.array(times, pa.timestamp("us", tz="UTC")),
        pa.array(rng.integers(0, 200_000, rows)),
        device,
        pa.array(np.round(rng.normal(20, 5, rows), 3)),
        payload,
        tags,
    ]
    schema = pa.schema(
        [
            pa.field(field.name, column.type, nullable=not field.required)
            for field, column in zip(SCHEMA.fields, columns, strict=True)
        ]
    )
    return pa.table(columns, schema=schema)


if __name__ == "__main__":
    _make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

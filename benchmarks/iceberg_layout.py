"""What readers find in a set of Parquet files: the same measure for every compactor, from the files
themselves and from nothing a compactor says.

A query of one day has to touch

- *files*: every byte of each file whose least and greatest time meet the day. That is what a reader
  fetches which knows the bounds in the table's metadata only;
- *row groups*: the compressed column chunks of each row group whose least and greatest time meet the
  day. That is what a reader fetches which also reads footers before it reads data, and all columns.

Least and greatest are those of the statistics in the footers; a row group without them is always touched.
Both are averaged over all days. Pages inside a row group are not told apart: some compactors write an index
of pages and others do not, and most readers in Python do not use one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from benchmarks.iceberg_data import DAYS, SCHEMA, START_US, TIME_COLUMN, US_PER_DAY

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table lies in files."""

    files: int
    bytes: int
    day_files: float
    """Files that a one-day query touches."""
    day_file_bytes: float
    day_group_bytes: float


@dataclass(frozen=True, slots=True)
class Rows:
    """A fingerprint of all rows, whatever their order."""

    count: int
    hash_sum: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A file or a row group: its bytes, and its days from the first to the last, inclusive."""

    size_bytes: int
    first_day: int
    last_day: int


def measure_layout(files: Sequence[Path]) -> Layout:
    """How these files are laid out in time."""
    whole: list[_Part] = []
    groups: list[_Part] = []
    for path in files:
        parts = list(_groups(path))
        groups += parts
        whole.append(
            _Part(
                path.stat().st_size,
                min((part.first_day for part in parts), default=0),
                max((part.last_day for part in parts), default=-1),
            )
        )
    return Layout(
        files=len(files),
        bytes=sum(part.size_bytes for part in whole),
        day_files=_per_day([_Part(1, part.first_day, part.last_day) for part in whole]),
        day_file_bytes=_per_day(whole),
        day_group_bytes=_per_day(groups),
    )


def fingerprint(files: Sequence[Path]) -> Rows:
    """All rows of these files, read by DuckDB."""
    names = ", ".join(f'"{field.name}"' for field in SCHEMA.fields)
    query = (
        f"SELECT count(*), sum(hash({names})::HUGEINT) FROM read_parquet($files, hive_partitioning = false)"
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        count, hash_sum = connection.execute(query, {"files": [str(path) for path in files]}).fetchall()[0]
    return Rows(count, int(hash_sum))


def _per_day(parts: Sequence[_Part]) -> float:
    days = (max(0, min(p.last_day, DAYS - 1) - max(p.first_day, 0) + 1) for p in parts)
    return sum(part.size_bytes * count for part, count in zip(parts, days, strict=True)) / DAYS


def _groups(path: Path) -> Iterator[_Part]:
    footer = pq.read_metadata(path)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = [group.column(n) for n in range(group.num_columns)]
        size_bytes = sum(column.total_compressed_size for column in columns)
        times = next(column for column in columns if column.path_in_schema == TIME_COLUMN).statistics
        if times is None or not times.has_min_max:
            yield _Part(size_bytes, 0, DAYS - 1)
        else:
            yield _Part(size_bytes, _day(times.min), _day(times.max))


def _day(time: Any) -> int:
    at = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since_start_us: int = (at - _EPOCH) // _MICROSECOND - START_US
    return since_start_us // US_PER_DAY

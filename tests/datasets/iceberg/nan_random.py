"""Random tables with NaN in every place, from which other programs read and delete after Lithify's work.

    python -m tests.datasets.iceberg.nan_random [SEEDS] [FIRST]

1. A table gets its rows from Java or from Java and PyIceberg, and its twin gets the same rows from Java. The
   twin is never compacted.
2. The table's delete files are rewritten, its files compacted, its manifests rewritten, its snapshots
   expired. Before and after each, Java, PyIceberg and DuckDB read the rows of the twin.
3. Java says of every row of the twin whether it meets each of some random conditions. This reads no
   statistics. Every engine then filters the table by each condition, and Java and PyIceberg delete by some;
   each time, the table is left with the rows that the twin would be left with.

The conditions mean the same to all engines. SQL takes NaN for the greatest number and Iceberg does not, so a
lower limit always says what happens to NaN. An inequality does too: PyIceberg deletes no NaN that it is not
told of.

In its own files, Java counts a field of a struct as null only if the struct is not: by IS NULL it misses the
other rows, and so may DuckDB, which reads the same counts. Only in files that no compaction has rewritten may
these rows be missed.
"""

from __future__ import annotations

import math
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import expressions
from pyiceberg.expressions import And, BooleanExpression, Or
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    duckdb_with_iceberg,
    files_of,
    fresh,
    new_catalog,
    read,
    read_by_duckdb,
    read_by_java,
)
from tests.judge.iceberg_java import iceberg_java

SCHEMA = Schema(
    NestedField(1, "event_time", TimestamptzType()),
    NestedField(2, "id", LongType()),
    NestedField(3, "device", StringType()),
    NestedField(4, "x", DoubleType()),
    NestedField(5, "f", FloatType()),
    NestedField(
        6,
        "s",
        StructType(
            NestedField(9, "y", FloatType()),
            NestedField(10, "t", StructType(NestedField(11, "z", DoubleType())), required=False),
        ),
    ),
    NestedField(7, "l", ListType(12, DoubleType(), element_required=False)),
    NestedField(8, "m", MapType(13, StringType(), 14, FloatType(), value_required=False)),
)
FLOATS = {"x": 4, "f": 5, "s.y": 9, "s.t.z": 11}
"""The columns that can have bounds, with their ids."""
SINGLE = ("f", "s.y")
DEVICES = ("a", "Zürich/1")
NUMBERS = (-math.inf, -100.5, -7.25, -0.0, 0.0, 3.5, 3.75, 100.5, math.inf)
"""Each is both a float and a double."""
LIMITS = (-200.0, -7.25, -1.5, 3.5, 50.25, 100.5, 1e9)
SPECS = (
    UNPARTITIONED_PARTITION_SPEC,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device")),
    PartitionSpec(PartitionField(1, 1000, DayTransform(), "day")),
    PartitionSpec(PartitionField(3, 1000, BucketTransform(2), "bucket")),
    PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "x")),
    PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "f")),
)
MODES: tuple[dict[str, str], ...] = (
    {},
    {},
    {"write.metadata.metrics.default": "full"},
    {"write.metadata.metrics.default": "counts"},
    {"write.metadata.metrics.default": "none"},
    {"write.metadata.metrics.column.s.y": "none"},
)
AT_ONCE = {
    "lithify.min-saved-files": "1",
    "lithify.min-new-percent": "0",
    "lithify.max-deleted-percent": "1",
    "write.parquet.compression-codec": "zstd",
}
FILTERS = 15
DELETES = 5
"""By each engine that can: of its twenty conditions these are for deletes, the others for filters."""
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]
make: Any = expressions


class Condition(NamedTuple):
    """A condition as SQL and as PyIceberg has it."""

    sql: str
    expression: BooleanExpression


def play(lake: Lake, seed: int) -> Counter[str]:
    """Play one table. Return how often what was done."""
    rng = random.Random(f"NaN {seed}")
    subject = Subject(lake, seed, rng)
    try:
        subject.fill()
        subject.maintain()
        subject.query()
        check_bounds(subject.table)
    finally:
        for table in (subject.table, subject.twin):
            lake.catalog.drop_table(table.name())
            shutil.rmtree(table.location().removeprefix("file://"))
    return subject.counts


class Subject:
    """A table and its twin."""

    def __init__(self, lake: Lake, seed: int, rng: random.Random) -> None:
        self._lake, self._rng = lake, rng
        self._spec = rng.choice(SPECS)
        self._mode = rng.choice(("merge-on-read", "copy-on-write"))
        properties = {**AT_ONCE, **rng.choice(MODES), "write.delete.mode": self._mode}
        if rng.random() < 0.3:
            properties["write.parquet.row-group-limit"] = "3"
        self.table = self._new(f"t{seed}", self._spec, _order(rng), properties)
        self.twin = self._new(f"twin{seed}", UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, {})
        self.counts: Counter[str] = Counter()
        self._rows: list[Any] = []
        """Of the twin."""

    def _new(self, name: str, spec: PartitionSpec, order: SortOrder, properties: dict[str, str]) -> Table:
        return self._lake.catalog.create_table(
            ("db", name),
            SCHEMA,
            partition_spec=spec,
            sort_order=order,
            properties={"format-version": "2", **properties},
        )

    def _sql(self, statement: str, table: Table) -> list[tuple[Any, ...]]:
        """Let Java run a statement in which `events` is the table."""
        return self._lake.java.sql(
            statement.replace("events", f"{self._lake.name}.{'.'.join(table.name())}")
        ).values

    @property
    def _float_partition(self) -> str | None:
        """The floating-point column that partitions are made of. PyIceberg cannot write these, and its
        filters end in errors. Java takes null for less than all numbers there: they have no nulls."""
        return next((name for name in ("x", "f") if name in (f.name for f in self._spec.fields)), None)

    # Writers

    def fill(self) -> None:
        """Append rows, then delete some by their ids."""
        rng, rows = self._rng, list[Row]()
        for turn in range(rng.randint(2, 4)):
            new = rows_of_a_file(rng, len(rows))
            if self._float_partition is not None:
                column = self._float_partition
                # -0.0 and 0.0 are two partitions. Java sorts them as one, then finds a partition closed.
                zero = -0.0 if turn % 2 and self._mode == "merge-on-read" else 0.0
                new = [{**row, column: _of_partition(row[column], zero)} for row in new]
            rows += new
            if self._float_partition or rng.random() < 0.5:
                self._sql(f"INSERT INTO events VALUES {_as_sql(new)}", self.table)
            else:
                fresh(self.table).append(pa.Table.from_pylist(new, schema_to_pyarrow(SCHEMA)))
        self._sql(f"INSERT INTO events VALUES {_as_sql(rows)}", self.twin)
        gone = rng.randrange(4), len(rows) - 1 - rng.randrange(4)  # no partition loses a file
        for table in (self.table, self.twin):
            self._sql(f"DELETE FROM events WHERE id IN ({gone[0]}, {gone[1]})", table)
        self._rows = _canonical(read_by_java(self.twin))
        self.counts["rows"] += len(self._rows)

    def maintain(self) -> None:
        """Do what Lithify does for a table; the readers find the same rows before and after."""
        self.agree()
        operations = ["delete files rewritten", "manifests rewritten", "expired", "compacted"]
        self._rng.shuffle(operations)
        for operation in operations:
            self._do(operation)
            self.agree()
        if not self._float_partition:
            files = files_of(self.table)
            by_partition = Counter(file.partition for file in files)
            assert all(_is_compacted(f.file_path) or by_partition[f.partition] == 1 for f in files)

    def _do(self, operation: str) -> None:
        clock, now = a_clock(), fresh(self.table)
        dataset = dataset_of(now, clock=clock)
        if operation == "compacted":
            assert not compact(dataset).failures
        elif operation == "delete files rewritten":
            DeleteRewriter(dataset, clock).run()
        elif operation == "manifests rewritten":
            ManifestRewriter(dataset, clock).run()
        else:
            options = ExpireOptions(older_than_ms=clock.now_ms(), retain_last=1, grace_ms=0)
            Expirer(dataset, clock, RandomIds()).run(options)
        if fresh(self.table).metadata.current_snapshot_id != now.metadata.current_snapshot_id:
            self.counts[operation] += 1

    def agree(self) -> None:
        """All readers find the rows of the twin."""
        for reader in (read_by_java, read_by_duckdb, read):
            found = _canonical(reader(self.table))
            assert found == self._rows, f"{reader.__name__}: {_difference(found, self._rows)}"

    # Conditions

    def query(self) -> None:
        """Filter and delete by random conditions."""
        filters = [_condition(self._rng, tuple(FLOATS)) for _ in range(FILTERS)]
        # PyIceberg deletes by no field of a struct, and by OR leaves rows with null in either column.
        deletes = [_condition(self._rng, ("x", "f"), ("AND",)) for _ in range(DELETES)]
        deletes += [_condition(self._rng, tuple(FLOATS)) for _ in range(DELETES)]
        truth, uncounted = self._truth([*filters, *deletes]), self._uncounted()
        engines = [self._filter_by_java, self._filter_by_duckdb]
        for engine in [*engines, self._filter_by_pyiceberg] if not self._float_partition else engines:
            for condition, ids, found in zip(filters, truth, engine(filters), strict=False):
                message = f"{engine.__name__}: {condition.sql}: {_difference(found, ids)}"
                assert ids - uncounted <= found <= ids, message
                self.counts[f"filters that find {_share(ids, self._rows)}"] += 1
        everything = {row[1] for row in self._rows}
        for n, (condition, gone) in enumerate(zip(deletes, truth[FILTERS:], strict=True)):
            is_java = self._float_partition or n >= DELETES
            delete, left = self._delete_by_java if is_java else self._delete_by_pyiceberg, everything - gone
            found = self._left_after(delete, condition)
            message = f"{delete.__name__}: {condition.sql}: {_difference(found, left)}"
            assert left <= found <= left | uncounted, message
            self.counts[f"deletes of {_share(gone, self._rows)}"] += 1

    def _truth(self, conditions: Sequence[Condition]) -> list[set[int]]:
        """The ids of the twin's rows that meet each condition; every row is read."""
        columns = ", ".join(f"coalesce({condition.sql}, false)" for condition in conditions)
        rows = self._sql(f"SELECT id, {columns} FROM events", self.twin)
        assert len(rows) == len(self._rows)
        return [{row[0] for row in rows if row[n]} for n in range(1, len(conditions) + 1)]

    def _uncounted(self) -> set[int]:
        """The ids of rows with a null struct in files that are still as Java wrote them."""
        rows = list[Row]()
        for file in files_of(self.table):
            if not _is_compacted(file.file_path):
                with self.table.io.new_input(file.file_path).open() as stream:
                    rows += pq.ParquetFile(stream).read(columns=["id", "s"]).to_pylist()
        return {row["id"] for row in rows if row["s"] is None or row["s"]["t"] is None}

    def _filter_by_java(self, filters: Sequence[Condition]) -> list[set[int]]:
        return _by_number(self._sql(_each("events", filters), self.table), len(filters))

    def _filter_by_duckdb(self, filters: Sequence[Condition]) -> list[set[int]]:
        scan = f"iceberg_scan('{fresh(self.table).metadata_location.removeprefix('file://')}')"
        return _by_number(duckdb_with_iceberg().execute(_each(scan, filters)).fetchall(), len(filters))

    def _filter_by_pyiceberg(self, filters: Sequence[Condition]) -> list[set[int]]:
        now = fresh(self.table)
        scans = (now.scan(row_filter=condition.expression, selected_fields=("id",)) for condition in filters)
        return [set(scan.to_arrow()["id"].to_pylist()) for scan in scans]

    def _delete_by_java(self, condition: Condition) -> None:
        self._sql(f"DELETE FROM events WHERE {condition.sql}", self.table)

    def _delete_by_pyiceberg(self, condition: Condition) -> None:
        fresh(self.table).delete(condition.expression)

    def _left_after(self, delete: Callable[[Condition], None], condition: Condition) -> set[int]:
        """Delete, and return the ids that are left; then all rows are as before."""
        before = fresh(self.table).metadata.current_snapshot_id
        assert before is not None
        delete(condition)
        left = set(fresh(self.table).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())
        if fresh(self.table).metadata.current_snapshot_id != before:
            with fresh(self.table).manage_snapshots() as change:
                change.rollback_to_snapshot(before)
        return left


def _order(rng: random.Random) -> SortOrder:
    if rng.random() < 0.5:
        return UNSORTED_SORT_ORDER
    direction = rng.choice((SortDirection.ASC, SortDirection.DESC))
    nulls = rng.choice((NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST))
    columns = rng.sample((1, 4, 5), rng.randint(1, 2))
    return SortOrder(*(SortField(column, IdentityTransform(), direction, nulls) for column in columns))


# Rows


def rows_of_a_file(rng: random.Random, first_id: int) -> list[Row]:
    """Rows of both days and both devices; what numbers there are is up to each column."""
    columns = {name: _values(rng) for name in ("x", "f", "y", "z", "l", "m")}
    rows: list[Row] = []
    for n in range(first_id, first_id + rng.choice((4, 4, 8, 12))):
        at = {name: value(rng) for name, value in columns.items()}
        rows.append(
            {
                "event_time": START + (n // 2 % 2) * DAY + rng.randrange(86400) * DAY / 86400,
                "id": n,
                "device": DEVICES[n % 2],
                "x": at["x"],
                "f": at["f"],
                "s": None if rng.random() < 0.2 else _struct(rng, at["y"], at["z"]),
                "l": rng.choice((None, [], [at["l"]], [at["l"], math.nan, 1.5])),
                "m": rng.choice((None, [], [("k", at["m"])])),
            }
        )
    return rows


def _struct(rng: random.Random, y: float | None, z: float | None) -> Row:
    return {"y": y, "t": None if rng.random() < 0.2 else {"z": z}}


def _values(rng: random.Random) -> Callable[[random.Random], float | None]:
    """A kind of column."""
    one = rng.choice(NUMBERS)
    pool: tuple[float | None, ...] = rng.choice(
        (
            (math.nan,),
            (None, math.nan),
            (one, math.nan),
            (one, one, one, math.nan),
            (*NUMBERS,),
            (*NUMBERS, math.nan, math.nan, None),
            (None,),
            (-0.0, 0.0, math.nan),
        )
    )
    return lambda rng: rng.choice(pool)


def _as_sql(rows: Sequence[Row]) -> str:
    return ", ".join(f"({', '.join(_values_in_sql(row))})" for row in rows)


def _values_in_sql(row: Row) -> Iterator[str]:
    yield f"timestamp_micros({round((row['event_time'] - BEGINNING).total_seconds() * 1e6)})"
    yield str(row["id"])
    yield f"'{row['device']}'"
    yield _number("double", row["x"])
    yield _number("float", row["f"])
    yield _struct_in_sql(row["s"])
    values = row["l"]
    inside = None if values is None else ", ".join(_number("double", value) for value in values)
    yield f"cast({'null' if inside is None else f'array({inside})'} as array<double>)"
    pairs = row["m"]
    inside = None if pairs is None else ", ".join(f"'{key}', {_number('float', v)}" for key, v in pairs)
    yield f"cast({'null' if inside is None else f'map({inside})'} as map<string, float>)"


def _struct_in_sql(value: Row | None) -> str:
    if value is None:
        return "cast(null as struct<y: float, t: struct<z: double>>)"
    inner = value["t"]
    t = (
        "cast(null as struct<z: double>)"
        if inner is None
        else f"named_struct('z', {_number('double', inner['z'])})"
    )
    return f"named_struct('y', {_number('float', value['y'])}, 't', {t})"


def _number(kind: str, value: float | None) -> str:
    return f"cast({'null' if value is None else repr(str(value))} as {kind})"


# Conditions


def _condition(rng: random.Random, names: Sequence[str], words: Sequence[str] = ("AND", "OR")) -> Condition:
    """A condition on one or two of these columns."""
    one, two = rng.sample(names, 2)
    first, least = _simple(rng, one), rng.randrange(20)
    second = (
        _simple(rng, two) if rng.random() < 0.5 else Condition(f"id < {least}", make.LessThan("id", least))
    )
    if rng.random() < 0.7:
        return first
    word = rng.choice(words)
    both = (And if word == "AND" else Or)(first.expression, second.expression)
    return Condition(f"({first.sql}) {word} ({second.sql})", both)


def _simple(rng: random.Random, name: str) -> Condition:
    kind = "float" if name in SINGLE else "double"
    low, high = sorted(rng.sample(LIMITS, 2))
    a, b = f"cast({low} as {kind})", f"cast({high} as {kind})"
    is_nan, is_number = make.IsNaN(name), And(make.NotNull(name), make.NotNaN(name))
    number = f"{name} IS NOT NULL AND NOT isnan({name})"
    between = And(make.GreaterThanOrEqual(name, low), make.LessThanOrEqual(name, high))
    return rng.choice(
        (
            Condition(f"{name} < {b}", make.LessThan(name, high)),
            Condition(f"{name} <= {b}", make.LessThanOrEqual(name, high)),
            Condition(f"{name} > {a} AND {number}", And(make.GreaterThan(name, low), is_number)),
            Condition(f"{name} >= {a} AND {number}", And(make.GreaterThanOrEqual(name, low), is_number)),
            Condition(f"{name} > {a} OR isnan({name})", Or(make.GreaterThan(name, low), is_nan)),
            Condition(f"{name} >= {a} AND {name} <= {b}", between),
            Condition(f"{name} = {a}", make.EqualTo(name, low)),
            Condition(f"{name} IN ({a}, {b})", make.In(name, (low, high))),
            Condition(f"{name} <> {a} AND {number}", And(make.NotEqualTo(name, low), is_number)),
            Condition(
                f"{name} NOT IN ({a}, {b}) AND {number}", And(make.NotIn(name, (low, high)), is_number)
            ),
            Condition(f"isnan({name})", is_nan),
            Condition(number, is_number),
            Condition(f"{name} IS NULL", make.IsNull(name)),
        )
    )


def _each(table: str, filters: Sequence[Condition]) -> str:
    """One query for all; each row says by which filter it was found."""
    return " UNION ALL ".join(
        f"SELECT {n}, id FROM {table} WHERE {condition.sql}" for n, condition in enumerate(filters)
    )


def _by_number(rows: Sequence[tuple[Any, ...]], count: int) -> list[set[int]]:
    return [{row_id for number, row_id in rows if number == n} for n in range(count)]


def _share(ids: set[int], rows: Sequence[Any]) -> str:
    return "nothing" if not ids else "everything" if len(ids) == len(rows) else "some"


# Judging


def _canonical(value: Any) -> Any:
    """The value in a form in which NaN equals NaN and the zeros differ, whoever read it."""
    if isinstance(value, dict):
        return [[key, _canonical(part)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    if isinstance(value, float):
        return repr(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _of_partition(value: float | None, zero: float) -> float:
    return math.nan if value is None else value or zero


def _is_compacted(path: str) -> bool:
    return path.rpartition("/")[2].startswith("lithify-")


def _difference(found: Any, expected: Any) -> str:
    more = [value for value in found if value not in expected]
    return f"too many: {more}, missing: {[value for value in expected if value not in found]}"


def check_bounds(table: Table) -> None:
    """Columns with bounds have a count of NaN, and bounds are numbers."""
    for file in files_of(table):
        for name, field_id in FLOATS.items():
            bounds = [(part or {}).get(field_id) for part in (file.lower_bounds, file.upper_bounds)]
            numbers = [struct.unpack("<f" if name in SINGLE else "<d", bound)[0] for bound in bounds if bound]
            assert not any(map(math.isnan, numbers)), f"{file.file_path}: {name} has a bound that is NaN"
            assert not numbers or field_id in (file.nan_value_counts or {}), f"{file.file_path}: {name}"


@contextmanager
def a_lake() -> Iterator[Lake]:
    """A catalog in a temporary folder, for all tables."""
    folder = Path(tempfile.mkdtemp(prefix="lithify-nan-"))
    try:
        with closing(new_catalog(folder)) as catalog, serve_rest(catalog) as rest:
            java = iceberg_java()
            yield Lake(catalog, java, java.catalog(str(rest.properties["uri"])))
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Play two hundred tables, or as many as are asked for."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    started_s, totals = time.monotonic(), Counter[str]()
    with a_lake() as lake:
        for seed in range(first, first + count):
            try:
                totals.update(play(lake, seed))
            except BaseException as error:
                error.add_note(f"replay: python -m tests.datasets.iceberg.nan_random 1 {seed}")
                raise
            if (seed - first + 1) % 10 == 0:
                print(f"{seed - first + 1} of {count}, {time.monotonic() - started_s:.0f} s", flush=True)
    print(f"Seeds {first} to {first + count - 1}, {time.monotonic() - started_s:.0f} s")
    for name, number in sorted(totals.items()):
        print(f"  {number:6,} {name}")
    print("All engines find, and leave, the rows of the twins.")


if __name__ == "__main__":
    main()

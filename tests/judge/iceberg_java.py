"""Java Iceberg on Spark 3.5, as a judge of tables: one process for the whole suite.

Spark 3.5 cannot be where Spark 4 is, so it has a Python environment of its own (`make test` puts it into
`build/spark35`), in which `iceberg_java_server.py` answers requests.

1. The first request starts the process. It lives until `close`, or until its standard input ends with us.
2. A request is a line of JSON and so is its answer. One request runs at a time.
3. A request that takes longer than its timeout, or a process that ends, is a `JavaError` with the last
   lines the process wrote; the next request starts another. What Java refuses is a `JavaError` too.

Values come as PyIceberg gives them: `datetime` (aware for a timestamp with zone), `date`, `time`,
`Decimal`, `UUID`, `bytes`, `float`, lists, maps as lists of pairs, structs as dicts. A timestamp or date that
Python has no value for is an `Instant`: nothing is lost.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple
from uuid import UUID

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "spark35" / "bin" / "python"
SERVER = "tests.judge.iceberg_java_server"
START_TIMEOUT_S = 120.0
DEFAULT_TIMEOUT_S = 120.0
_TAIL_BYTES = 4000
_EPOCH = datetime(1970, 1, 1)

Reader = Literal["spark", "generic"]
"""Iceberg's reader inside Spark, or its own (which also knows the type `time`, and no metadata tables)."""

Trigger = Literal["processingTime", "availableNow"]


class JavaError(Exception):
    """Java refused a request, or did not answer it."""


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A point in time before year 1 or after year 9999."""

    micros: int
    """Microseconds since 1970; for a date, days since then."""
    kind: str


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query gave."""

    columns: tuple[str, ...]
    values: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Each row by names of columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.values]


class Page(NamedTuple):
    """A page of values."""

    encoded_bytes: int
    values: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group."""

    row_group: int
    row_group_bytes: int
    """In the file."""
    column: str
    has_column_index: bool
    has_offset_index: bool
    dictionary_bytes: int
    pages: list[Page]


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A Parquet file as parquet-mr reads it."""

    metadata: dict[str, str]
    chunks: list[Chunk]


class IcebergJava:
    """The judge."""

    def __init__(self, python: Path = PYTHON, *, speaks_s3: bool = False) -> None:
        self._python = python
        self._which = "s3" if speaks_s3 else "newest"
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def rows(
        self,
        metadata_location: str,
        *,
        snapshot_id: int | None = None,
        as_of_ms: int | None = None,
        branch: str | None = None,
        part: str | None = None,
        reader: Reader = "spark",
        moved: tuple[str, str] = ("", ""),
    ) -> Rows:
        """Rows of the table with this metadata file, or of one of its metadata tables (`part`: `files`,
        `snapshots`, `manifests`, `entries`, `refs`, …), as they are now, were in a snapshot, were at a time
        or are in a branch or tag. The generic reader reads files whose path starts with `moved[0]` from
        `moved[1]`."""
        options = {"snapshot-id": snapshot_id, "as-of-timestamp": as_of_ms, "branch": branch}
        return _rows(
            self.ask(
                "rows",
                metadata_location=metadata_location,
                part=part,
                options={name: str(value) for name, value in options.items() if value is not None},
                reader=reader,
                moved=moved,
            )
        )

    def rows_in_s3(self, metadata_location: str, properties: Mapping[str, str]) -> Rows:
        """Rows of a table in S3, at the locations that the table names, as the judge finds them that speaks
        S3; `properties` say how the store is reached, as Iceberg names them."""
        return _rows(self.ask("rows_in_s3", metadata_location=metadata_location, properties=dict(properties)))

    def snapshots(
        self, metadata_location: str, ids: Sequence[int], *, lineage: bool = False, current: bool = False
    ) -> dict[int, Rows]:
        """Rows of several snapshots of the table with this metadata file, by the generic reader and the
        schema that the table had then, or with `current` by the one it has now. With `lineage`, `_row_id` and
        `_last_updated_sequence_number` follow the columns."""
        found = self.ask(
            "snapshots", metadata_location=metadata_location, ids=list(ids), lineage=lineage, current=current
        )
        return {int(snapshot_id): _rows(answer) for snapshot_id, answer in found.items()}

    def serve(self, warehouse: str) -> str:
        """Start a REST catalog of Java's own, for every format version, and return its address. From then on
        `tables` works on its tables."""
        return str(self.ask("serve", warehouse=warehouse))

    def tables(self, method: str, *arguments: Any) -> Any:
        """Call a writer of `IcebergTables`, which needs no Spark, on a table of the catalog of `serve`."""
        return self.ask("tables", method=method, arguments=list(arguments))

    def sql(self, statement: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Rows:
        """What a statement gives; `catalog` says how a table is called in it."""
        return _rows(self.ask("sql", timeout_s=timeout_s, statement=statement))

    def catalog(self, uri: str) -> str:
        """The name by which SQL knows the REST catalog at this address."""
        return str(self.ask("catalog", uri=uri))

    def delete_equal(
        self,
        table: str,
        columns: Sequence[str],
        values: Sequence[Sequence[Any]],
        *,
        path: str,
        partition: str | None = None,
    ) -> None:
        """Delete the rows that have these values in these columns by an equality delete file at `path`, in
        one commit. `values` as Iceberg writes single values in JSON; `partition` as in paths (`device=a`)."""
        as_json = [[None if value is None else json.dumps(value) for value in row] for row in values]
        self.ask(
            "delete_equal",
            table=table,
            columns=list(columns),
            values=as_json,
            partition=partition,
            path=path,
        )

    def delete_positions(
        self, table: str, data_file: str, positions: Sequence[int], *, path: str, partition: str | None = None
    ) -> None:
        """Delete rows of a data file by a position delete file at `path` whose metadata says which data file
        it is for, in one commit."""
        self.ask(
            "delete_positions",
            table=table,
            data_file=data_file,
            positions=list(positions),
            partition=partition,
            path=path,
        )

    def append_file(self, table: str, path: str, *, partition: str | None = None) -> None:
        """Append a Parquet file that exists, with the metrics that `add_files` takes from its footer, in one
        commit."""
        self.ask("append_file", table=table, path=path, partition=partition)

    def metrics(self, metadata_location: str, path: str) -> dict[str, dict[int, Any]]:
        """What Java would say in a manifest about a Parquet file of the table with this metadata file: sizes,
        counts and bounds by field id, as the footer has them, each by its name in manifests."""
        found = self.ask("metrics", metadata_location=metadata_location, path=path)
        return {
            name: {int(n): _value(value) for n, value in by_field.items()} for name, by_field in found.items()
        }

    def planned(self, metadata_location: str, where: Mapping[str, Any]) -> list[str]:
        """The data files that a scan with this filter plans; `where` as Iceberg writes expressions in JSON
        (`{"type": "eq", "term": "id", "value": 5}`)."""
        found: list[str] = self.ask("planned", metadata_location=metadata_location, where=dict(where))
        return found

    def allowed_by_blooms(self, metadata_location: str, path: str, where: Mapping[str, Any]) -> list[bool]:
        """Whether the bloom filters of each row group of a file allow rows that match this filter."""
        found: list[bool] = self.ask(
            "allowed_by_blooms", metadata_location=metadata_location, path=path, where=dict(where)
        )
        return found

    def parquet(self, path: str) -> ParquetFile:
        """What parquet-mr finds in a file, which it reads whole."""
        found = self.ask("parquet", path=path)
        chunks = [
            Chunk(**{**chunk, "pages": [Page(*page) for page in chunk["pages"]]}) for chunk in found["chunks"]
        ]
        return ParquetFile(found["metadata"], chunks)

    def write_parquet(self, path: str, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a file by parquet-mr, of any schema in its own words: numbers, texts, groups as mappings,
        repeated fields as lists, bytes of fixed length and INT96 in base 64."""
        self.ask("write_parquet", path=path, schema=schema, rows=list(rows))

    def stream(
        self,
        table: str,
        checkpoint: str,
        output: str,
        trigger: Trigger,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Start a reader of Spark Structured Streaming on its checkpoint, let it read all there is into a
        folder of JSON files (`streamed`), and stop it."""
        self.ask(
            "stream",
            table=table,
            checkpoint=checkpoint,
            output=output,
            trigger={"availableNow": True} if trigger == "availableNow" else {"processingTime": "1 second"},
            options=dict(options or {}),
        )

    def streamed(self, output: str, column: str) -> list[Any]:
        """What a reader has written of a column, of the batches that it finished."""
        return [value for (value,) in self.sql(f"SELECT {column} FROM json.`{output}`").values]

    def ask(self, operation: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any) -> Any:
        """The answer to any request that the server knows."""
        with self._lock:
            if self._process is None:
                self._process = _Process(self._python, self._which)
            try:
                answer = self._process.ask({"operation": operation, "arguments": arguments}, timeout_s)
            except BaseException:
                self._process.close()
                self._process = None
                raise
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            if self._process is not None:
                self._process.close()
            self._process = None


@cache
def iceberg_java() -> IcebergJava:
    """The one judge of this process."""
    judge = IcebergJava()
    atexit.register(judge.close)
    return judge


class _Process:
    """A running server."""

    def __init__(self, python: Path, which: str) -> None:
        if not python.exists():
            raise JavaError(f"there is no {python}: `make build/spark35/.installed` makes it")
        self._folder = TemporaryDirectory(prefix="iceberg-java-")
        self._log = Path(self._folder.name) / "stderr"
        environment = {key: value for key, value in os.environ.items() if key not in _OTHERS}
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [python, "-m", SERVER, self._folder.name, which],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._next_line(START_TIMEOUT_S, "start")
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
        except OSError as error:
            raise JavaError(f"Java Iceberg has ended: {self._tail()}") from error
        answer: dict[str, Any] = json.loads(self._next_line(timeout_s, f"do {str(request)[:300]}"))
        return answer

    def close(self) -> None:
        for step in (self._end_input, self._server.terminate, self._server.kill):
            step()
            try:
                self._server.wait(10)
                break
            except subprocess.TimeoutExpired:
                continue
        self._folder.cleanup()

    def _end_input(self) -> None:
        assert self._server.stdin is not None
        try:
            self._server.stdin.close()
        except BrokenPipeError:
            return  # it has ended already

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _next_line(self, timeout_s: float, what: str) -> str:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise JavaError(
                f"Java Iceberg did not {what} within {timeout_s:.0f} s; it wrote: {self._tail()}"
            ) from None
        if not line:
            raise JavaError(f"Java Iceberg ended when it should {what}; it wrote: {self._tail()}")
        return line

    def _tail(self) -> str:
        return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")


_OTHERS = frozenset({"PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"})
"""Variables that are about the Python and the Spark of the suite, and about no other."""


def _rows(answer: Any) -> Rows:
    values = [tuple(_value(value) for value in row) for row in answer["rows"]]
    return Rows(tuple(answer["columns"]), values)


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODERS[kind](content)


def _date(days: int) -> date | Instant:
    try:
        return _EPOCH.date() + timedelta(days=days)
    except OverflowError:
        return Instant(days, "d")


def _timestamp(micros: int) -> datetime | Instant:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return Instant(micros, "ts")


def _timestamptz(micros: int) -> datetime | Instant:
    found = _timestamp(micros)
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else Instant(micros, "tz")


def _time(micros: int) -> time:
    return (_EPOCH + timedelta(microseconds=micros)).time()


_DECODERS: dict[str, Any] = {
    "f": float,
    "dec": Decimal,
    "b": bytes.fromhex,
    "uuid": UUID,
    "d": _date,
    "t": _time,
    "ts": _timestamp,
    "tz": _timestamptz,
    "ns": int,
    "l": lambda items: [_value(item) for item in items],
    "m": lambda pairs: [(_value(key), _value(value)) for key, value in pairs],
    "s": lambda fields: {name: _value(value) for name, value in fields.items()},
}

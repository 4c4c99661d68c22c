"""Compactors at work on the same table, each in a process of its own:
`python -m benchmarks.iceberg_tools TOOL FOLDER REST_URI|- [deletes|rewrite]`.

What is measured is one compaction, from planning to having committed it (where there is anything to commit
to). Importing libraries, opening the catalog and starting Spark with its Python workers come before.
With a REST URI the table is reached through that catalog, otherwise the embedded one. With `deletes` or
`rewrite`, somebody commits that to a Delta table that the tool has opened already (to Iceberg tables the
catalog does that, see `iceberg_rest`).

All are told the table's target of 16 MiB, and zstd where nothing is compressed by default. Everything else is
as they do it by default.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.iceberg_data import (
    NAME,
    REACHED,
    TARGET_FILE_BYTES,
    TIME_COLUMN,
    data_files,
    live_files,
    open_catalog,
    properties_of,
)
from benchmarks.watch import TreeStopwatch

MASTER = "local[2]"
JAVA_PYTHON = Path("build/spark35/bin/python")
"""Python with Spark 3.5 and Iceberg's own runtime for it; they cannot be where Spark 4 is.
`make bench` puts them there."""
DELTA_FOLDER = "delta"
DELETED_DEVICE = "dev-7"
_LONGER_THAN_A_FORK_S = 0.2

Run = Callable[[], None]


class Kind(StrEnum):
    """What a compactor does with rows."""

    TIME_CHUNKS = "time chunks"
    BIN_PACK = "bin-pack"
    SORT = "sort"


class Format(StrEnum):
    """What a compactor commits to."""

    ICEBERG = "Iceberg"
    DELTA = "Delta"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A compaction about to be run."""

    run: Run
    live_files: Callable[[], list[str]]
    """What readers read afterwards, by location."""
    details: dict[str, float] = field(default_factory=dict)
    """What the tool tells of itself; may be filled by `run`."""
    meanwhile: Mapping[str, Run] = field(default_factory=dict)
    """What another writer may do now."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One way to compact a table."""

    name: str
    kind: Kind
    format: Format
    prepare: Callable[[Path, str | None], Prepared]
    package: str
    """The distribution it comes from."""
    needs_rest: bool = False
    python: Path = Path(sys.executable)
    module: str = "benchmarks.iceberg_tools"

    @property
    def missing(self) -> str | None:
        """Why it cannot run here."""
        if self.python != Path(sys.executable):
            return None if self.python.exists() else f"there is no {self.python}"
        if version_of(self.package) is None:
            return f"{self.package} is not installed"
        return None

    def command(self, folder: Path, rest_uri: str | None, meanwhile: str | None = None) -> list[str]:
        """What to run in a process of its own."""
        arguments = [self.name, str(folder), rest_uri or "-", *filter(None, [meanwhile])]
        return [str(self.python), "-m", self.module, *arguments]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What one compaction took; printed by the process."""

    began_s: float
    """Since 1970."""
    wall_s: float
    cpu_s: float
    """Of the process and everything it started."""
    files: list[str]
    details: dict[str, float]


def _lithify(folder: Path, rest_uri: str | None) -> Prepared:
    from lithify.base import events
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.coordination.leadership import Leadership
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.datasets.iceberg.io.catalogs import TableUrl
    from lithify.datasets.iceberg.io.fileio import let_wait
    from lithify.engine.spark import SparkEngine
    from lithify.service import one_shot
    from lithify.store.resilience.waiting import WaitPolicy

    clock, ids = SystemClock(), RandomIds()
    engine = SparkEngine(MASTER, preload="lithify.datasets.iceberg.kernel.warm_up:warm_up")
    started_s = time.perf_counter()
    for call in [engine.submit("start", time.sleep, _LONGER_THAN_A_FORK_S) for _ in range(engine.slots)]:
        call.result()
    details = {"session_start_s": time.perf_counter() - started_s}
    catalog = _catalog(folder, rest_uri)
    let_wait(catalog, WaitPolicy())
    finished: list[events.RangeFinished] = []

    def observe(event: events.Event) -> None:
        if isinstance(event, events.RangeFinished):
            finished.append(event)

    def run() -> None:
        dataset = IcebergDataset(catalog, TableUrl("bench", NAME), clock, ids)
        result = one_shot.run(dataset, engine, clock, ids, Leadership(dataset, clock, ids), observer=observe)
        details["committed"] = len(result.committed)
        details["tasks"] = len(finished)
        details["task_cpu_s"] = sum(event.cpu_s for event in finished)
        details["task_peak_memory_bytes"] = max((event.peak_memory_bytes for event in finished), default=0)

    return Prepared(run, lambda: live_files(folder), details)


def _zamboni(folder: Path, rest_uri: str | None, *, by_order: bool = False) -> Prepared:
    from zamboni.compactor import TableCompactor
    from zamboni.config import CompactionConfig
    from zamboni.session import CatalogSession

    session = CatalogSession.from_catalog(_catalog(folder, rest_uri))
    config = CompactionConfig(target_file_size_bytes=TARGET_FILE_BYTES, sort_by_table_order=by_order)
    compactor = TableCompactor(session, ".".join(NAME), config)
    return Prepared(lambda: _ignore(compactor.execute()), lambda: live_files(folder))


def _zamboni_sorted(folder: Path, rest_uri: str | None) -> Prepared:
    return _zamboni(folder, rest_uri, by_order=True)


def _iceberg_compaction(folder: Path, rest_uri: str | None) -> Prepared:
    from iceberg_compaction import Compaction, CompactionConfig, RestCatalog

    catalog = RestCatalog("bench", uri=rest_uri, properties=_of_files(folder))
    config = CompactionConfig(target_file_size_bytes=TARGET_FILE_BYTES)
    compaction = Compaction(catalog, ".".join(NAME), config)
    return Prepared(lambda: _ignore(compaction.run()), lambda: live_files(folder))


def _deltalake(folder: Path, _: str | None) -> Prepared:
    from deltalake import DeltaTable, convert_to_deltalake

    if (folder / REACHED).exists():
        return _deltalake_over_s3(folder)
    place = folder / DELTA_FOLDER
    place.mkdir()
    for file in data_files(folder):
        os.link(file, place / file.name)
    convert_to_deltalake(place)
    table = DeltaTable(place)

    def run() -> None:
        table.optimize.compact(target_size=TARGET_FILE_BYTES)

    def delete_rows() -> None:
        DeltaTable(place).delete(f"device = '{DELETED_DEVICE}'")

    def rewrite() -> None:
        DeltaTable(place).optimize.compact(target_size=TARGET_FILE_BYTES)

    meanwhile = {"deletes": delete_rows, "rewrite": rewrite}
    return Prepared(run, lambda: _names(delta_files(place)), meanwhile=meanwhile)


def _deltalake_over_s3(folder: Path) -> Prepared:
    """The folder of the data files, taken for a Delta table."""
    from deltalake import DeltaTable, convert_to_deltalake

    properties = properties_of(folder)
    options = {
        "aws_endpoint": properties["s3.endpoint"],
        "aws_access_key_id": properties["s3.access-key-id"],
        "aws_secret_access_key": properties["s3.secret-access-key"],
        "aws_region": properties["s3.region"],
        "aws_allow_http": "true",
        "aws_conditional_put": "etag",
    }
    place = f"{open_catalog(folder).load_table(NAME).location()}/data"
    convert_to_deltalake(place, storage_options=options)
    table = DeltaTable(place, storage_options=options)

    def run() -> None:
        table.optimize.compact(target_size=TARGET_FILE_BYTES)

    return Prepared(run, lambda: DeltaTable(place, storage_options=options).file_uris())


def delta_files(place: Path) -> list[Path]:
    """The live files of a Delta table in a folder."""
    from deltalake import DeltaTable

    return [place / Path(uri).name for uri in DeltaTable(place).file_uris()]


def _names(files: Iterable[Path]) -> list[str]:
    return [str(path) for path in files]


def _duckdb(folder: Path, _: str | None) -> Prepared:
    import duckdb

    inputs = ", ".join(f"'{path}'" for path in data_files(folder))
    place = folder / "sorted"
    place.mkdir()
    connection = duckdb.connect()
    statement = (
        f"COPY (SELECT * FROM read_parquet([{inputs}]) ORDER BY {TIME_COLUMN}) TO '{place}' "
        f"(FORMAT parquet, COMPRESSION zstd, FILE_SIZE_BYTES {TARGET_FILE_BYTES}, OVERWRITE_OR_IGNORE true)"
    )
    return Prepared(
        lambda: _ignore(connection.execute(statement)), lambda: _names(sorted(place.glob("*.parquet")))
    )


def _in_java(_folder: Path, _rest_uri: str | None) -> Prepared:
    raise RuntimeError("this tool runs in another Python")


_JAVA = "snowpark-connect-deps-iceberg"
TOOLS = (
    Tool("Lithify", Kind.TIME_CHUNKS, Format.ICEBERG, _lithify, "lithify"),
    Tool("zamboni", Kind.BIN_PACK, Format.ICEBERG, _zamboni, "iceberg-zamboni"),
    Tool("zamboni sorted", Kind.SORT, Format.ICEBERG, _zamboni_sorted, "iceberg-zamboni"),
    Tool(
        "iceberg-compaction", Kind.BIN_PACK, Format.ICEBERG, _iceberg_compaction, "iceberg-compaction",
        needs_rest=True,
    ),
    Tool(
        "Iceberg on Spark 3.5", Kind.BIN_PACK, Format.ICEBERG, _in_java, _JAVA,
        needs_rest=True, python=JAVA_PYTHON, module="benchmarks.iceberg_java",
    ),
    Tool(
        "Iceberg on Spark 3.5 sorted", Kind.SORT, Format.ICEBERG, _in_java, _JAVA,
        needs_rest=True, python=JAVA_PYTHON, module="benchmarks.iceberg_java",
    ),
    Tool("deltalake compact", Kind.BIN_PACK, Format.DELTA, _deltalake, "deltalake"),
    Tool("DuckDB sorted COPY", Kind.SORT, Format.NONE, _duckdb, "duckdb"),
)  # fmt: skip
JAVA_WITH_S3 = Tool(
    "Iceberg with S3 on Spark 3.5", Kind.BIN_PACK, Format.ICEBERG, _in_java,
    "sagemaker-feature-store-pyspark", needs_rest=True, python=JAVA_PYTHON, module="benchmarks.iceberg_java",
)  # fmt: skip
"""An Iceberg that is not the newest, but with a client for S3: measured only where files are there."""
NOT_MEASURED = {
    "iceops": "delegates to a Spark or Trino that has Iceberg; its own compaction is not there yet",
    "iceframe": "cannot write a table that has required columns; sorts the whole table in memory",
    "floe-iceberg": "counts small files and rewrites none; wants pyarrow below 23",
    "litelink": "compacts only the logs it has written itself",
    "berg-iceberg": "needs Python 3.13",
    "icetl": "needs Python 3.12",
    "pyiceberg": "has no compaction",
}
"""Packages that sound as if they compacted Iceberg tables, and why they are not in the table."""


def _catalog(folder: Path, rest_uri: str | None):  # type: ignore[no-untyped-def]  # any kind of catalog
    if rest_uri is None:
        return open_catalog(folder)
    from pyiceberg.catalog.rest import RestCatalog

    return RestCatalog("bench", uri=rest_uri, **_of_files(folder))


def _of_files(folder: Path) -> dict[str, str]:
    """How files elsewhere are reached: what a REST catalog has to be told besides its address."""
    return {name: value for name, value in properties_of(folder).items() if name != "warehouse"}


def _ignore(_: object) -> None:
    """What a tool returns about itself is not believed."""


def version_of(package: str) -> str | None:
    """What is installed of a distribution in this environment."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _main(name: str, folder: Path, rest_uri: str | None, meanwhile: str | None) -> ToolRun:
    tool = next(tool for tool in TOOLS if tool.name == name)
    prepared = tool.prepare(folder, rest_uri)
    if meanwhile is not None:
        prepared.meanwhile[meanwhile]()
    began_s, watch = time.time(), TreeStopwatch()
    prepared.run()
    wall_s, cpu_s = watch.read()
    return ToolRun(began_s, wall_s, cpu_s, prepared.live_files(), prepared.details)


if __name__ == "__main__":
    uri = sys.argv[3] if sys.argv[3] != "-" else None
    done = _main(sys.argv[1], Path(sys.argv[2]), uri, sys.argv[4] if len(sys.argv) > 4 else None)
    print(json.dumps(asdict(done)), flush=True)

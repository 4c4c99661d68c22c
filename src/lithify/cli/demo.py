"""`lithify demo`: a small table, and a database, before and after a compaction, with all rows compared."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.base.errors import LithifyError, Refused
from lithify.cli.options.command import CommandContext, command
from lithify.datasets.options import CommandArgs
from lithify.views import text
from lithify.views.consoles import write_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

DAYS = 14
FILES_PER_DAY = 6
ROWS_PER_FILE = 2_000
FLUSHES = 6
KEYS = 4_000
SEED = 7
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CATALOG = "demo"
URL = f"iceberg://{CATALOG}/db.events"


class WrongRows(LithifyError):
    """A compaction of the demonstration has changed rows."""


@command()
def demo(
    context: CommandContext,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="A new folder for the data, which is kept.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a small table, and a database, compact them, and compare all rows before and after.

    The table is made and read with PyIceberg. The database needs SlateDB's client (pip install slatedb);
    without it, that part is left out. Without FOLDER the data are deleted at the end.

    Example:

        lithify demo
    """
    if context.as_json:
        raise Refused("the demonstration is for people and has no --json")
    with _new_folder(folder) as place:
        _demonstrate_table(context, place / "table")
        if find_spec("slatedb") is None:
            write_line("SlateDB's client is not installed (pip install slatedb), so no database is shown.")
        else:
            _demonstrate_database(context, place / "database")
        if folder is not None:
            write_line(f"The data are in {place}.")


@contextmanager
def _new_folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="lithify-demo-") as made:
            yield Path(made)
        return
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be created: {error.strerror}; name a new folder") from error
    yield folder.absolute()


def _compact(context: CommandContext, url: str) -> None:
    from lithify.cli.once import compact_once

    write_line(f"$ lithify compact {url}", at_once=True)
    compact_once(context, url, CommandArgs(), take_over=False)


def _compare(before: object, after: object, reader: str, rows: int) -> None:
    if before != after:
        raise WrongRows(f"the rows that {reader} reads differ after the compaction: please report this")
    write_line(f"{reader} reads the same {rows:,} rows as before.\n", at_once=True)


def _demonstrate_table(context: CommandContext, folder: Path) -> None:
    write_line(f"A table: {DAYS} days, {text.count(DAYS * FILES_PER_DAY, 'small file')}.", at_once=True)
    uri = f"sqlite:///{folder}/catalog.db"
    table = _make_table(folder, uri)
    rows, cost = _rows_of(table), _query_cost(table)
    _compact(replace(context, sets=[*(context.sets or ()), f"store_options.uri={uri}"]), URL)
    table = table.refresh()
    _compare(rows, _rows_of(table), "PyIceberg", rows.num_rows)
    write_line(f"A query of one day read {cost} before, and reads {_query_cost(table)} now.\n", at_once=True)


def _make_table(folder: Path, uri: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog.sql import SqlCatalog

    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True)
    catalog = SqlCatalog(CATALOG, uri=uri, warehouse=warehouse.as_uri())
    catalog.create_namespace("db")
    schema = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("id", pa.int64()), ("value", pa.float64())])
    table = catalog.create_table("db.events", schema)
    rng = random.Random(SEED)
    paths = []
    for number in range(DAYS * FILES_PER_DAY):
        since = START + number * DAY / FILES_PER_DAY
        times = [since + rng.random() * DAY / FILES_PER_DAY for _ in range(ROWS_PER_FILE)]
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        path = warehouse / f"{number:03}.parquet"
        values = [rng.gauss(20, 5) for _ in ids]
        pq.write_table(pa.table([times, list(ids), values], schema=schema), path)
        paths.append(path.as_uri())
    table.add_files(paths)
    return table.refresh()


def _rows_of(table: Table) -> pa.Table:
    return table.scan().to_arrow().sort_by("id").combine_chunks()


def _query_cost(table: Table) -> str:
    """Return what a query of one day reads, on average over all days."""
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan

    sizes = []
    for day in range(DAYS):
        since, until = (START + n * DAY for n in (day, day + 1))
        times = And(GreaterThanOrEqual("time", since.isoformat()), LessThan("time", until.isoformat()))
        sizes += [task.file.file_size_in_bytes for task in table.scan(row_filter=times).plan_files()]
    return f"{text.size(sum(sizes) / DAYS)} in {text.number(len(sizes) / DAYS)} files"


def _demonstrate_database(context: CommandContext, folder: Path) -> None:
    write_line(f"A database: {text.count(FLUSHES, 'flush', 'flushes')} of overwritten keys.", at_once=True)
    expected = asyncio.run(_write_database(folder))
    _compact(context, str(folder))
    _compare(expected, asyncio.run(_read_database(folder)), "SlateDB's client", len(expected))


def _builder(folder: Path) -> Any:
    """Return the builder of a database without a compactor of its own."""
    from slatedb import uniffi

    builder = uniffi.DbBuilder(folder.name, uniffi.ObjectStore.resolve(folder.parent.as_uri()))
    settings = json.loads(uniffi.Settings.default().to_json_string()) | {"compactor_options": None}
    builder.with_settings(uniffi.Settings.from_json_string(json.dumps(settings)))
    return builder


async def _write_database(folder: Path) -> dict[bytes, bytes]:
    """Write a database with overwrites and deletes. Return the rows that it must have."""
    from slatedb import uniffi

    rng, rows = random.Random(SEED), dict[bytes, bytes]()
    database = await _builder(folder).build()
    for flush in range(FLUSHES):
        batch = uniffi.WriteBatch()
        for number in rng.sample(range(KEYS), KEYS // 2):
            key = b"user%06d" % number
            if rng.random() < 0.1:
                batch.delete(key)
                rows.pop(key, None)
            else:
                rows[key] = b"value %d of flush %d " % (number, flush) + rng.randbytes(50).hex().encode()
                batch.put(key, rows[key])
        await database.write(batch)
        await database.flush_with_options(uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE))
    await database.shutdown()
    return rows


async def _read_database(folder: Path) -> dict[bytes, bytes]:
    from slatedb import uniffi

    database = await _builder(folder).build()
    everything = uniffi.KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)
    iterator = await database.scan(everything)
    rows = dict[bytes, bytes]()
    while found := await iterator.next_batch(KEYS):
        rows |= {bytes(row.key): bytes(row.value) for row in found}
    await database.shutdown()
    return rows

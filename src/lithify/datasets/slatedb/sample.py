"""A small database for `lithify demo`, written and read with SlateDB's client."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from lithify.base.errors import Refused
from lithify.datasets.options import Sample

FLUSHES = 6
KEYS = 4_000
SEED = 7


def sample(folder: Path) -> Sample:
    """Make the database in an empty folder. Raise `Refused` if the client is not installed."""
    place = folder / "db"
    try:
        expected = asyncio.run(_write_database(place))
    except ImportError as error:
        raise Refused("SlateDB's client is not installed (pip install slatedb)") from error
    return Sample(
        what=f"A database: {FLUSHES} flushes with overwrites and deletes",
        url=str(place),
        settings={},
        reader="SlateDB's client",
        rows=expected,
        read=lambda: asyncio.run(_read_database(place)),
    )


def _builder(folder: Path) -> Any:
    """Return the builder of a database without a compactor of its own."""
    from slatedb import uniffi

    builder = uniffi.DbBuilder(str(folder).strip("/"), uniffi.ObjectStore.resolve("file:///"))
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

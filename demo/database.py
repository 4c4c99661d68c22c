"""A database: from nothing to one that is compacted, judged by SlateDB's own client.

1. Write a database with the official client: overlapping flushes, overwrites, deletes, rows with a
   time to live, and a snapshot that stays open. Remember every row in a dictionary, the model.
2. Show the shape of the LSM tree and what Lithify would do about it.
3. Run `lithify compact` in a process of its own, while the database stays open.
4. Read everything back with the official client, point by point and as a scan, through the open
   database, through the snapshot and after opening anew, and compare with the model.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.judge.official import Database, Delete, Put, Snapshot, Write, open_db

from demo.shell import lithify, say

FLUSHES = 10
KEYS = 40_000
WRITES_PER_FLUSH = 13_000
VALUE_BYTES = 400
SECOND_MS = 1000
SEED = 7

Model = dict[bytes, bytes]


def demonstrate(path: Path) -> bool:
    """Whether every row was right."""
    say(f"1. Writing a database with SlateDB's own client: {path}")
    # A writer without a coordinator of its own: that is Lithify's part now.
    database = open_db(path, settings={"compactor_options": None, "l0_max_ssts": 64})
    snapshot_model, model, snapshot = _write(database)
    say(f"   {FLUSHES} flushes, {len(model):,} live rows, one snapshot held open")
    say("\n2. What is there, and what Lithify would do")
    lithify("plan", str(path))
    say("\n3. Compacting on Spark, while the database stays open")
    lithify("compact", "--full", str(path))
    lithify("inspect", "compactions", str(path))
    say("\n4. Reading everything back with SlateDB's own client")
    verdicts = {
        "through the open database": _matches(database, model),
        "through the snapshot taken before": _matches(snapshot, snapshot_model),
    }
    snapshot.release()
    database.close()
    with open_db(path) as reopened:
        verdicts["after opening it anew"] = _matches(reopened, model)
    for where, mistakes in verdicts.items():
        say(f"   {where}: {'every row is right' if not mistakes else f'{mistakes} WRONG ROWS'}")
    return not any(verdicts.values())


def _write(database: Database) -> tuple[Model, Model, Snapshot]:
    rng = random.Random(SEED)
    model: Model = {}
    snapshot: Snapshot | None = None
    snapshot_model: Model = {}
    for flush in range(FLUSHES):
        writes: list[Write] = []
        for number in rng.sample(range(KEYS), WRITES_PER_FLUSH):
            key = b"user%08d" % number
            if rng.random() < 0.15:
                writes.append(Delete(key))
                model.pop(key, None)
            else:
                value = rng.randbytes(VALUE_BYTES // 2).hex().encode()
                writes.append(Put(key, value))
                model[key] = value
        writes += [Put(b"session%06d" % n, b"expired", ttl_ms=SECOND_MS) for n in range(1000)]
        database.write_batch(writes)
        if flush == FLUSHES // 2:
            # Rows with a time to live are left out of the comparison: time goes on meanwhile.
            snapshot, snapshot_model = database.snapshot(), dict(model)
        database.flush()
    assert snapshot is not None
    # Expiry counts by the clock the writer has recorded, so a last flush comes after the time to live.
    time.sleep(2 * SECOND_MS / 1000)
    database.put(b"user-last", b"done")
    model[b"user-last"] = b"done"
    database.flush()
    return snapshot_model, model, snapshot


def _matches(reader: Database | Snapshot, model: Model) -> int:
    """How many rows differ from the model, in a scan and in point reads of every key."""
    scanned = {key: value for key, value in reader.scan() if not key.startswith(b"session")}
    wrong = {key for key in scanned.keys() | model.keys() if scanned.get(key) != model.get(key)}
    read = reader.get_many(model)
    wrong |= {key for key, value in model.items() if read[key] != value}
    return len(wrong)

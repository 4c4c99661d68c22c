"""A writer that writes as fast as it can, in a process of its own: `python -m benchmarks.writer_side TASK`,
TASK being JSON. It prints what it has written, second by second.

The official client, its settings as by default but for what `settings` says. `WRITERS` writers put batches of
`BATCH_ROWS` rows with random keys, each one after the other; nothing waits but what the client makes wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tests.judge.client import open_store, run, split_target

from benchmarks.data import _copy_values_at_once, _random_text
from benchmarks.s3_run import OFFICIAL, options_of
from slatedb import uniffi

WRITERS = 8
BATCH_ROWS = 64
KEYS = 1_000_000
VALUE_BYTES = 1024
ROW_BYTES = len(b"user%012d" % 0) + VALUE_BYTES
STALL_S = 1.0
"""A put that takes longer is a stall."""
GARBAGE: dict[str, Any] = {
    "wal_options": {"interval": "5s", "min_age": "20s"},
    "compacted_options": {"interval": "10s", "min_age": "60s"},
    "manifest_options": {"interval": "30s", "min_age": "120s"},
    "compactions_options": {"interval": "30s", "min_age": "120s"},
}
"""Collected sooner than by default, so that the store, which is memory, holds all of it."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to write."""

    url: str
    endpoint: str
    seconds: float
    with_compactor: bool
    """Whether the client compacts, in this process."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written. Times are in seconds since 1970."""

    began_s: float
    seconds: float
    bytes: int
    """Of keys and values in puts that were accepted."""
    puts: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    stalled_s: float
    """For which at least one put took longer than `STALL_S`."""
    bytes_by_second: tuple[int, ...]


def settings(*, with_compactor: bool) -> Any:
    """The client's settings."""
    chosen: dict[str, Any] = json.loads(uniffi.Settings.default().to_json_string())
    if not with_compactor:
        chosen["compactor_options"] = None
    for name, options in GARBAGE.items():
        chosen["garbage_collector_options"][name] |= options
    return uniffi.Settings.from_json_string(json.dumps(chosen))


async def _open(task: Task) -> Any:
    root, path = split_target(task.url)
    builder = uniffi.DbBuilder(path, open_store(root, options_of(task.endpoint, OFFICIAL)))
    builder.with_settings(settings(with_compactor=task.with_compactor))
    return await builder.build()


async def _write(database: Any, seconds: float) -> Written:
    rng = random.Random(1)
    text = _random_text(rng)
    latencies: list[tuple[float, float]] = []
    began_s, start_s = time.time(), time.perf_counter()

    def batch() -> Any:
        rows = uniffi.WriteBatch()
        for _ in range(BATCH_ROWS):
            at = int(rng.random() * (len(text) - VALUE_BYTES))
            rows.put(b"user%012d" % int(rng.random() * KEYS), text[at : at + VALUE_BYTES])
        return rows

    async def writer() -> None:
        while (put_s := time.perf_counter()) < start_s + seconds:
            rows = batch()
            put_s = time.perf_counter()
            await database.write(rows)
            latencies.append((put_s - start_s, time.perf_counter() - put_s))

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return summary(began_s, seconds, latencies)


def summary(began_s: float, seconds: float, latencies: list[tuple[float, float]]) -> Written:
    """Of puts by their beginning and how long they took, in seconds; what ended too late counts for nothing
    but the stalls."""
    found = np.array(latencies, np.float64).reshape(-1, 2)
    starts, took = found[:, 0], found[:, 1]
    ends = np.minimum(starts + took, seconds)
    in_time = starts + took <= seconds
    counts = np.bincount(np.floor(ends[in_time]).astype(int), minlength=int(np.ceil(seconds)))
    size = BATCH_ROWS * ROW_BYTES
    return Written(
        began_s=began_s,
        seconds=seconds,
        bytes=int(in_time.sum()) * size,
        puts=int(in_time.sum()),
        p50_ms=float(np.percentile(took, 50)) * 1000,
        p99_ms=float(np.percentile(took, 99)) * 1000,
        longest_ms=float(took.max()) * 1000,
        stalled_s=covered_s([(s, e) for s, e, t in zip(starts, ends, took, strict=True) if t > STALL_S]),
        bytes_by_second=tuple(int(count) * size for count in counts),
    )


def covered_s(spans: list[tuple[float, float]]) -> float:
    """How long it was that at least one of these spans lasted."""
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _main(task: Task) -> None:
    _copy_values_at_once()
    database = run(_open(task), "open the database")
    written = run(_write(database, task.seconds), "write", task.seconds + 600)
    print(json.dumps(asdict(written)), flush=True)
    os._exit(0)  # closing would write for long, and nobody reads it


if __name__ == "__main__":
    _main(Task(**json.loads(sys.argv[1])))

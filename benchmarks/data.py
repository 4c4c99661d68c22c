"""The databases that are measured: made once by the official client, then kept.

1. A database is kept under a name that holds everything it depends on. One whose making was
   interrupted has no mark and is made anew.
2. Every flush writes a random part of the keys in random order, with values cut from a text of
   random words at random places, so that codecs find something to compress, but not much.
3. Measurements run on copies. A copy shares the SST files (hard links: they are never changed), so all
   copies are equally warm in the page cache; outputs and metadata are its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.judge.official import Delete, OpenOptions, Put, Write, open_db

from benchmarks.cases import FLUSHES, Case
from slatedb import uniffi

VERSION = 1
"""Part of the kept names: to be raised when other data is made of the same case."""
BATCH_ROWS = 2000
MAKE_TIMEOUT_S = 1800
GIB = 1 << 30
MARK = "made.json"
LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


def database_of(case: Case, cache: Path, scale: float) -> Path:
    """The database of a case in the folder `cache`, made if it is not there."""
    flushes = "" if case.flushes == FLUSHES else f"-{case.flushes}"
    folder = cache / f"v{VERSION}-{case.value_bytes}B-{case.codec}-{case.delete_fraction}-{scale}{flushes}"
    if not (folder / MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "benchmarks.data", json.dumps(asdict(case)), str(folder), str(scale)]
        subprocess.run(command, check=True, timeout=MAKE_TIMEOUT_S)
        (folder / MARK).write_text(json.dumps(asdict(case)))
    return folder / "db"


def copy_for_a_run(database: Path, folder: Path) -> Path:
    """A copy that may be compacted, with the SSTs shared."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(database, folder, ignore=shutil.ignore_patterns("*.sst"))
    for sst in database.rglob("*.sst"):
        os.link(sst, folder / sst.relative_to(database))
    return folder


def warm_up_page_cache(database: Path) -> None:
    """Read all SSTs once."""
    for sst in database.rglob("*.sst"):
        with sst.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def open_options(case: Case) -> OpenOptions:
    """How the official client opens the databases of a case, to write as well as to compact."""
    settings: dict[str, object] = {
        "wal_enabled": False,
        "compression_codec": case.codec,
        "l0_sst_size_bytes": 4 * GIB,
        "max_unflushed_bytes": 16 * GIB,
    }
    return {"settings": settings, "timeout_s": 300.0}


def _copy_values_at_once() -> None:
    """The client's Python binding passes bytes to Rust byte by byte in a Python loop, which would make
    the making of the data ten times slower. In this process it copies them in one call."""
    binding = uniffi._generated

    def lower(value: bytes) -> Any:
        framed = len(value).to_bytes(4, "big") + value
        buffer = binding._UniffiRustBuffer.alloc(len(framed))
        ctypes.memmove(buffer.data, framed, len(framed))
        buffer.len = len(framed)
        return buffer

    binding._UniffiFfiConverterBytes.lower = staticmethod(lower)


def _make(case: Case, folder: Path, scale: float) -> None:
    rng = random.Random(case.name)
    text = _random_text(rng)
    rows = int(case.rows * scale)
    with open_db(folder / "db", **open_options(case)) as database:
        for _ in range(case.flushes):
            numbers = rng.sample(range(rows), rows // case.flushes)
            for start in range(0, len(numbers), BATCH_ROWS):
                database.write_batch(_writes(rng, case, text, numbers[start : start + BATCH_ROWS]))
            database.flush()


def _writes(rng: random.Random, case: Case, text: bytes, numbers: list[int]) -> Iterator[Write]:
    last = len(text) - case.value_bytes
    for number in numbers:
        key = b"user%012d" % number
        if case.delete_fraction and rng.random() < case.delete_fraction:
            yield Delete(key)
        else:
            start = int(rng.random() * last)
            yield Put(key, text[start : start + case.value_bytes])


def _random_text(rng: random.Random, size: int = 1 << 22) -> bytes:
    words = [bytes(rng.choices(LETTERS, k=rng.randint(4, 12))) for _ in range(200)]
    text = bytearray()
    while len(text) < size:
        text += b" ".join(rng.choices(words, k=1000)) + b" "
    return bytes(text)


if __name__ == "__main__":
    _copy_values_at_once()
    _make(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]), float(sys.argv[3]))

"""Databases for killing processes over: flushes that overlap, with overwrites and deletes, and a model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Unpack

from tests.judge.official import Database, Delete, OpenOptions, Put, Write, open_db

Model = dict[bytes, bytes]
FLUSHES = 6


def key_of(number: int) -> bytes:
    """The key of a row. Its first byte may serve as the name of one of four segments."""
    return b"%d-%08d" % (number % 4, number)


def make_database(path: Path, *, keys: int, value_bytes: int, seed: int = 1) -> Model:
    """A closed database of `FLUSHES` overlapping L0s, each over a third of `keys`; what a scan shows."""
    rng = random.Random(seed)
    model: Model = {}
    with open_db(path) as database:
        for _ in range(FLUSHES):
            write_some(database, model, rng, rng.sample(range(keys), keys // 3), value_bytes)
            database.flush()
    return model


def write_some(
    database: Database, model: Model, rng: random.Random, numbers: list[int], value_bytes: int
) -> None:
    """Put and delete (one in ten) these keys in one batch, and in the model."""
    writes: list[Write] = []
    for number in numbers:
        key = key_of(number)
        if rng.random() < 0.1:
            writes.append(Delete(key))
            model.pop(key, None)
        else:
            model[key] = rng.randbytes(value_bytes)
            writes.append(Put(key, model[key]))
    database.write_batch(writes)


def check_rows(path: Path, model: Model, **options: Unpack[OpenOptions]) -> None:
    """The official client opens the database and shows exactly the rows of the model."""
    with open_db(path, **options) as database:
        assert dict(database.scan()) == model

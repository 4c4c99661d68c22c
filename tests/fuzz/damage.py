"""Damage, from a generator of chance: the same state gives the same damage.

1. Bytes: bits flipped, pieces cut out, put in, repeated, lengths and offsets replaced
   (`tests.datasets.slatedb.fuzz`).
2. Records, as a FlatBuffer holds them: one leaf replaced by a number, a text or bytes that no writer would
   put there, a part left out, a list repeated, cut or turned around. What is written again from the record
   is a sound FlatBuffer, so the damage gets past the decoder.
3. JSON: the same, with what only JSON can say (1e999, NaN, half a character, thousands of brackets).
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.datasets.slatedb.fuzz import damaged

__all__ = ["HOSTILE_NUMBERS", "damaged", "damaged_json", "damaged_record"]

HOSTILE_NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 8, 127, 128, 255, 256),
    *(
        (1 << bits) + delta
        for bits in (15, 16, 31, 32, 40, 47, 48, 52, 53, 62, 63, 64)
        for delta in (-1, 0, 1)
    ),
    *(-1, -2, -(1 << 31), -(1 << 63), -(1 << 63) - 1),
)
_HOSTILE_TEXTS = (
    "",
    "x",
    "..",
    "../..",
    "/",
    "a//b",
    "\0",
    "#1",
    "%00",
    "ä" * 300,
    "[red]",
    "\x1b[31m",
    "A" * 70_000,
)
_HOSTILE_BYTES = (b"", b"\0", b"\xff", b"\xff" * 9, b"k", b"k0000", b"k9999", b"\0" * 70_000)
_RAW_JSON = (
    "1e999",
    "-1e999",
    "NaN",
    "-0.0",
    '"\\ud800"',
    "9" * 400,
    "9" * 5000,
    "[" * 100_000,
    "1.5",
    "null",
    "true",
)
MAX_REPEATS = 300
_TRIES = 20


def damaged_record(record: Any, rng: random.Random) -> Any:
    """A copy of nested named tuples, tuples, bytes, texts and numbers with one thing wrong in it."""
    leaves = list(_places(record, ()))
    for _ in range(_TRIES):
        place = rng.choice(leaves)
        before = _at(record, place)
        after = _other(before, rng)
        if after != before:
            return _with(record, place, after)
    return record


def _places(value: Any, place: tuple[int, ...]) -> Any:
    if place:
        yield place
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from _places(part, (*place, i))


def _at(value: Any, place: tuple[int, ...]) -> Any:
    for i in place:
        value = value[i]
    return value


def _with(value: Any, place: tuple[int, ...], part: Any) -> Any:
    if not place:
        return part
    items = [_with(item, place[1:], part) if i == place[0] else item for i, item in enumerate(value)]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _other(value: Any, rng: random.Random) -> Any:
    if value is None:
        return rng.choice((b"", (), 0, ""))
    if isinstance(value, int):
        return rng.choice((rng.choice(HOSTILE_NUMBERS), value + rng.randrange(-3, 4), -value))
    if isinstance(value, str):
        return rng.choice(_HOSTILE_TEXTS)
    if isinstance(value, bytes):
        return rng.choice((rng.choice(_HOSTILE_BYTES), damaged(value, rng) if value else b"x", None))
    if hasattr(value, "_fields"):
        return rng.choice((None, type(value)(*(_other(part, rng) for part in value))))
    return _other_list(value, rng)


def _other_list(items: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...] | None:
    if not items:
        return None
    i = rng.randrange(len(items))
    match rng.randrange(6):
        case 0:
            return ()
        case 1:
            return (*items[:i], *items[i + 1 :])
        case 2:
            return tuple(reversed(items))
        case 3:
            return (*items, items[i])
        case 4:
            return items * rng.randrange(2, MAX_REPEATS)
        case _:
            return None


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    """A document with something wrong in it: mostly it is JSON still."""
    if rng.random() < 0.2:
        return damaged(data, rng)
    try:
        document = json.loads(data)
    except ValueError:
        return damaged(data, rng)
    mark = "\ue000here"
    raw = rng.choice((*_RAW_JSON, str(rng.choice(HOSTILE_NUMBERS)), json.dumps(rng.choice(_HOSTILE_TEXTS))))
    if isinstance(document, dict) and document and rng.random() < 0.9:
        name = rng.choice(sorted(document))
        if rng.random() < 0.15:
            del document[name]
        else:
            document[name] = [mark] if rng.random() < 0.1 else mark
    else:
        document = mark
    return (
        json.dumps(document, ensure_ascii=False).replace(json.dumps(mark, ensure_ascii=False), raw).encode()
    )

"""Damage, from a generator of chance: the same state gives the same damage.

1. Bytes: bits flipped, pieces cut out, put in, repeated, lengths and offsets replaced
   (`tests.datasets.slatedb.fuzz`).
2. Records, as FlatBuffers, Avro and JSON hold them: one leaf replaced by a number, a text or bytes that no
   writer would put there, a part left out, a list repeated, cut or turned around. What is written again from
   the record is sound in its format, so the damage gets past the decoder.
3. JSON: the same, with what only JSON can say (1e999, NaN, half a character, thousands of brackets).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    "file:///dev/zero",
    "s3://nowhere/x",
    "null",
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


Key = int | str
Place = tuple[Key, ...]


def damaged_record(record: Any, rng: random.Random) -> Any:
    """A copy of nested named tuples, tuples, lists, dictionaries and leaves with one thing wrong in it."""
    places = list(_places(record, ()))
    for _ in range(_TRIES if places else 0):
        place = rng.choice(places)
        before = _at(record, place)
        after = _other(before, rng)
        if after != before:
            return _with(record, place, after)
    return record


def _parts(value: Any) -> Iterable[tuple[Key, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, tuple | list) else ()


def _places(value: Any, place: Place) -> Iterator[Place]:
    if place:
        yield place
    for key, part in _parts(value):
        yield from _places(part, (*place, key))


def _at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def _with(value: Any, place: Place, part: Any) -> Any:
    if not place:
        return part
    items = {key: _with(item, place[1:], part) if key == place[0] else item for key, item in _parts(value)}
    if isinstance(value, dict):
        return items
    return type(value)(*items.values()) if hasattr(value, "_fields") else type(value)(items.values())


def _other(value: Any, rng: random.Random) -> Any:
    if value is None:
        return rng.choice((b"", (), 0, ""))
    if isinstance(value, bool):
        return rng.choice((not value, None))
    if isinstance(value, int):
        return rng.choice((rng.choice(HOSTILE_NUMBERS), value + rng.randrange(-3, 4), -value))
    if isinstance(value, str):
        return rng.choice(_HOSTILE_TEXTS)
    if isinstance(value, bytes):
        return rng.choice((rng.choice(_HOSTILE_BYTES), damaged(value, rng) if value else b"x", None))
    if hasattr(value, "_fields"):
        return rng.choice((None, type(value)(*(_other(part, rng) for part in value))))
    if isinstance(value, dict):
        return _other_object(value, rng)
    return _other_list(value, rng)


def _other_object(value: dict[str, Any], rng: random.Random) -> dict[str, Any] | None:
    if not value or rng.random() < 0.1:
        return None
    name = rng.choice(sorted(value))
    if rng.random() < 0.5:
        return {key: part for key, part in value.items() if key != name}
    return {**value, rng.choice(_HOSTILE_TEXTS): value[name]}


def _other_list(items: Sequence[Any], rng: random.Random) -> Sequence[Any] | None:
    if not items:
        return None
    of: Callable[[Iterable[Any]], Sequence[Any]] = list if isinstance(items, list) else tuple
    i = rng.randrange(len(items))
    match rng.randrange(6):
        case 0:
            return of(())
        case 1:
            return of((*items[:i], *items[i + 1 :]))
        case 2:
            return of(reversed(items))
        case 3:
            return of((*items, items[i]))
        case 4:
            return of((*items,) * rng.randrange(2, MAX_REPEATS))
        case _:
            return None


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    """A document with something wrong in it: mostly it is JSON still."""
    if rng.random() < 0.2:
        return damaged(data, rng)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(data, rng)
    if rng.random() < 0.5:
        return json.dumps(damaged_record(document, rng), default=repr).encode()
    mark = "\ue000here"
    raw = rng.choice((*_RAW_JSON, str(rng.choice(HOSTILE_NUMBERS)), json.dumps(rng.choice(_HOSTILE_TEXTS))))
    places = list(_places(document, ()))
    if rng.random() < 0.5:
        places = [place for place in places if len(place) == 1]  # deep ones are by far the most
    marked = _with(document, rng.choice(places) if places else (), mark)
    return json.dumps(marked, ensure_ascii=False).replace(json.dumps(mark, ensure_ascii=False), raw).encode()

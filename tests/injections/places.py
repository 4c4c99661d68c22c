"""Where texts lie: one of them in one object is replaced, and the object is sound in its format again."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lithify.datasets.slatedb import ledger as ledger_codec
from lithify.datasets.slatedb import manifest as manifest_codec
from lithify.datasets.slatedb.flatbuffer import read, write
from tests.datasets.iceberg.avro import read_avro, write_avro

Make = Callable[[], str]
Place = tuple[Any, ...]
_KEY = "\0key"
"""At the end of a place: the key itself."""
_NAMES = ("lithify.x", "py-io-impl", "write.py-location-provider.impl", "s3.endpoint", "comment", "owner")
_MAX_NAME_BYTES = 100


class Nowhere(Exception):
    """There is no text in the object."""


def inject(path: Path, rng: random.Random, make: Make) -> str:
    """Replace one text in an object by what `make` gives; say which. `Nowhere` when it has none."""
    data = path.read_bytes()
    if path.suffix == ".avro":
        return _in_avro(path, rng, make)
    if path.suffix == ".parquet":
        return _in_parquet(path, rng, make)
    if path.suffix in (".manifest", ".compactions"):
        return _in_flatbuffer(path, data, rng, make)
    try:
        document = json.loads(data)
    except ValueError:
        return _in_text(path, data, rng, make)
    changed, where = _changed(document, rng, make)
    path.write_text(json.dumps(changed))
    return where


def inject_name(folder: Path, rng: random.Random, make: Make) -> str:
    """Put one more object into a folder whose name is what `make` gives, as far as a name can be."""
    others = [path for path in folder.rglob("*") if path.is_file()]
    like = rng.choice(others)
    name = make().replace("/", "_").replace("\0", "_")[:_MAX_NAME_BYTES] or "x"
    while len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        name = name[: len(name) // 2]
    made = like.with_name(rng.choice((name, f"{name}{like.suffix}", f"{like.stem}{name}")))
    made.write_bytes(like.read_bytes())
    return f"a name in {like.parent.name}"


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    """All texts in a value, and the keys of its objects."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            if isinstance(key, str):
                yield (*place, key, _KEY)
            yield from _places(part, (*place, key))
    elif isinstance(value, list | tuple):
        for n, part in enumerate(value):
            yield from _places(part, (*place, n))


def _changed(value: Any, rng: random.Random, make: Make) -> tuple[Any, str]:
    places = list(_places(value))
    if not places:
        raise Nowhere
    # As often a field of each name as another, however many there are of it.
    names = sorted({_name(place) for place in places})
    name = rng.choice(names)
    place = rng.choice([place for place in places if _name(place) == name])
    if name.endswith("properties.key") and rng.random() < 0.5:
        return _with(value, (*place[:-2], rng.choice(_NAMES)), make()), f"{name} added"
    return _with(value, place, make()), name


def _name(place: Place) -> str:
    return ".".join("key" if part == _KEY else part for part in place[-3:] if isinstance(part, str))


def _with(value: Any, place: Place, text: str) -> Any:
    if not place:
        return text
    if place[1:] == (_KEY,):
        return {(text if key == place[0] else key): part for key, part in value.items()}
    if isinstance(value, dict):
        found = {
            key: _with(part, place[1:], text) if key == place[0] else part for key, part in value.items()
        }
        return found if place[0] in value else {**value, place[0]: text}
    parts = [_with(part, place[1:], text) if n == place[0] else part for n, part in enumerate(value)]
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts)


def _in_avro(path: Path, rng: random.Random, make: Make) -> str:
    before = read_avro(path)
    if rng.random() < 0.3:
        key = rng.choice(sorted(before.said))
        try:
            changed, where = _changed(json.loads(before.said[key]), rng, make)
            after, where = json.dumps(changed), f"{key}: {where}"
        except (ValueError, Nowhere):
            after, where = make(), key
        write_avro(path, replace(before, said={**before.said, key: after}))
        return f"what a manifest says of itself: {where}"
    changed, where = _changed(list(before.records), rng, make)
    write_avro(path, replace(before, records=changed))
    return f"a manifest's {where}"


def _in_parquet(path: Path, rng: random.Random, make: Make) -> str:
    table = pq.read_table(path)
    if rng.random() < 0.5:
        column = rng.choice(table.column_names)
        table = table.rename_columns([make() if name == column else name for name in table.column_names])
        where = "the name of a column"
    else:
        table = table.replace_schema_metadata({make(): make(), "iceberg.schema": make()})
        where = "metadata of a footer"
    pq.write_table(table, path)
    return where


def _in_flatbuffer(path: Path, data: bytes, rng: random.Random, make: Make) -> str:
    (version,) = struct.unpack(">H", data[:2])
    shape: Any = ledger_codec._LEDGER
    if path.suffix == ".manifest":
        shape = manifest_codec._MANIFEST_V1 if version == 1 else manifest_codec._MANIFEST_V2
    record = read(data[2:], shape, "sound")
    changed, where = _changed_record(record, rng, make)
    path.write_bytes(data[:2] + write(shape, changed))
    return where


def _changed_record(record: Any, rng: random.Random, make: Make) -> tuple[Any, str]:
    """A named tuple of such: texts, fields that are none where a text may stand, and bytes."""
    places = [place for place in _record_places(record, ()) if place]
    fields = sorted({place[-1] for place in places if isinstance(place[-1], str)})
    field = rng.choice(fields)
    place = rng.choice([place for place in places if place[-1] == field])
    return _with_field(record, place, make()), f"{path_of(place)}"


def path_of(place: Place) -> str:
    return ".".join(str(part) for part in place if isinstance(part, str))


def _record_places(value: Any, place: Place) -> Iterator[Place]:
    if hasattr(value, "_fields"):
        for field, part in zip(value._fields, value, strict=True):
            yield from _record_places(part, (*place, field))
    elif isinstance(value, tuple | list):
        for n, part in enumerate(value):
            yield from _record_places(part, (*place, n))
    elif isinstance(value, str | bytes) or (value is None and place and _may_be_text(place[-1])):
        yield place


def _may_be_text(field: object) -> bool:
    return isinstance(field, str) and any(word in field for word in ("uri", "path", "name", "worker", "id"))


def _with_field(value: Any, place: Place, text: str) -> Any:
    if not place:
        return text.encode("utf-8", "surrogatepass") if isinstance(value, bytes) else text
    if hasattr(value, "_fields"):
        fields = {
            field: _with_field(part, place[1:], text) if field == place[0] else part
            for field, part in zip(value._fields, value, strict=True)
        }
        return type(value)(**fields)
    return tuple(
        _with_field(part, place[1:], text) if n == place[0] else part for n, part in enumerate(value)
    )


def _in_text(path: Path, data: bytes, rng: random.Random, make: Make) -> str:
    """A word in bytes of no known format, or in lines of text; of bytes as long as before."""
    words = list(re.finditer(rb"[A-Za-z0-9_:/.-]{4,}", data[: 1 << 20]))
    if not words:
        raise Nowhere
    word = rng.choice(words)
    new = make().encode("utf-8", "surrogatepass")
    if b"\0" in data:
        new = new[: len(word[0])].ljust(len(word[0]), b" ")
    path.write_bytes(data[: word.start()] + new + data[word.end() :])
    return f"a word of {path.suffix or path.name}"

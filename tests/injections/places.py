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

from lithify.datasets.slatedb.format import ledger as ledger_codec
from lithify.datasets.slatedb.format import manifest as manifest_codec
from lithify.datasets.slatedb.format.flatbuffer import read, write
from tests.datasets.iceberg.avro import read_avro, write_avro

Make = Callable[[], str]
Place = tuple[Any, ...]
_KEY = "\0key"
"""At the end of a place: the key itself."""
_NAMES = ("lithify.x", "py-io-impl", "write.py-location-provider.impl", "s3.endpoint", "comment", "owner")
_FREE = ("properties", "settings", "options", "summary")
_HOT = (
    *("path", "location", "file", "manifest", "properties", "uri", "url", "store", "options", "settings"),
    *("pattern", "owner", "reason", "worker", "holder", "host", "name", "tenant", "checkpoint", "kind"),
)
_MAX_NAME_BYTES = 100


class Nowhere(Exception):
    """There is no text in the object."""


def inject(path: Path, rng: random.Random, make: Make, field: str = "") -> tuple[str, str]:
    """Replace texts in an object by what `make` gives; return the name of their field, and say where that is.
    It is one text of any field, or all of the `field` that is named. `Nowhere` when there is none."""
    data = path.read_bytes()
    if path.suffix == ".avro":
        return _in_avro(path, rng, make, field)
    if path.suffix == ".parquet":
        return _in_parquet(path, rng, make, field)
    if path.suffix in (".manifest", ".compactions"):
        return _in_flatbuffer(path, data, rng, make, field)
    try:
        document = json.loads(data)
    except ValueError:
        return _in_text(path, data, rng, make)
    changed, name = _changed(document, rng, make, field)
    path.write_text(json.dumps(changed))
    return name, name


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


def _changed(value: Any, rng: random.Random, make: Make, field: str) -> tuple[Any, str]:
    places = [place for place in _places(value) if field in ("", _name(place))]
    if not places:
        raise Nowhere
    name = _chosen({_name(place) for place in places}, rng)
    places = [place for place in places if _name(place) == name]
    if name.endswith("properties.key"):
        for added in rng.sample(_NAMES, 3):
            value = _with(value, (*places[0][:-2], added), make())
        return value, name
    for place in places if field else [rng.choice(places)]:
        value = _with(value, place, make())
    return value, name


def _chosen(names: set[str], rng: random.Random) -> str:
    """One of the names of fields, as often as another, however many fields have it; half of the time one that
    a program may take for more than data."""
    hot = sorted(name for name in names if any(word in name.lower() for word in _HOT))
    return rng.choice(hot if hot and rng.random() < 0.5 else sorted(names))


def _name(place: Place) -> str:
    """The name of the field that a place is in; users name the keys of some objects."""
    if place and place[-1] == _KEY:
        above = [part for part in place[:-2] if isinstance(part, str)]
        return ".".join((*above[-2:], "key"))
    names = [part for part in place if isinstance(part, str)]
    if len(names) > 1 and names[-2] in _FREE:
        names[-1] = "value"
    return ".".join(names[-3:])


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


def _in_avro(path: Path, rng: random.Random, make: Make, field: str) -> tuple[str, str]:
    before = read_avro(path)
    if not field and rng.random() < 0.3:
        key = rng.choice(sorted(before.said))
        try:
            changed, name = _changed(json.loads(before.said[key]), rng, make, "")
            after = json.dumps(changed)
        except (ValueError, Nowhere):
            after, name = make(), key
        write_avro(path, replace(before, said={**before.said, key: after}))
        return "", f"what a manifest says of itself: {key}: {name}"
    records, name = _changed(list(before.records), rng, make, field)
    write_avro(path, replace(before, records=records))
    return name, f"a manifest's {name}"


def _in_parquet(path: Path, rng: random.Random, make: Make, field: str) -> tuple[str, str]:
    table = pq.read_table(path)
    name = field or rng.choice((*table.column_names, "metadata"))
    if name == "metadata":
        table = table.replace_schema_metadata({make(): make(), "iceberg.schema": make()})
    else:
        table = table.rename_columns([make() if name == column else column for column in table.column_names])
    pq.write_table(table, path)
    return name, f"a footer's {name}"


def _in_flatbuffer(path: Path, data: bytes, rng: random.Random, make: Make, field: str) -> tuple[str, str]:
    (version,) = struct.unpack(">H", data[:2])
    shape: Any = ledger_codec._LEDGER
    if path.suffix == ".manifest":
        shape = manifest_codec._MANIFEST_V1 if version == 1 else manifest_codec._MANIFEST_V2
    record = read(data[2:], shape, "sound")
    places = [place for place in _record_places(record, ()) if place and field in ("", path_of(place))]
    if not places:
        raise Nowhere
    name = _chosen({path_of(place) for place in places}, rng)
    places = [place for place in places if path_of(place) == name]
    for place in places if field else [rng.choice(places)]:
        record = _with_field(record, place, make())
    path.write_bytes(data[:2] + write(shape, record))
    return name, name


def path_of(place: Place) -> str:
    """The fields that lead to a place."""
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


def _in_text(path: Path, data: bytes, rng: random.Random, make: Make) -> tuple[str, str]:
    """A word in bytes of no known format, or in lines of text; of bytes as long as before."""
    words = list(re.finditer(rb"[A-Za-z0-9_:/.-]{4,}", data[: 1 << 20]))
    if not words:
        raise Nowhere
    word = rng.choice(words)
    new = make().encode("utf-8", "surrogatepass")
    if b"\0" in data:
        new = new[: len(word[0])].ljust(len(word[0]), b" ")
    path.write_bytes(data[: word.start()] + new + data[word.end() :])
    return "", f"a word of {path.suffix or path.name}"

"""Manifests with any fields that a writer may give them, encoded here a second time."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

SYNC = bytes(range(16))
Kind = Any
"""An Avro type."""


def long(number: int) -> bytes:
    """A number as it is written."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def sized(content: bytes) -> bytes:
    """Bytes, or a text, behind their length."""
    return long(len(content)) + content


def avro_file(schema: Kind, blocks: list[tuple[int, bytes]]) -> bytes:
    """A file of blocks, each with the number of records that it says it has."""
    said = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    meta = b"".join(sized(key.encode()) + sized(text) for key, text in said.items())
    header = b"Obj\x01" + long(len(said)) + meta + b"\0" + SYNC
    return header + b"".join(long(count) + sized(content) + SYNC for count, content in blocks)


@dataclass
class Drawn:
    """Draws schemas of manifests, and entries of them."""

    rng: Random
    unknown: bool = True
    """Whether with fields that no version has; PyIceberg reads none of these that are nested."""
    is_whole: bool = False
    """Whether with all fields that the version has."""
    _ids: int = field(default=5000, init=False)

    def file(self, entries: int) -> tuple[Kind, bytes]:
        """A manifest with so many entries: its schema and its bytes."""
        schema = self.schema()
        blocks, left = [], entries
        while left:
            count = self.rng.randint(1, left)
            blocks.append((count, b"".join(self.value(schema) for _ in range(count))))
            left -= count
        return schema, avro_file(schema, blocks)

    def schema(self) -> Kind:
        """The schema of entries of any version. What may be missing is, at times, and names are any."""
        version = self.rng.choice((1, 2, 3))
        numbers = [self._field(0, "int", limit=3)]
        numbers.append(self._field(1, "long", optional=version > 1))
        if version > 1:
            numbers += self._some([self._field(n, "long", optional=True) for n in (3, 4)])
        data_file = self._record(f"r{self._next()}", self._data_file(version))
        entry = self._mixed([*numbers, self._field(2, data_file)])
        return self._record("manifest_entry", entry)

    def _data_file(self, version: int) -> list[Kind]:
        needed = [
            self._field(100, "string"),
            self._field(101, "string", words=("PARQUET", "ORC", "AVRO")),
            self._field(102, self._record(f"r{self._next()}", self._partition())),
            self._field(103, "long"),
            self._field(104, "long"),
        ]
        if version == 1:
            needed.append(self._field(105, "long"))
        else:
            needed.append(self._field(134, "int", limit=3))
        numbers = [(108, 117), (109, 119), (110, 121), (137, 138)]
        may_miss = [self._field(n, _pairs(key, "long"), optional=True, columns=True) for n, key in numbers]
        for n, key in ((125, 126), (128, 129)):
            may_miss.append(self._field(n, _pairs(key, "bytes"), optional=True, columns=True))
        elements = self.rng.choice(("long", "int", ["null", "long"]))
        lists = {"type": "array", "items": elements, "element-id": 133}
        may_miss += [
            self._field(131, "bytes", optional=True),
            self._field(132, lists, optional=True),
            self._field(135, {**lists, "element-id": 136}, optional=True),
            self._field(140, "int", optional=True),
        ]
        if version == 3:
            may_miss += [self._field(n, "long", optional=True) for n in (142, 144, 145)]
        if version > 1:
            may_miss.append(self._field(143, "string", optional=True))
        return self._mixed(needed + self._some(may_miss))

    def _partition(self) -> list[Kind]:
        kinds = [
            *self._plain(),
            {"type": "fixed", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        ]
        chosen = self.rng.sample(kinds, self.rng.randrange(4))
        return [
            self._field(1000 + n, self._named(kind), optional=self.rng.random() < 0.8)
            for n, kind in enumerate(chosen)
        ]

    def _plain(self) -> list[Kind]:
        return [
            "boolean", "int", "long", "float", "double", "string", "bytes",
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "time-micros"},
            {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
            {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
            {"type": "fixed", "size": 16, "logicalType": "uuid"},
            {"type": "fixed", "size": 5},
        ]  # fmt: skip

    def _mixed(self, fields: list[Kind]) -> list[Kind]:
        for _ in range(self.rng.randrange(3) if self.unknown else 0):
            kind = self._named(self.rng.choice(self._plain()))
            fields.append(self._field(self._next(), kind, optional=self.rng.random() < 0.5))
        self.rng.shuffle(fields)
        return fields

    def _some(self, fields: list[Kind]) -> list[Kind]:
        return [field for field in fields if self.is_whole or self.rng.random() < 0.7]

    def _next(self) -> int:
        self._ids += 1
        return self._ids

    def _named(self, kind: Kind) -> Kind:
        if isinstance(kind, dict) and kind["type"] == "fixed":
            return {**kind, "name": f"f{self._next()}"}
        return kind

    def _field(self, field_id: int, kind: Kind, *, optional: bool = False, **hints: Any) -> Kind:
        found = {"name": f"n{self._next()}", "type": kind, "field-id": field_id, "hints": hints}
        return {**found, "type": ["null", kind], "default": None} if optional else found

    @staticmethod
    def _record(name: str, fields: list[Kind]) -> Kind:
        return {"type": "record", "name": name, "fields": fields}

    def value(self, kind: Kind, hints: dict[str, Any] | None = None) -> bytes:
        """Any value of a type, as it is written."""
        rng, hints = self.rng, hints or {}
        if isinstance(kind, list):
            return long(1) + self.value(kind[1], hints) if rng.random() < 0.7 else long(0)
        if isinstance(kind, dict):
            return self._nested(kind, hints)
        match kind:
            case "boolean":
                return bytes([rng.randrange(2)])
            case "int" | "long":
                limit = hints.get("limit")
                return long(
                    self._number(31 if kind == "int" else 63) if limit is None else rng.randrange(limit)
                )
            case "float" | "double":  # PyIceberg's compiled decoder makes the one of the other
                return struct.pack("<f" if kind == "float" else "<d", rng.randrange(-(1 << 24), 1 << 24) / 8)
            case "string":
                words = hints.get("words", ("", "a", "ä" * 70, f"s3://b/{rng.random()}"))
                return sized(rng.choice(words).encode())
            case "bytes":
                return sized(rng.randbytes(rng.choice((0, 1, 8, 100))))
        raise AssertionError(kind)

    def _nested(self, kind: Kind, hints: dict[str, Any]) -> bytes:
        match kind["type"]:
            case "record":
                return b"".join(self.value(part["type"], part["hints"]) for part in kind["fields"])
            case "fixed":
                return self.rng.randbytes(kind["size"])
            case "array":
                return self._items(kind, hints)
            case plain:
                return self.value(plain)

    def _items(self, kind: Kind, hints: dict[str, Any]) -> bytes:
        """In blocks, of which some say how many bytes they have."""
        out = b""
        for _ in range(self.rng.randrange(3)):
            count = self.rng.randint(1, 4)
            items = b"".join(self._item(kind, hints) for _ in range(count))
            out += long(-count) + long(len(items)) if self.rng.random() < 0.3 else long(count)
            out += items
        return out + long(0)

    def _item(self, kind: Kind, hints: dict[str, Any]) -> bytes:
        """PyIceberg reads numbers below 0 in lists as large ones. No count and no id is one."""
        if hints.get("columns"):
            value = kind["items"]["fields"][1]["type"]
            return long(self.rng.randrange(5)) + self.value(value, {"limit": 1 << 40})
        return self.value(kind["items"], {"limit": 1 << 31})

    def _number(self, bits: int) -> int:
        size = self.rng.choice((3, 6, 7, 13, 31, bits))
        return self.rng.randrange(-(1 << min(size, bits)), 1 << min(size, bits))


def _pairs(key_id: int, value: Kind) -> Kind:
    fields = [
        {"name": "key", "type": "int", "field-id": key_id, "hints": {}},
        {"name": "value", "type": value, "field-id": key_id + 1, "hints": {}},
    ]
    items = {"type": "record", "name": f"k{key_id}_v{key_id + 1}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": items}

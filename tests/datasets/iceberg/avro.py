"""The Avro files of a table as Iceberg's specification (format/spec.md) has them in version 2, written down a
second time, and what a file says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

Field = tuple[str, str, bool]
"""Name, type and whether it is required."""

MANIFEST_ENTRY: Mapping[int, Field] = {
    0: ("status", "int", True),
    1: ("snapshot_id", "long", False),
    2: ("data_file", "struct", True),
    3: ("sequence_number", "long", False),
    4: ("file_sequence_number", "long", False),
}
DATA_FILE: Mapping[int, Field] = {
    134: ("content", "int", True),
    100: ("file_path", "string", True),
    101: ("file_format", "string", True),
    102: ("partition", "struct", True),
    103: ("record_count", "long", True),
    104: ("file_size_in_bytes", "long", True),
    108: ("column_sizes", "map<117: int, 118: long>", False),
    109: ("value_counts", "map<119: int, 120: long>", False),
    110: ("null_value_counts", "map<121: int, 122: long>", False),
    137: ("nan_value_counts", "map<138: int, 139: long>", False),
    125: ("lower_bounds", "map<126: int, 127: bytes>", False),
    128: ("upper_bounds", "map<129: int, 130: bytes>", False),
    131: ("key_metadata", "bytes", False),
    132: ("split_offsets", "list<133: long>", False),
    135: ("equality_ids", "list<136: int>", False),
    140: ("sort_order_id", "int", False),
    143: ("referenced_data_file", "string", False),
}
MANIFEST_FILE: Mapping[int, Field] = {
    500: ("manifest_path", "string", True),
    501: ("manifest_length", "long", True),
    502: ("partition_spec_id", "int", True),
    517: ("content", "int", True),
    515: ("sequence_number", "long", True),
    516: ("min_sequence_number", "long", True),
    503: ("added_snapshot_id", "long", True),
    504: ("added_files_count", "int", True),
    505: ("existing_files_count", "int", True),
    506: ("deleted_files_count", "int", True),
    512: ("added_rows_count", "long", True),
    513: ("existing_rows_count", "long", True),
    514: ("deleted_rows_count", "long", True),
    507: ("partitions", "list<508: struct>", False),
    519: ("key_metadata", "bytes", False),
}
FIELD_SUMMARY: Mapping[int, Field] = {
    509: ("contains_null", "boolean", True),
    518: ("contains_nan", "boolean", False),
    510: ("lower_bound", "bytes", False),
    511: ("upper_bound", "bytes", False),
}
MANIFEST_KEYS = {"schema", "schema-id", "partition-spec", "partition-spec-id", "format-version", "content"}


@dataclass(frozen=True)
class AvroContent:
    """What an Avro file has and says of itself."""

    schema: Any
    records: list[Any]
    said: dict[str, str]
    """Its metadata, but for those of the format."""
    codec: str


def read_avro(path: Path) -> AvroContent:
    """The content of a file, read by another library than Lithify's."""
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        said = {key: text for key, text in reader.metadata.items() if not key.startswith("avro.")}
        return AvroContent(reader.writer_schema, list(reader), said, reader.codec)


def write_avro(path: Path, content: AvroContent, block_bytes: int = 16_000) -> None:
    """Write a file as that library does, or leave it as it was when the format cannot say this."""
    out = BytesIO()
    it = content
    fastavro.writer(out, it.schema, it.records, it.codec, sync_interval=block_bytes, metadata=it.said)
    path.write_bytes(out.getvalue())


def header_of(path: str) -> dict[str, str]:
    """The key-value metadata of an Avro file."""
    file: AvroFile[Record]
    with AvroFile(PyArrowFileIO().new_input(path), Schema()) as file:
        return dict(file.header.meta)


def fields_of(record: Mapping[str, Any]) -> dict[int, Field]:
    """The fields of an Avro record by field id, in the specification's words."""
    assert record["type"] == "record"
    return {field["field-id"]: _field(field) for field in record["fields"]}


def field_type(record: Mapping[str, Any], field_id: int) -> Any:
    """The Avro type of a field, without its union with null."""
    (field,) = [field for field in record["fields"] if field["field-id"] == field_id]
    return field["type"][1] if isinstance(field["type"], list) else field["type"]


def _field(field: Mapping[str, Any]) -> Field:
    kind = field["type"]
    if not isinstance(kind, list):
        return field["name"], _name(kind), True
    assert kind[0] == "null"
    assert len(kind) == 2
    assert "default" in field
    assert field["default"] is None
    return field["name"], _name(kind[1]), False


def _name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "record":
        return "struct"
    if kind["type"] == "array" and kind.get("logicalType") == "map":
        assert [field["name"] for field in kind["items"]["fields"]] == ["key", "value"]
        pairs = [f"{field['field-id']}: {_name(field['type'])}" for field in kind["items"]["fields"]]
        return f"map<{', '.join(pairs)}>"
    if kind["type"] == "array":
        return f"list<{kind['element-id']}: {_name(kind['items'])}>"
    return json.dumps({key: value for key, value in kind.items() if key != "name"}, sort_keys=True)


def type_names(kind: Any) -> Iterator[str]:
    """The names of all types that an Avro schema defines; each may be defined once."""
    if isinstance(kind, list):
        for option in kind:
            yield from type_names(option)
    elif isinstance(kind, dict):
        if kind["type"] in ("record", "fixed", "enum"):
            yield kind["name"]
        for field in kind.get("fields", ()):
            yield from type_names(field["type"])
        if "items" in kind:
            yield from type_names(kind["items"])


def avro_files(folder: Path) -> list[str]:
    """Paths of the Avro files in a folder."""
    return sorted(str(path) for path in folder.rglob("*.avro"))

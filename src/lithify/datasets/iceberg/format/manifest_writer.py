"""Writing manifests as Iceberg's specification requires.

PyIceberg writes them, except for differences from the specification that matter to other readers:

1. The ids of an equality delete file's columns are `int`. PyIceberg writes `long`, which Java refuses.
2. An entry has the data file that a position delete file refers to, which PyIceberg leaves out.
3. The header has the schema's id.
4. Each type has a unique name in the Avro schema, even if partition fields share a type.
5. A partition value may be null even if its column is required: a dropped field's value is.

In memory, entries have the fields of `manifests.ENTRY_VERSION`; in the file, those of the table's format
version (1 or 2).

An entry can be packed into bytes first and added later (`pack`, `add_packed`): packed entries are small to
sort or spill, and many make one block, as Java writes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION

COMPRESSION: Final = "deflate"
"""The codec of manifests and manifest lists: Java uses it and every reader has it. The table's
`write.avro.compression-codec` is about data files, and may have values that PyIceberg does not know."""
_EQUALITY_IDS = NestedField(
    135, "equality_ids", ListType(136, IntegerType(), element_required=True), required=False
)
_REFERENCED_DATA_FILE = NestedField(143, "referenced_data_file", StringType(), required=False)


class _Encoder(BinaryEncoder):
    """Encodes into memory; PyIceberg's writes each byte of a number to a stream."""

    def __init__(self) -> None:
        self.out = bytearray()

    def write(self, b: bytes) -> None:
        self.out += b

    def write_int(self, integer: int) -> None:
        datum = (integer << 1) ^ (integer >> 63)
        while datum & ~0x7F:
            self.out.append((datum & 0x7F) | 0x80)
            datum >>= 7
        self.out.append(datum)


class Packed(NamedTuple):
    """A live entry in bytes, with the fields to sort it and to describe its manifest."""

    data: bytes
    partition: tuple[Any, ...]
    sequence_number: int
    rows: int


class EntryPacker:
    """Packs live entries of one spec's manifests as existing ones."""

    def __init__(self, spec: PartitionSpec, schema: Schema, format_version: TableVersion) -> None:
        self._fields = len(spec.fields)
        self._writer: Writer = resolve_writer(
            record_schema=_entry_schema(spec, schema, ENTRY_VERSION),
            file_schema=_entry_schema(spec, schema, format_version),
        )

    def pack(self, entry: ManifestEntry) -> Packed:
        """Pack an entry and mark it as existing. Raise `CorruptObject` if it lacks sequence numbers
        (`manifests.entries_in` adds them), and an exception of any class if its partition does not fit the
        spec."""
        file, number = entry.data_file, entry.sequence_number
        if number is None or entry.file_sequence_number is None or entry.snapshot_id is None:
            raise CorruptObject(file.file_path, "is listed as an existing file, without a sequence number")
        if len(file.partition) != self._fields:
            raise ValueError(f"{file.file_path} has {len(file.partition)} partition values")
        entry.status = ManifestEntryStatus.EXISTING
        encoder = _Encoder()
        self._writer.write(encoder, entry)
        partition = tuple(file.partition[n] for n in range(len(file.partition)))
        return Packed(bytes(encoder.out), partition, number, file.record_count)


class SpecManifestWriter(ManifestWriterV2):
    def __init__(
        self,
        content: ManifestContent,
        spec: PartitionSpec,
        schema: Schema,
        output: OutputFile,
        snapshot_id: int,
        format_version: TableVersion = 2,
    ) -> None:
        super().__init__(spec, schema, output, snapshot_id, COMPRESSION)
        self._content = content
        self._version: TableVersion = format_version
        self._seen: set[tuple[Any, ...]] = set()

    def content(self) -> ManifestContent:
        return self._content

    @property
    def version(self) -> TableVersion:
        return self._version

    @property
    def _meta(self) -> dict[str, str]:
        return {
            **super()._meta,
            "schema-id": str(self._schema.schema_id),
            "content": "data" if self._content == ManifestContent.DATA else "deletes",
        }

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return _EntriesOutput(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(ENTRY_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def _with_partition(self, format_version: TableVersion) -> Schema:
        return _entry_schema(self._spec, self._schema, format_version)

    def add_packed(self, entries: Sequence[Packed]) -> None:
        """Write these entries as one block."""
        self._existing_files += len(entries)
        for entry in entries:
            self._existing_rows += entry.rows
            if entry.partition not in self._seen:
                self._seen.add(entry.partition)
                self._partitions.append(Record(*entry.partition))
        least = min(entry.sequence_number for entry in entries)
        known = self._min_sequence_number
        self._min_sequence_number = least if known is None else min(known, least)
        content, length = DeflateCodec.compress(b"".join(entry.data for entry in entries))
        encoder = self._writer.encoder
        encoder.write_int(len(entries))
        encoder.write_int(length)
        encoder.write(content + self._writer.sync_bytes)


def _entry_schema(spec: PartitionSpec, schema: Schema, format_version: TableVersion) -> Schema:
    of_spec = spec.partition_type(schema).fields
    partition = StructType(*(field.model_copy(update={"required": False}) for field in of_spec))
    fields = {field.field_id: field for field in data_file_with_partition(partition, format_version).fields}
    if format_version > 1:
        fields[_EQUALITY_IDS.field_id] = _EQUALITY_IDS
        fields[_REFERENCED_DATA_FILE.field_id] = _REFERENCED_DATA_FILE
    return manifest_entry_schema_with_data_file(format_version, StructType(*fields.values()))


class _EntriesOutput(AvroOutputFile[ManifestEntry]):
    def _write_header(self) -> None:
        schema = AvroSchemaConversion().iceberg_to_avro(self.file_schema, schema_name=self.schema_name)
        _name_apart(schema, Counter())
        meta = {**self.metadata, "avro.schema": json.dumps(schema)}
        construct_writer(META_SCHEMA).write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


def _name_apart(kind: Any, taken: Counter[str]) -> None:
    """Number repeated type names."""
    if isinstance(kind, list):
        for option in kind:
            _name_apart(option, taken)
    elif isinstance(kind, dict):
        if "name" in kind and kind["type"] in ("record", "fixed"):
            name = kind["name"]
            taken[name] += 1
            if taken[name] > 1:
                kind["name"] = f"{name}_{taken[name]}"
        for field in kind.get("fields", ()):
            _name_apart(field["type"], taken)
        _name_apart(kind.get("items"), taken)

"""Writing manifests as Iceberg's specification has them.

PyIceberg writes the manifests, except where it differs from the specification in what other readers mind:

1. The ids of an equality delete file's columns are `int`. PyIceberg has `long`, which Java refuses to read.
2. The data file that a position delete file refers to is part of an entry, which PyIceberg leaves out.
3. The header names the id of the schema.
4. Each type has a name of its own in the Avro schema, also where several partition fields are of one type.

In memory, entries are those of `manifests.ENTRY_VERSION`; in the file, of format version 2.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestWriterV2,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lithify.datasets.iceberg.manifests import ENTRY_VERSION

COMPRESSION: Final = "deflate"
"""Of manifests and manifest lists: what Java uses for them and every reader knows. The table's
`write.avro.compression-codec` is about data files, and has values that are unknown here."""
_DATA_FILE_ID = 2
_EQUALITY_IDS = NestedField(
    135, "equality_ids", ListType(136, IntegerType(), element_required=True), required=False
)
_REFERENCED_DATA_FILE = NestedField(143, "referenced_data_file", StringType(), required=False)


class SpecManifestWriter(ManifestWriterV2):
    """A manifest of data files or of delete files."""

    def __init__(
        self,
        content: ManifestContent,
        spec: PartitionSpec,
        schema: Schema,
        output: OutputFile,
        snapshot_id: int,
    ) -> None:
        super().__init__(spec, schema, output, snapshot_id, COMPRESSION)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

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
        data_file = super()._with_partition(format_version).find_field(_DATA_FILE_ID).field_type
        assert isinstance(data_file, StructType)
        fields = {field.field_id: field for field in data_file.fields}
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
    """Give every type but the first of a name a number behind it."""
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

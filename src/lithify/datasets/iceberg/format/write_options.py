"""Reads and checks the table's properties `write.…`, which describe how to write its files.

They are checked before anything is written: PyIceberg and Arrow would fail in the middle of a task. Codecs
have Iceberg's names, in any case. A compression level for a codec without levels is ignored, as in Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from lithify.base.errors import Refused, Unsupported
from lithify.datasets.iceberg.format.bloom_filters import bloom_filters
from lithify.datasets.iceberg.format.metrics_modes import metrics_modes
from lithify.datasets.iceberg.format.properties import MAX_INT, whole_number
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of

_CODECS = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
    "uncompressed": "none",
}
"""Arrow's names of codecs by Iceberg's. Arrow writes every LZ4 as LZ4_RAW."""
_DATA: Final = "write.parquet."
_DELETES: Final = "write.delete.parquet."
_STATISTICS_PREFIX: Final = "write.parquet.stats-enabled.column."
_DICTIONARIES_KEY: Final = "parquet.enable.dictionary"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write a table's Parquet files."""

    parquet: Mapping[str, Any]
    """Arguments of Arrow's Parquet writer."""
    row_group_rows: int
    row_group_bytes: int
    """In the file. Arrow has no such limit (`sizing`)."""

    @property
    def page_bytes(self) -> int:
        """The smaller limit of pages of values and of dictionaries."""
        return int(min(self.parquet["data_page_size"], self.parquet["dictionary_pagesize_limit"]))


def write_options(properties: Mapping[str, str]) -> WriteOptions:
    """Return the options of data files. Raise `Refused` for the first invalid one."""
    return _options(properties, (_DATA,))


def delete_options(properties: Mapping[str, str]) -> WriteOptions:
    """Return the options of position delete files: those of data files, unless `write.delete.parquet.…` has
    others. Raise `Refused` for the first invalid one."""
    return _options(properties, (_DELETES, _DATA))


def without_statistics(properties: Mapping[str, str], schema: Schema) -> frozenset[int]:
    """Return the ids of fields for which the table requests no statistics. A name that is no column requests
    nothing, as in Java."""
    names = (
        key.removeprefix(_STATISTICS_PREFIX)
        for key, text in properties.items()
        if key.startswith(_STATISTICS_PREFIX) and text.lower() != "true"
    )
    ids = {name: field_id for field_id in schema.field_ids if (name := schema.find_column_name(field_id))}
    return frozenset(ids[name] for name in names if name in ids)


def _options(properties: Mapping[str, str], prefixes: Sequence[str]) -> WriteOptions:
    """Return the options; earlier prefixes have precedence."""

    def key_of(name: str) -> str:
        return next((prefix + name for prefix in prefixes if properties.get(prefix + name)), _DATA + name)

    def number(name: str, default: int) -> int:
        key = key_of(name)
        given = {key: properties[key]} if properties.get(key) else {}
        return whole_number(given, key, default, most=MAX_INT)

    codec = _codec(properties, key_of("compression-codec"))
    parquet = {
        "compression": codec,
        "compression_level": _level(properties, key_of("compression-level"), codec),
        "use_dictionary": properties.get(_DICTIONARIES_KEY, "true").lower() == "true",
        "data_page_size": number("page-size-bytes", TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT),
        "dictionary_pagesize_limit": number(
            "dict-size-bytes", TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT
        ),
        "max_rows_per_page": number("page-row-limit", TableProperties.PARQUET_PAGE_ROW_LIMIT_DEFAULT),
    }
    return WriteOptions(
        parquet,
        row_group_rows=number("row-group-limit", TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT),
        row_group_bytes=number("row-group-size-bytes", TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT),
    )


def check_writing(metadata: TableMetadata, url: str) -> None:
    """Raise `Refused` if files or a snapshot cannot be written as the table's metadata requires."""
    properties = properties_of(metadata)
    with _named(url):
        write_options(properties)
        metrics_modes(metadata)
        bloom_filters(properties, metadata.schema())
    _tried(url, "where data is written", lambda: locations_of(metadata, {}))
    for key in (
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
        TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
    ):
        _tried(url, key, lambda key=key: int(properties.get(key) or 0))  # type: ignore[misc]
    for key in (TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, TableProperties.OBJECT_STORE_ENABLED):
        _tried(url, key, lambda key=key: property_as_bool(properties, key, False))  # type: ignore[misc]
    # The catalog checks these at each commit.
    schema = metadata.schema()
    _tried(url, "the partition spec", lambda: metadata.spec().check_compatible(schema))
    _tried(url, "the sort order", lambda: metadata.sort_order().check_compatible(schema))
    _tried(url, "schema.name-mapping.default", metadata.name_mapping)


def check_delete_options(metadata: TableMetadata, url: str) -> None:
    """Raise `Refused` if delete files cannot be written as the table's properties require."""
    with _named(url):
        delete_options(properties_of(metadata))


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Name the table in refusals."""
    try:
        yield
    except Refused as error:
        raise type(error)(f"{url}: {error}") from error


def _tried(url: str, what: str, check: Callable[[], object]) -> None:
    try:
        check()
    except (ValueError, TypeError, AttributeError, ImportError, ValidationError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"{url}: {what} of the table cannot be used: {cause}; correct the table") from error


def _codec(properties: Mapping[str, str], key: str) -> str:
    name = properties.get(key, TableProperties.PARQUET_COMPRESSION_DEFAULT)
    codec = _CODECS.get(name.lower())
    if codec is None or (codec != "none" and not pa.Codec.is_available(codec)):
        raise Unsupported(f"{key} is {name!r}, which Lithify cannot write; use one of {', '.join(_CODECS)}")
    return codec


def _level(properties: Mapping[str, str], key: str, codec: str) -> int | None:
    text = properties.get(key)
    if not text or text == "null" or codec == "none" or not pa.Codec.supports_compression_level(codec):
        return None
    least = int(pa.Codec.minimum_compression_level(codec))
    most = int(pa.Codec.maximum_compression_level(codec))
    try:
        level = int(text)
    except ValueError:
        level = most + 1
    if not least <= level <= most:
        raise Refused(f"{key} is {text!r}; with {codec} it must be a whole number from {least} to {most}")
    return level

"""Reads and checks the table's properties `write.…`, which describe how to write its files.

They are checked before anything is written: PyIceberg and Arrow would fail in the middle of a task. Codecs
have Iceberg's names, in any case. A compression level for a codec without levels is ignored, as in Java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from lithify.base.errors import Refused, Unsupported
from lithify.datasets.iceberg.format.bloom_filters import bloom_filters
from lithify.datasets.iceberg.format.metrics_modes import metrics_modes
from lithify.datasets.iceberg.format.properties import MAX_INT, whole_number
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of

_PARQUET_CODECS = ("zstd", "gzip", "snappy", "lz4", "brotli")


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
    """Return the options. Raise `Refused` for the first invalid one."""
    codec = _codec(properties)
    given = {key: text for key, text in properties.items() if text}
    number = partial(whole_number, given, most=MAX_INT)
    parquet = {
        "compression": codec,
        "compression_level": _level(properties, codec),
        "data_page_size": number(
            TableProperties.PARQUET_PAGE_SIZE_BYTES,
            TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT,
        ),
        "dictionary_pagesize_limit": number(
            TableProperties.PARQUET_DICT_SIZE_BYTES,
            TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT,
        ),
        "max_rows_per_page": number(
            TableProperties.PARQUET_PAGE_ROW_LIMIT,
            TableProperties.PARQUET_PAGE_ROW_LIMIT_DEFAULT,
        ),
    }
    row_group_rows = number(
        TableProperties.PARQUET_ROW_GROUP_LIMIT,
        TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT,
    )
    row_group_bytes = number(
        TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES,
        TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT,
    )
    return WriteOptions(parquet, row_group_rows, row_group_bytes)


def check_writing(metadata: TableMetadata, url: str) -> None:
    """Raise `Refused` if files or a snapshot cannot be written as the table's metadata requires."""
    properties = properties_of(metadata)
    try:
        write_options(properties)
        metrics_modes(metadata)
        bloom_filters(properties, metadata.schema())
    except Refused as error:
        raise type(error)(f"{url}: {error}") from error
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


def _tried(url: str, what: str, check: Callable[[], object]) -> None:
    try:
        check()
    except (ValueError, TypeError, AttributeError, ImportError, ValidationError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"{url}: {what} of the table cannot be used: {cause}; correct the table") from error


def _codec(properties: Mapping[str, str]) -> str:
    key = TableProperties.PARQUET_COMPRESSION
    name = properties.get(key, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()
    if name == "uncompressed":
        return "none"
    if name not in _PARQUET_CODECS or not pa.Codec.is_available(name):
        raise Unsupported(
            f"{key} is {properties[key]!r}, which Lithify cannot write; use uncompressed or one of "
            f"{', '.join(_PARQUET_CODECS)}"
        )
    return name


def _level(properties: Mapping[str, str], codec: str) -> int | None:
    key = TableProperties.PARQUET_COMPRESSION_LEVEL
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

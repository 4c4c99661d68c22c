"""The allowlist of table properties that Lithify and PyIceberg use.

Anyone who may change a table sets its properties, so they are untrusted (docs/security.md): some make
PyIceberg import a class or use another host. Code, hosts and credentials come only from the catalog's
configuration, which belongs to the operator.

A location provider is code that some writers need. It is used only if the catalog's configuration also has
its name in `write.py-location-provider.impl`, a list separated by commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.table import TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.reach import check_reach

LOCATION_PROVIDER = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
WRITE_PATHS = (
    TableProperties.WRITE_DATA_PATH,
    TableProperties.WRITE_METADATA_PATH,
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Folders for a table's files besides its location."""
USED = frozenset(
    (
        *WRITE_PATHS,
        "commit.manifest.min-count-to-merge",
        "commit.manifest.target-size-bytes",
        "gc.enabled",
        "history.expire.max-ref-age-ms",
        "history.expire.max-snapshot-age-ms",
        "history.expire.min-snapshots-to-keep",
        "parquet.enable.dictionary",
        "schema.name-mapping.default",
        "write.delete.granularity",
        "write.delete.mode",
        "write.delete.parquet.compression-codec",
        "write.delete.parquet.compression-level",
        "write.delete.parquet.dict-size-bytes",
        "write.delete.parquet.page-row-limit",
        "write.delete.parquet.page-size-bytes",
        "write.delete.parquet.row-group-size-bytes",
        "write.format.default",
        "write.merge.mode",
        "write.metadata.compression-codec",
        "write.metadata.delete-after-commit.enabled",
        "write.metadata.metrics.default",
        "write.metadata.metrics.max-inferred-column-defaults",
        "write.metadata.previous-versions-max",
        "write.object-storage.enabled",
        "write.object-storage.partitioned-paths",
        "write.parquet.bloom-filter-max-bytes",
        "write.parquet.compression-codec",
        "write.parquet.compression-level",
        "write.parquet.dict-size-bytes",
        "write.parquet.page-row-limit",
        "write.parquet.page-size-bytes",
        "write.parquet.row-group-limit",
        "write.parquet.row-group-size-bytes",
        "write.summary.partition-limit",
        "write.target-file-size-bytes",
        "write.update.mode",
    )
)
USED_PREFIXES = (
    "encryption.",
    "lithify-state.",
    "lithify.",
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.bloom-filter-fpp.column.",
    "write.parquet.stats-enabled.column.",
)
_REACHING = ("py-", "s3.", "gcs.", "adls.", "hdfs.", "client.", "hf.")
"""Prefixes of names that PyIceberg uses for code, hosts or credentials."""


def used(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return a table's properties that are on the list (pure)."""
    return {
        name: str(value)
        for name, value in properties.items()
        if name in USED or name.startswith(USED_PREFIXES)
    }


def properties_of(metadata: TableMetadata) -> dict[str, str]:
    """Return the properties in a table's metadata that are on the list (pure)."""
    return used(metadata.properties)


def ignored(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the sorted names of properties that would set code, hosts or credentials (pure)."""
    names = (name for name in metadata.properties if name.startswith(_REACHING) or name == LOCATION_PROVIDER)
    return tuple(sorted(names))


def locations_of(metadata: TableMetadata, configured: Mapping[str, Any]) -> LocationProvider:
    """Return the provider of locations for new files. `configured` has the properties of the catalog or of
    the table's file access. Raise `Refused` for a location outside the table's reach, or an allowed provider
    that cannot be loaded."""
    properties = writing_properties(metadata, configured)
    try:
        locations = load_location_provider(metadata.location, properties)
    except (ImportError, AttributeError, ValueError) as error:
        if LOCATION_PROVIDER not in properties:
            raise
        raise Refused(
            f"the location provider {properties[LOCATION_PROVIDER]}, which places this table's new files, "
            f"cannot be loaded here ({error}): install its package in Lithify's environment, or remove "
            f"{LOCATION_PROVIDER} from the configuration of the catalog and from the table"
        ) from error
    for path in (locations.data_path, locations.metadata_path):
        check_reach(path, configured)
    return locations


def writing_properties(metadata: TableMetadata, configured: Mapping[str, Any]) -> dict[str, str]:
    """Return a table's properties that are on the list, and its location provider if it is allowed (pure)."""
    properties = properties_of(metadata)
    wanted = metadata.properties.get(LOCATION_PROVIDER)
    allowed = str(configured.get(LOCATION_PROVIDER) or "").split(",")
    if wanted and wanted in (name.strip() for name in allowed):
        properties[LOCATION_PROVIDER] = wanted
    return properties

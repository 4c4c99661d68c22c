"""PyIceberg's catalogs, protected against code, hosts and credentials that a table or a server names.

PyIceberg merges the properties of a table, which any writer of the table can set, over those of the catalog,
and imports classes and contacts hosts that the result names. Catalogs that are opened here do not:

| source | accepted properties |
|---|---|
| the operator's configuration of the catalog | everything |
| the configuration in a REST server's response | `_SERVERS`: no code, no authentication, no other files |
| a REST server's response for one table | `vended`: credentials, and an endpoint with credentials only |
| the properties of a table | `table_properties`: nothing that affects file access |

A table's files are accessed only within its `Reach`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.metadata_writer import write_metadata
from lithify.datasets.iceberg.format.table_properties import locations_of
from lithify.datasets.iceberg.io.catalog_requests import configuration_of, is_rest
from lithify.datasets.iceberg.io.reach import REACH, reach_of
from lithify.datasets.iceberg.io.vended import VENDED, with_vended
from lithify.store.aws_profiles import are_given

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import TableResponse

_SERVERS = VENDED | {
    "namespace-separator",
    "prefix",
    "scan-planning-mode",
    "snapshot-loading-mode",
    "uri",
    "view-endpoints-supported",
}
"""Properties that a REST catalog's server may configure by its first response, besides headers of requests to
it."""
_HEADERS = "header."
_S3 = ("s3://", "s3a://", "s3n://")
SIGNING = "s3.remote-signing-enabled"
PROFILES = ("s3.profile-name", "client.profile-name")
"""PyIceberg's names for an AWS profile."""


class ClosedCatalog(Catalog):
    """The common part of all catalogs. It precedes PyIceberg's own class among the bases."""

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Return file access to the table whose metadata file is at `location`, without its properties."""
        return _file_io(self.properties, location)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Prepare a commit as PyIceberg does, with the location provider of `table_properties`."""
        assert current_table is not None, "Lithify does not create tables"
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        _check_numbers(current_table.metadata, updates)
        updated: TableMetadata = update_table_metadata(
            base_metadata=current_table.metadata,
            updates=updates,
            metadata_location=current_table.metadata_location,
        )
        version = MetastoreCatalog._parse_metadata_version(current_table.metadata_location) + 1
        locations = locations_of(updated, self.properties)
        return StagedTable(
            identifier=table_identifier,
            metadata=updated,
            metadata_location=locations.new_table_metadata_file_location(version),
            io=current_table.io,
            catalog=self,
        )

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        _write_metadata(metadata, io, metadata_path, overwrite=False)

    @staticmethod
    def _write_metadata_no_exist_check(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        """The same where the catalog chose the place, as S3 Tables does."""
        _write_metadata(metadata, io, metadata_path, overwrite=True)


class ClosedRestCatalog(ClosedCatalog, RestCatalog):
    """A REST catalog that uses only what the protocol lets its server provide."""

    signs_requests: bool | None = None
    """Whether the server signs each request for a store, by the operator's configuration."""
    server_signs_requests: bool | None = None
    """The same, by the server's own configuration."""

    def _fetch_config(self) -> None:
        own = dict(self.properties)
        super()._fetch_config()
        self.signs_requests, self.server_signs_requests = _signing_of(own), _signing_of(self.properties)
        given = {k: v for k, v in self.properties.items() if k in _SERVERS or k.startswith(_HEADERS)}
        self.properties = {**own, **given}

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        location = cast(str, table_response.metadata_location)
        credentials = self._resolve_storage_credentials(table_response.storage_credentials, location)
        name = ".".join(identifier_tuple)
        given = {**table_response.config, **credentials}
        return Table(
            identifier=identifier_tuple,
            metadata_location=location,
            metadata=table_response.metadata,
            io=_file_io(with_vended(self.properties, given, name), location),
            catalog=self,
            config=table_response.config,
        )


def _check_numbers(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> None:
    """Raise `CommitFailedException` if a commit to another branch has taken a new snapshot's sequence number.
    PyIceberg checks this only in format version 2."""
    if not isinstance(metadata, TableMetadataV3):
        return
    for update in updates:
        number = update.snapshot.sequence_number if isinstance(update, AddSnapshotUpdate) else None
        if number is not None and number <= metadata.last_sequence_number:
            raise CommitFailedException(f"the sequence number {number} was taken by another commit")


def _write_metadata(metadata: TableMetadata, io: FileIO, path: str, *, overwrite: bool) -> None:
    output = io.new_output(path)
    if metadata.format_version > 2:
        write_metadata(metadata, io, output, overwrite=overwrite)
    else:
        ToOutputFile.table_metadata(metadata, output, overwrite=overwrite)


def check_signing(table: Table) -> None:
    """Raise `Refused` for a table whose catalog signs each request to the store itself (remote signing), if
    there are no other credentials for the store: PyArrow and obstore do not support such signatures."""
    catalog, properties = table.catalog, table.io.properties
    if not isinstance(catalog, ClosedRestCatalog) or not table.location().startswith(_S3):
        return
    said = (catalog.signs_requests, _signing_of(table.config), catalog.server_signs_requests)
    if not next((signs for signs in said if signs is not None), False) or _has_credentials(properties):
        return
    raise Refused(
        f"table {'.'.join(table.name())}: its catalog gives no credentials for the store and wants to sign "
        "each request itself (remote signing), which is not supported; let the catalog vend credentials, "
        "configure your own keys in its configuration (s3.access-key-id) or in an AWS profile, or set "
        f"{SIGNING} to false there if this machine's role may reach the store"
    )


def _has_credentials(properties: Mapping[str, Any]) -> bool:
    """Return whether the catalog, its configuration or the environment provide credentials for S3."""
    own = ("s3.access-key-id", "client.access-key-id", "s3.anonymous", *PROFILES)
    return any(properties.get(name) for name in own) or are_given({}, os.environ)


def _signing_of(properties: Mapping[str, Any]) -> bool | None:
    """Return whether the catalog signs requests, by its current and its older properties; `None` if they do
    not specify it."""
    said = properties.get(SIGNING)
    if said is not None:
        return str(said).lower() == "true"
    return True if properties.get("s3.signer") else None


def closed_catalog(name: str, given: Mapping[str, str]) -> Catalog:
    """Open the catalog of that name in PyIceberg's configuration; `given` overrides the configuration."""
    configured = configuration_of(name, given)
    if is_rest(configured):
        return ClosedRestCatalog(name, **configured)
    catalog = load_catalog(name, **given)
    # It has sent no request yet, and the classes differ only in methods.
    catalog.__class__ = _closed(type(catalog))
    return catalog


@cache
def _closed(kind: type[Catalog]) -> type[Catalog]:
    return cast(type[Catalog], type(kind.__name__, (ClosedCatalog, kind), {"__module__": kind.__module__}))


def _file_io(properties: Mapping[str, Any], location: str | None) -> FileIO:
    reach = {} if location is None else {REACH: reach_of(location, properties)}
    return load_file_io({**properties, **reach}, location)

"""PyIceberg's catalogs, closed to code, hosts and credentials that a table or a server names.

PyIceberg merges the properties of a table, which anybody who may change it writes, over those of the catalog,
and imports classes and asks hosts by the result. Catalogs that are opened here do not:

| from | what counts |
|---|---|
| the operator's configuration of the catalog | everything |
| the configuration that a REST server answers with | `_SERVERS`: no code, no authentication, no other files |
| what a REST server answers for one table | `vended`: credentials, and an endpoint with credentials only |
| the properties of a table | `table_properties`: nothing that file access looks at |

Files of a table are reached within its `Reach` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from lithify.datasets.iceberg.catalog_requests import configuration_of, is_rest
from lithify.datasets.iceberg.reach import REACH, reach_of
from lithify.datasets.iceberg.table_properties import locations_of
from lithify.datasets.iceberg.vended import VENDED, with_vended

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
"""What the server of a REST catalog may configure by its first answer, besides headers of requests to it."""
_HEADERS = "header."


class ClosedCatalog(Catalog):
    """What is the same for all catalogs. Comes before PyIceberg's own class."""

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
        assert current_table is not None, "no table is created here"
        for requirement in requirements:
            requirement.validate(current_table.metadata)
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


class ClosedRestCatalog(ClosedCatalog, RestCatalog):
    """A REST catalog, whose server is asked for what its protocol gives and no more."""

    def _fetch_config(self) -> None:
        own = dict(self.properties)
        super()._fetch_config()
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


def closed_catalog(name: str, given: Mapping[str, str]) -> Catalog:
    """Open the catalog of that name in PyIceberg's configuration; `given` wins over that."""
    configured = configuration_of(name, given)
    if is_rest(configured):
        return ClosedRestCatalog(name, **configured)
    catalog = load_catalog(name, **given)
    # Nothing has been asked of it yet, and its class differs in methods alone.
    catalog.__class__ = _closed(type(catalog))
    return catalog


@cache
def _closed(kind: type[Catalog]) -> type[Catalog]:
    return cast(type[Catalog], type(kind.__name__, (ClosedCatalog, kind), {"__module__": kind.__module__}))


def _file_io(properties: Mapping[str, Any], location: str | None) -> FileIO:
    reach = {} if location is None else {REACH: reach_of(location, properties)}
    return load_file_io({**properties, **reach}, location)

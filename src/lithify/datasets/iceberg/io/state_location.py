"""A location for Lithify's state of tables outside the tables' locations: `iceberg.state_location`.

Each table has its own folder there, `_lithify-state/<UUID>-<digest of its location>`: a copy of a table has
the same UUID and another location. The first part's name is hidden from programs that remove orphan files and
skip hidden names, in case the location is inside a table. A table whose state is there records that
(`own_state`), so a process without the setting, or with another one, refuses the table.

The location is accessed with the configuration of the table's catalog and the location's own options, never
with credentials that a catalog vends for one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from pyiceberg.catalog import Catalog

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.places import canonical
from lithify.datasets.iceberg.io.stores import as_properties, open_place, task_options
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.urls import split_scheme

STATE_FOLDER = "_lithify-state"
_DIGITS = 16
_SETTING = "iceberg.state_location"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The opened state location."""

    store: ObjectStore
    key: str
    task_options: Mapping[str, str]
    """The options with which a task opens the store."""

    def folder_of(self, uuid: object, location: str) -> str:
        """Return the key of one table's folder."""
        digest = sha256(canonical(location).encode()).hexdigest()[:_DIGITS]
        return join(self.key, STATE_FOLDER, f"{uuid}-{digest}")


def open_state_location(
    location: str,
    catalog: Catalog,
    options: Mapping[str, str],
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> StateLocation:
    """Open the state location. Raise `Refused` if it is invalid, or differs between processes. `options` are
    the location's own and override the catalog's."""
    scheme, _ = split_scheme(location)
    if scheme is None and not location.startswith("/"):
        raise Refused(
            f"{_SETTING}: {location} is relative, so it differs between processes; use an absolute path or "
            "a URL"
        )
    properties = {**catalog.properties, **as_properties(options)}
    try:
        store, key = open_place(location, properties)
    except Refused as error:
        raise Refused(f"{_SETTING}: {error}") from error
    return StateLocation(wrap(store), key, task_options(location, properties))

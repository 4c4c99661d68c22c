"""A place for Lithify's state of tables that is not under their locations: `iceberg.state_location`.

Each table has a folder of its own there, `_lithify-state/<UUID>-<digest of its location>`: a copy of a table
keeps the UUID and lies elsewhere. The name of the first part is hidden for whatever removes orphan files and
knows hidden names, should the place be inside a table. A table whose state is there records that
(`own_state`), so a process without the setting, or with another one, refuses the table.

The place is reached with the configuration of the table's catalog and with the options of the place itself,
never with credentials that a catalog hands out for one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from pyiceberg.catalog import Catalog

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.catalogs import as_properties, open_place, task_options
from lithify.datasets.iceberg.io.places import canonical
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.urls import split_scheme

STATE_FOLDER = "_lithify-state"
_DIGITS = 16
_SETTING = "iceberg.state_location"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The place, opened."""

    store: ObjectStore
    key: str
    task_options: Mapping[str, str]
    """With which a task opens the store."""

    def folder_of(self, uuid: object, location: str) -> str:
        """Return the key of the folder of one table."""
        digest = sha256(canonical(location).encode()).hexdigest()[:_DIGITS]
        return join(self.key, STATE_FOLDER, f"{uuid}-{digest}")


def open_state_location(
    location: str,
    catalog: Catalog,
    options: Mapping[str, str],
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> StateLocation:
    """Open the place. `Refused` for one that is none, or that is another one for each process. `options` are
    of the place and win over the catalog's."""
    scheme, _ = split_scheme(location)
    if scheme is None and not location.startswith("/"):
        raise Refused(
            f"{_SETTING}: {location} is relative, so it is another place for each process; give a path from "
            "the root or a URL"
        )
    properties = {**catalog.properties, **as_properties(options)}
    try:
        store, key = open_place(location, properties)
    except Refused as error:
        raise Refused(f"{_SETTING}: {error}") from error
    return StateLocation(wrap(store), key, task_options(location, properties))

"""The permitted locations of a table's files.

A table's metadata names its files, its location and the location of new files by full paths, and any writer
of the table can set these. With the service's credentials they could reach objects that their writer cannot:
another bucket, another account, the disk of a worker. So a table's files are opened, listed, written and
deleted only

1. in the object store (scheme and bucket, or container and account) of the metadata file that the catalog
   points to, and in that of the catalog's warehouse;
2. on a local disk, in the folder of that metadata file's table and in the warehouse;
3. below the locations in `lithify.allowed-locations` in the operator's configuration of the catalog: full
   locations, separated by commas, such as `s3://archive/, s3://lake-2/tables`.

All of a bucket is permitted, as with `add_files`: tenants that do not trust each other need separate buckets,
or credentials for each table, as REST catalogs vend them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.places import canonical
from lithify.store.urls import split_scheme

ALLOWED = "lithify.allowed-locations"
"""The property of a catalog's configuration with additional locations."""
REACH = "lithify.reach"
"""The key of a table's `Reach` among the properties of its file access."""
_METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Reach:
    """The folders that may contain a table's files, in the form of `_plain`, with a trailing slash."""

    folders: tuple[str, ...]

    def allows(self, path: str) -> bool:
        """Return whether a file or folder may be opened."""
        return self.folders == ("",) or f"{_plain(path)}/".startswith(self.folders)

    def check(self, path: str) -> None:
        """Raise `Refused` for a path that may not be opened."""
        if not self.allows(path):
            raise Refused(
                f"{path}: lies outside {', '.join(self.folders)}, the folders that this table's files may "
                f"use; if the path is right, add its folder to {ALLOWED} in the configuration of the catalog"
            )


EVERYWHERE = Reach(("",))
"""The reach of catalogs, which belong to the operator, and of tables that were opened without Lithify's
catalogs."""


def reach_of(metadata_location: str, configured: Mapping[str, Any]) -> Reach:
    """Return the permitted locations of a table's files, by the metadata file that its catalog points to and
    the catalog's configuration."""
    return Reach(tuple(dict.fromkeys(_folders(metadata_location, configured))))


def check_reach(path: str, properties: Mapping[str, Any]) -> None:
    """Raise `Refused` for a path outside the reach of the table whose file access has these properties. A
    catalog's properties permit every path: none of them comes from a table."""
    reach = properties.get(REACH, EVERYWHERE)
    assert isinstance(reach, Reach)
    reach.check(path)


def _folders(metadata_location: str, configured: Mapping[str, Any]) -> Iterator[str]:
    folder = metadata_location.rpartition("/")[0]
    yield _widest(folder.removesuffix(f"/{_METADATA}"))
    warehouse = str(configured.get("warehouse") or "")
    if "://" in warehouse or warehouse.startswith(("/", "file:")):  # a REST catalog's is only a name
        yield _widest(warehouse)
    for allowed in _listed(configured.get(ALLOWED)):
        yield f"{_plain(allowed)}/"


def _listed(text: object) -> Iterable[str]:
    return filter(None, (part.strip() for part in str(text or "").split(",")))


def _widest(folder: str) -> str:
    """Return the whole store of a folder; for a local folder, the folder itself."""
    scheme, slashes, rest = _plain(folder).partition("://")
    return f"{scheme}{slashes}{rest}/" if scheme == "file" else f"{scheme}{slashes}{rest.partition('/')[0]}/"


def _plain(path: str) -> str:
    """Return the canonical form of a path, without a trailing slash. On a local disk, `..` and links are
    resolved; in object stores `..` is an ordinary name."""
    scheme, rest = split_scheme(path)
    if scheme in (None, "file"):
        if rest.startswith("//"):
            host, _, rest = rest[2:].partition("/")
            rest = f"/{host}/{rest}" if host else f"/{rest}"  # PyIceberg treats a host as a folder
        return f"file://{_real(rest)}".rstrip("/")
    return canonical(path)


def _real(path: str) -> str:
    if not path.startswith("/"):
        return posixpath.join("/", "relative", path)  # not a location, and inside none
    return os.path.realpath(path)

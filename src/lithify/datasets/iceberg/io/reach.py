"""Where the files of a table may lie.

A table's metadata names its files, its location and where writers put new ones by whole paths, and anybody
who may change the table writes these. With the service's credentials they could reach what their writer
cannot: another bucket, another account, the disk of a worker. So a table's files are opened, listed, written
and deleted only

1. in the object store (scheme and bucket, or container and account) of the metadata file that the catalog
   points to, and in that of the catalog's warehouse;
2. on a local disk, in the folder of that metadata file's table and in the warehouse;
3. below what the operator names in the catalog's configuration, as `lithify.allowed-locations`: whole
   locations between commas, such as `s3://archive/, s3://lake-2/tables`.

Within one bucket all of it may be reached, as with `add_files`: tenants that do not trust each other need
buckets, or credentials for each table, as REST catalogs give them out.
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
"""A property of a catalog's configuration."""
REACH = "lithify.reach"
"""The `Reach` of a table, among the properties of its file access."""
_METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Reach:
    """The folders below which a table's files may lie, each as `_plain` gives it, with a slash at its end."""

    folders: tuple[str, ...]

    def allows(self, path: str) -> bool:
        """Whether a file, or a folder, may be opened."""
        return self.folders == ("",) or f"{_plain(path)}/".startswith(self.folders)

    def check(self, path: str) -> None:
        """`Refused` for a path that may not be opened."""
        if not self.allows(path):
            raise Refused(
                f"{path}: lies outside {', '.join(self.folders)}, where the files of this table may lie; if "
                f"that is right, add its folder to {ALLOWED} in the configuration of the catalog"
            )


EVERYWHERE = Reach(("",))
"""That of catalogs, which are the operator's, and of tables that were opened without Lithify's."""


def reach_of(metadata_location: str, configured: Mapping[str, Any]) -> Reach:
    """Return where the files of a table may lie, by the metadata file that its catalog points to and by the
    catalog's configuration."""
    return Reach(tuple(dict.fromkeys(_folders(metadata_location, configured))))


def check_reach(path: str, properties: Mapping[str, Any]) -> None:
    """`Refused` for a path outside the reach of the table whose file access has these properties. Properties
    of a catalog reach everything: nothing in them is a table's."""
    reach = properties.get(REACH, EVERYWHERE)
    assert isinstance(reach, Reach)
    reach.check(path)


def _folders(metadata_location: str, configured: Mapping[str, Any]) -> Iterator[str]:
    folder = metadata_location.rpartition("/")[0]
    yield _widest(folder.removesuffix(f"/{_METADATA}"))
    warehouse = str(configured.get("warehouse") or "")
    if "://" in warehouse or warehouse.startswith(("/", "file:")):  # a REST catalog's is a mere name
        yield _widest(warehouse)
    for allowed in _listed(configured.get(ALLOWED)):
        yield f"{_plain(allowed)}/"


def _listed(text: object) -> Iterable[str]:
    return filter(None, (part.strip() for part in str(text or "").split(",")))


def _widest(folder: str) -> str:
    """The whole store of a folder; on a local disk the folder."""
    scheme, slashes, rest = _plain(folder).partition("://")
    return f"{scheme}{slashes}{rest}/" if scheme == "file" else f"{scheme}{slashes}{rest.partition('/')[0]}/"


def _plain(path: str) -> str:
    """The one way to write a path, without a slash at its end; `..` is resolved and links are followed on a
    local disk. Nothing but names in object stores, where `..` is a name."""
    scheme, rest = split_scheme(path)
    if scheme in (None, "file"):
        if rest.startswith("//"):
            host, _, rest = rest[2:].partition("/")
            rest = f"/{host}/{rest}" if host else f"/{rest}"  # PyIceberg takes a host for a folder
        return f"file://{_real(rest)}".rstrip("/")
    return canonical(path)


def _real(path: str) -> str:
    if not path.startswith("/"):
        return posixpath.join("/", "relative", path)  # is no place, and within none
    return os.path.realpath(path)

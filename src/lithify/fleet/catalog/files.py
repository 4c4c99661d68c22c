"""The catalog in the store: numbered files below the fleet's URL, `catalog/<20 digits>.json`.

1. A change is applied to the latest catalog and published as the next version; after a conflict, it is
   applied to the newer one (`lithify.fleet.catalog.changes`). Refused changes, and catalogs that could not
   be read again, are detected before anything is written: every change begins with reading the latest
   version.
2. Members *follow* the catalog: they poll for the next number. A version that cannot be decoded or is
   invalid is reported and changes nothing: members keep using the last good one until a better one is
   published.
3. A fleet that was recreated at its URL, or whose catalog was restored from a backup, has another history:
   its newest version is followed regardless of its number, and nothing counts as admitted under an older
   one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from lithify.base.clock import Clock
from lithify.base.documents import readable
from lithify.base.errors import (
    CorruptObject,
    DatasetNotFound,
    LithifyError,
    Refused,
    Replaced,
    Unsupported,
)
from lithify.base.ids import Ids
from lithify.fleet.catalog.changes import CatalogChange
from lithify.fleet.catalog.documents import decode, encode
from lithify.fleet.catalog.model import Catalog
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles

SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A catalog with its number."""

    number: int
    catalog: Catalog


class CatalogFiles:
    """The catalog of the fleet at `url`, which is `folder` of `store`."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        folder: str,
        clock: Clock,
        ids: Ids,
        rng: random.Random | None = None,
    ) -> None:
        self._url = url
        self.versions = VersionedFiles(
            store, join(folder, "catalog"), SUFFIX, join(folder, "catalog.boundary"), ids, clock=clock
        )
        """All existing versions, for reading older ones (`lithify.fleet.catalog.history`)."""
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()
        self._decoded: tuple[Version, Numbered] | None = None
        self.replacements = 0
        """How often another history was found."""

    def create(self, first: Catalog) -> Numbered:
        """Create the fleet. Raise `Refused` if it exists."""

        def change(version: Version | None) -> bytes | None:
            if version is None:
                return self._encoded(first)
            if self._decode(version).catalog == first:
                return None  # the write had succeeded; only the response was lost
            raise Refused(f"{self._url}: a fleet exists already")

        return self._published(self.versions.update(change, self._clock, self._rng))

    def read(self, *, is_sure: bool = True) -> Numbered:
        """Return the latest version; with `is_sure=False`, meant for polling, it may be slightly stale. Raise
        `DatasetNotFound` if there is no fleet, and `CorruptObject` or `Unsupported` if the catalog is
        unusable."""
        try:
            return self._published(self.versions.confirmed() if is_sure else self.versions.latest())
        except Replaced:
            self.replacements += 1
            return self._published(self.versions.confirmed())

    def update(self, change: CatalogChange) -> Numbered:
        """Publish the result of applying `change` to the latest version, unless it is the same; return the
        latest version then."""

        def apply(version: Version | None) -> bytes | None:
            now = self._published(version).catalog
            new = change(now)
            return self._encoded(new) if new != now else None

        # If the cached version is so old that it was deleted, the change might find nothing to change in it.
        self.read()
        return self._published(self.versions.update(apply, self._clock, self._rng))

    def _encoded(self, catalog: Catalog) -> bytes:
        """Encode the catalog for publishing."""
        return readable(partial(encode, catalog), partial(decode, key=self._url), self._url)

    def _published(self, version: Version | None) -> Numbered:
        if version is None:
            raise DatasetNotFound(
                f"{self._url}: there is no fleet; create one with `lithify fleet init {self._url}`"
            )
        return self._decode(version)

    def _decode(self, version: Version) -> Numbered:
        if self._decoded is None or self._decoded[0] != version:
            self._decoded = version, Numbered(version.id, self.versions.decode(version, decode))
        return self._decoded[1]


class FollowedCatalog:
    """The last good catalog, as a member knows it."""

    def __init__(self, files: CatalogFiles) -> None:
        self._files = files
        self.now = files.read()
        self.problem: LithifyError | None = None
        """The error in the latest version, if an older one is followed because of it."""
        self.was_replaced = False
        """Whether the last refresh found another history."""
        self._replacements = files.replacements

    def refresh(self, *, was_away: bool = False) -> bool:
        """Read a newer version if there is one; return whether there was a good one. `was_away`: the member
        was away for so long that its version may have been deleted. An unreachable store raises an error, an
        unusable catalog does not."""
        self.was_replaced = False
        try:
            newest = self._files.read(is_sure=was_away)
        except (CorruptObject, Unsupported, DatasetNotFound) as error:
            self.problem = error
            return False
        self.problem = None
        is_news = newest.number != self.now.number
        self.now = newest
        self.was_replaced = self._files.replacements != self._replacements
        self._replacements = self._files.replacements
        return is_news

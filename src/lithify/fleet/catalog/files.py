"""The catalog in the store: numbered files below the fleet's URL, `catalog/<20 digits>.json`.

1. A change is applied to the latest catalog and published as the next one; on a conflict it is applied to the
   newer one (`lithify.fleet.catalog.changes`). What is refused is so before anything is written, and so is
   what could not be read again: every change begins with reading the latest.
2. Members *follow* the catalog: they read the next number now and then. One that does not decode, or that
   does not hold, is reported and changes nothing: a member goes on with the last good one until a better
   comes.
3. A fleet that was made anew at its URL, or whose catalog was restored from a backup, has another history:
   its newest version is followed whatever its number is, and nothing counts as admitted under an older one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from lithify.base.clock import Clock
from lithify.base.errors import (
    CorruptObject,
    DatasetNotFound,
    LithifyError,
    Refused,
    Replaced,
    Unsupported,
)
from lithify.base.ids import Ids
from lithify.coordination.readable import readable
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
    """The catalog of the fleet at `url`, which lies below `folder` of `store`."""

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
        """All that are there, for who asks for an older one (`lithify.fleet.catalog.history`)."""
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()
        self._decoded: tuple[Version, Numbered] | None = None
        self.replacements = 0
        """How often it was found that another history is there."""

    def create(self, first: Catalog) -> Numbered:
        """Make the fleet. `Refused` when there is one."""

        def change(version: Version | None) -> bytes | None:
            if version is None:
                return self._encoded(first)
            if self._decode(version).catalog == first:
                return None  # only the answer was lost
            raise Refused(f"{self._url}: there is a fleet already")

        return self._published(self.versions.update(change, self._clock, self._rng))

    def read(self, *, is_sure: bool = True) -> Numbered:
        """The latest one; for who looks again and again it need not be quite sure. `DatasetNotFound` when
        there is no fleet, `CorruptObject` and `Unsupported` when it cannot be used."""
        try:
            return self._published(self.versions.confirmed() if is_sure else self.versions.latest())
        except Replaced:
            self.replacements += 1
            return self._published(self.versions.confirmed())

    def update(self, change: CatalogChange) -> Numbered:
        """Publish what `change` makes of the latest, unless that is the same; what is the latest then."""

        def apply(version: Version | None) -> bytes | None:
            now = self._published(version).catalog
            new = change(now)
            return self._encoded(new) if new != now else None

        # For who has not looked for so long that what it had seen is gone: else what it takes for the latest
        # may have nothing to change.
        self.read()
        return self._published(self.versions.update(apply, self._clock, self._rng))

    def _encoded(self, catalog: Catalog) -> bytes:
        """As it is published."""
        return readable(partial(encode, catalog), partial(decode, key=self._url), self._url)

    def _published(self, version: Version | None) -> Numbered:
        if version is None:
            raise DatasetNotFound(
                f"{self._url}: there is no fleet; make one with `lithify fleet init {self._url}`"
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
        """What is wrong with the latest one, if it is not the one that is followed."""
        self.was_replaced = False
        """Whether the last look has found another history."""
        self._replacements = files.replacements

    def refresh(self, *, was_away: bool = False) -> bool:
        """Look for a newer one; whether there was a good one. A member that was away for long may have one
        that nobody has any more. A store that cannot be reached is an error, a catalog that cannot be used is
        none."""
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
